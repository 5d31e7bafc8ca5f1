# mypy: ignore-errors
"""Uses the models that datamodel-code-generator made: `use_datamodel_code_generator.py URL`."""

import re
import sys
from urllib.request import Request, urlopen

import models

NUMBERED = [name for name in vars(models) if re.search(r"\d$", name)]
assert not NUMBERED, NUMBERED


def call(method: str, path: str, body: models.BaseModel | None = None) -> bytes:
    data = None if body is None else body.model_dump_json(exclude_none=True).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(sys.argv[1] + path, data=data, headers=headers, method=method)) as answer:  # noqa: S310
        return answer.read()


new = models.NewTimer(
    prefix="test",
    id="one",
    delay=models.Duration("24h"),
    payload={"a": 1},
    repeat=models.Repeat(cron="0 9 * * MON-FRI", timezone="Europe/Berlin"),
    retry=models.RetryPolicy(backoff=models.Backoff([models.Duration("5s"), models.Duration(60)])),
    missed=models.Missed(models.Grace(grace=models.Duration("10m"))),
)
timer = models.TimerAnswer.model_validate_json(call("POST", "/v1/timers", new))
assert (timer.id, timer.status, timer.payload) == ("one", models.Status.scheduled, {"a": 1})
assert timer.history[-1].cause == "created"

page = models.PageAnswer.model_validate_json(call("GET", "/v1/timers?prefix=te*&status=scheduled,failed"))
assert [each.id for each in page.items] == ["one"]
change = models.TimerChange(delay=models.Duration(172800))
assert models.TimerAnswer.model_validate_json(call("PATCH", "/v1/timers/test/one", change)).due_at > timer.due_at
batch = models.Batch(timers=[models.NewTimer(prefix="test", id="two", due_at=models.Time(2_000_000_000_000))])
results = models.BatchAnswer.model_validate_json(call("POST", "/v1/timers/batch", batch)).results
assert [result.status for result in results] == [201]
purge = models.BulkAction(action=models.Action.purge, filter=models.Filter(prefix="test"))
assert models.ActionAnswer.model_validate_json(call("POST", "/v1/timers/actions", purge)).done == 2
models.StatsAnswer.model_validate_json(call("GET", "/v1/stats"))
models.PrefixesAnswer.model_validate_json(call("GET", "/v1/prefixes"))
models.PodsAnswer.model_validate_json(call("GET", "/v1/pods"))
models.ReadyAnswer.model_validate_json(call("GET", "/readyz"))
print("datamodel-code-generator: used")
