# mypy: ignore-errors
"""Uses the client that openapi-python-client made: `use_openapi_python_client.py URL`."""

import sys

from opc import Client
from opc.api.many_timers import act_on_timers, create_timers, list_timers
from opc.api.operations import get_stats, list_pods
from opc.api.timers import cancel_timer, change_timer, create_timer, get_timer, put_timer
from opc.models import (
    Batch,
    BulkAction,
    BulkActionAction,
    Filter,
    NewTimer,
    NewTimerIfExists,
    Problem,
    PutTimer,
    RetryPolicy,
    Status,
    TimerChange,
)

with Client(base_url=sys.argv[1]) as client:
    new = NewTimer("test", id="one", delay="24h", payload={"a": 1}, tags=["vip"], retry=RetryPolicy(max_attempts=3))
    timer = create_timer.sync(client=client, body=new)
    assert (timer.id, timer.status, timer.payload, timer.tags) == ("one", Status.SCHEDULED, {"a": 1}, ["vip"])
    assert timer.retry.max_attempts == 3

    taken = create_timer.sync(client=client, body=new)
    assert isinstance(taken, Problem)
    assert taken.type_ == "urn:timers:problem:already-exists"
    wrong = create_timer.sync(client=client, body=NewTimer("Test", delay="soon"))
    assert {error.field for error in wrong.errors} == {"prefix", "delay"}
    kept = create_timer.sync(
        client=client, body=NewTimer("test", id="one", delay="1h", if_exists=NewTimerIfExists.KEEP)
    )
    assert kept.version == timer.version

    changed = change_timer.sync("test", "one", client=client, body=TimerChange(delay="48h"))
    assert changed.due_at > timer.due_at
    put_timer.sync("test", "two", client=client, body=PutTimer(due_at="2030-01-01T00:00:00Z", payload=[1, None]))
    batch = create_timers.sync(client=client, body=Batch([NewTimer("test", id="three", delay=5), NewTimer("X")]))
    assert [result.status for result in batch.results] == [201, 422]

    page = list_timers.sync(client=client, prefix="te*", status=[Status.SCHEDULED, Status.FAILED], due_before="72h")
    assert [each.id for each in page.items] == ["three", "one"]
    assert get_timer.sync("test", "two", client=client).payload == [1, None]
    assert cancel_timer.sync("test", "two", client=client).status is Status.CANCELLED
    done = act_on_timers.sync(client=client, body=BulkAction(BulkActionAction.PURGE, Filter(prefix="test")))
    assert (done.matched, done.done, done.next_cursor) == (3, 3, None)
    assert get_stats.sync(client=client).by_status.scheduled == 0
    assert isinstance(list_pods.sync(client=client).items, list)

print("openapi-python-client: used")
