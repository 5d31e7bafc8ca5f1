"""Random operations on the real scripts of a real server, compared step by step with the oracle.

No step waits: due times are seconds ago or an hour ahead, and leases and bare keys are made to expire.
"""

import asyncio
from collections import Counter
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tests.property.life.barekeys import BareVerbs
from tests.property.life.callers import CallerVerbs
from tests.property.life.content import expected_content, stored_content
from tests.property.life.pods import PodVerbs
from tests.property.life.world import IDENTITIES, STEPS, VALUES
from tests.servers import FAMILIES, FORGETFUL, start_server
from timers.core.durations import HOUR_MS
from timers.core.model import Status
from timers.core.outcome import Done, Failed, Snooze
from timers.store.store import Arming

# If CI is set, Hypothesis repeats the same examples, so further rounds would show nothing new.
ROUND: Final = settings(
    deadline=None,
    max_examples=12,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    derandomize=False,
)
ROUNDS: Final = 4
"""Two on each family's server, and more until every verb has succeeded."""
ROUNDS_LIMIT: Final = 30

VERBS: Final = frozenset(
    {
        *("arm: created", "arm: replaced", "arm: kept", "arm: exists", "arm: running", "arm: locked"),
        *("cancel: cancelled", "cancel: purged", "cancel: running", "cancel: locked", "cancel: version"),
        *("cancel: finished", "cancel: missing"),
        *("change: changed", "change: running", "change: finished", "change: locked", "change: version"),
        *("fire: changed", "retry: changed", "retry: scheduled", "retry: completed", "retry: running"),
        *("replay: changed", "replay: version", "replay: scheduled"),
        *("claim", "claim of a batch", "claim of a paused queue", "claim at the limit", "claim in order"),
        *("settle: settled", "settle: already", "settle: fenced", "settle: missing"),
        *("Done", "Rearm", "Failed", "Snooze", "HandBack", "Missed", "Exhausted"),
        *(
            "expire",
            "rescue",
            "extend",
            "extend: lost",
            "pause",
            "resume",
            "abandon",
            "abandon: runs",
            "prune",
            "touch: orphans",
            "page",
        ),
        *("adopt: adopted", "adopt: moved", "adopt: stale", "adopt: running"),
        *("announce: due", "announce: known", "announce: running", "announce: look", "announce: refused"),
        *("after a run: adopted", "after a run: running", "after a run: forgotten"),
        *("resolve: due", "resolve: waits", "resolve: spare", "resolve: forgotten", "resolve: cancelled"),
        *("there", "ending", "expired", "deleted", "lost-ttl"),
    }
)
"""What must each have happened at least once over the whole test."""


class LifeMachine(CallerVerbs, PodVerbs, BareVerbs):
    """One db, from its first timer on."""

    @initialize()
    def live_a_little(self) -> None:
        """Start with some timers of every kind, so that each verb finds something to act on."""
        for _ in range(2):  # the second time, the timer of the key runs
            self.heard[IDENTITIES[-1]] += 1
            self.announce_heard(IDENTITIES[-1], 0)
            self.claim_of_all_shards("a", "push", 1, None)
        self.arm_all([Arming(prefix, timer_id, f"@{self.at(-3000)}", {}) for prefix, timer_id in IDENTITIES[2:]])
        self.claim_of_all_shards("a", "push", 4, None)
        self.claim_of_all_shards("b", "mail", 1, None)
        for ending in (Done(), Failed("Fail", "no", final=True), Snooze("not yet", "1h")):
            self.end(self.held[0], "a", ending, keeps=True)
            self.held.append(self.held.pop(0))
        self.let_expire(self.oracle.of_status(Status.RUNNING)[0])
        some = [*IDENTITIES[:2], self.oracle.of_status(Status.RUNNING)[-1]]
        for identity in some:
            self.put_bare(identity, VALUES[0], HOUR_MS)
        self.take_in(some)

    @rule(step=st.deferred(lambda: st.one_of(STEPS)))
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        """Any verb, each equally likely: with one rule per verb, most runs would leave some out."""
        name, arguments = step
        if not self.stands_still:
            getattr(self, name)(**arguments)

    @invariant()
    def the_db_holds_what_the_oracle_holds(self) -> None:
        """Records and conservation: indexes, counters and keys are exactly those of the existing timers."""
        assert self.do(stored_content(self.redis)) == expected_content(self.oracle, self.store, self.base_ms)


@pytest.mark.timeout(600)  # Hypothesis shrinks a failure before it shows it
def test_lives_agree_with_the_oracle(tmp_path: Path) -> None:
    """Run until every verb has succeeded, on Redis and on Valkey."""
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        servers = [runner.run(start_server(family, tmp_path / family, *FORGETFUL)) for family in FAMILIES]
        try:
            for rounds, server in enumerate(islice(cycle(servers), ROUNDS_LIMIT), 1):
                machine: Any = partial(LifeMachine, runner, server.url, seen)  # typed as a class, used as a callable
                run_state_machine_as_test(machine, settings=ROUND)
                if rounds >= ROUNDS and set(+seen) >= VERBS:
                    break
        finally:
            for server in servers:
                runner.run(server.stop())
    assert not VERBS - set(+seen)
