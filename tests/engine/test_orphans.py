"""Runs whose leases ended while Redis was away: nobody takes them over before their own pods had time to write."""

from collections.abc import Callable

import pytest

from tests.engine.fleet import options_of
from timers.engine.canary import Canaries
from timers.engine.intake import HOLD_SECONDS, Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.processor import Registry
from timers.store.membership import Member, Membership
from timers.store.servers import connect
from timers.store.store import Store, Touched

RUN = ("note", "x")


class Later:
    """A fake `call_later`: the test makes the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append((seconds, call))

    def pass_one(self) -> None:
        """Make the oldest call."""
        self.calls.pop(0)[1]()


def test_each_run_is_made_twice_after_an_outage_longer_than_the_lease() -> None:
    later = Later()
    intake = Intake(later)
    intake.mark_orphan(0, ("note", "before"))
    intake.hold_orphans([0])
    intake.hold_orphans([0])
    intake.mark_orphan(0, RUN)
    later.pass_one()
    assert intake.take_orphans(100) == {}
    later.pass_one()
    assert intake.take_orphans(100) == {0: [("note", "before"), RUN]}


async def test_the_claimer_spun_while_orphans_were_held() -> None:
    intake = Intake(Later())
    intake.mark_orphan(0, RUN)
    intake.hold_orphans([0])
    intake.mark_orphan(0, RUN)
    assert intake.is_empty


class _Away(Store):
    async def touch(self, shard: int, next_orphan: int = 0, *, joins: bool = False) -> Touched:
        raise Unavailable("away")


async def test_orphans_stay_held_after_a_look_that_failed() -> None:
    later = Later()
    store, intake = _Away(connect("redis://nowhere.invalid")), Intake(later)
    pod = Pod(store, Registry([]), options_of())
    sweeper = Sweeper(pod, intake, Peers(Membership(store), Member("a")), Canaries(pod))
    with pytest.raises(Unavailable):
        await sweeper.run()
    assert [seconds for seconds, _ in later.calls] == [HOLD_SECONDS]
