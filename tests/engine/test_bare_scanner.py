"""The scanner alone: what it does with keys that exist, changed or are gone, and how often it scans."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

import pytest

from tests.engine.fleet import until
from timers.bare import watch
from timers.bare.keys import GONE, NO_TTL, BareKeys, Heard, KeyState
from timers.bare.watch import BUSY_RESTS, IDLE_RESTS, LEAD_MS, BareWatch
from timers.core.durations import HOUR_MS
from timers.store.servers import connect
from timers.store.store import Identity, Store

X = ("note", "x")
NOW_MS = 1_795_000_000_000
HEARD = Heard(NOW_MS, "", 1)
DUE_MS = NOW_MS + HOUR_MS


class _Keys(BareKeys):
    """Fake bare keys: the test says which exist and which a shard knows, and sees what the shard is told."""

    def __init__(self) -> None:
        super().__init__(Store(connect("redis://nowhere.invalid")))
        self.shard: dict[Identity, int] = {}
        self.runs: list[Identity] = []
        self.there: dict[Identity, tuple[int, bytes | None]] = {}
        self.now_ms = NOW_MS
        self.told: list[object] = []
        self.taken: list[Identity] = []
        self.scans = self.inspections = self.turns = self.watched = 0

    async def scan(self, cursor: int) -> tuple[int, list[Identity]]:
        self.scans += 1
        return 0, list(self.there)

    async def scan_known(self, shard: int, cursor: int) -> tuple[int, list[Identity]]:
        return 0, list(self.shard)

    async def shards_with_keys(self) -> range:
        return range(1)

    async def meanwhile(self) -> list[Identity]:
        return list(self.runs)

    async def after_runs(self, gone: Mapping[Identity, bool]) -> dict[Identity, str]:
        self.told += gone.items()
        return dict.fromkeys(gone, "running")

    async def known_until(self, until_ms: int) -> dict[Identity, int]:
        self.watched += 1
        return {}

    async def inspect(self, identities: Collection[Identity], lead_ms: int) -> tuple[dict[Identity, KeyState], int]:
        self.inspections += 1
        states = {i: KeyState(self.shard.get(i), *self.there.get(i, (GONE, None))) for i in identities}
        for identity, seen in states.items():
            far = seen.known_ms == seen.deadline_ms > self.now_ms + lead_ms
            states[identity] = seen._replace(value=None) if far or seen.deadline_ms < 0 else seen
        return states, self.now_ms

    async def report(self, what: str, states: Mapping[Identity, KeyState]) -> dict[Identity, str]:
        self.told += states.values() if what == "adopted" else [(what, seen.value) for seen in states.values()]
        return dict.fromkeys(states, {"adopted": "adopted", "there": "waits", "ending": "due"}.get(what, "forgotten"))

    async def take(self, deadlines: Mapping[Identity, int]) -> list[Identity]:
        self.taken += deadlines
        return list(deadlines)


@pytest.fixture
def keys() -> _Keys:
    return _Keys()


def looking(
    keys: _Keys,
    *,
    every_ms: int | None = 0,
    leads: bool = True,
    divide: Callable[[], None] = lambda: None,
) -> BareWatch:
    def asked() -> bool:
        keys.turns += 1
        return leads

    return BareWatch(keys, leads=asked, declared=lambda prefix: prefix == "note", every_ms=every_ms, divide=divide)


@pytest.mark.parametrize(
    ("known_ms", "there", "divides"),
    [
        (0, None, 1),
        (0, (DUE_MS, b"1"), 1),
        (DUE_MS * 2, (DUE_MS, b"1"), 0),
        (None, (DUE_MS, b"1"), 0),
        (DUE_MS, (DUE_MS, b"1"), 0),
    ],
)
async def test_what_counts_as_expired_unheard_is_divided_from_what_pods_hear_next(
    keys: _Keys, *, known_ms: int | None, there: tuple[int, bytes] | None, divides: int
) -> None:
    divided: list[int] = []
    if known_ms is not None:
        keys.shard[X] = known_ms
    if there is not None:
        keys.there[X] = there
    await looking(keys, divide=lambda: divided.append(1)).round()
    assert len(divided) == divides


async def test_an_unknown_key_is_adopted_with_its_value(keys: _Keys) -> None:
    keys.there[X] = (DUE_MS, b"1")
    await looking(keys).round()
    assert keys.told == [KeyState(None, DUE_MS, b"1")]


async def test_keys_that_nobody_serves_or_that_never_expire_are_left_alone(keys: _Keys) -> None:
    keys.there = {("other", "x"): (DUE_MS, b"1"), X: (NO_TTL, b"1")}
    await looking(keys).round()
    assert keys.told == []


async def test_a_key_that_was_set_again_is_told_with_what_was_known(keys: _Keys) -> None:
    keys.shard[X], keys.there[X] = DUE_MS, (DUE_MS + 1, b"2")
    await looking(keys).round()
    assert keys.told == [KeyState(DUE_MS, DUE_MS + 1, b"2")]


async def test_a_key_that_exists_to_its_end_fires_with_its_newest_value(keys: _Keys) -> None:
    """Its value may have changed while its deadline stayed: SET … KEEPTTL."""
    keys.shard[X], keys.there[X], keys.now_ms = DUE_MS, (DUE_MS, b"2"), DUE_MS - LEAD_MS
    await looking(keys).round()
    assert keys.told == [("ending", b"2"), ("deleted", b"2")]
    assert keys.taken == [X]


@pytest.mark.parametrize(("left_ms", "what"), [(0, "expired"), (-1, "expired")])
async def test_a_key_that_is_gone_after_its_deadline_has_expired(keys: _Keys, left_ms: int, what: str) -> None:
    keys.shard[X], keys.now_ms = DUE_MS, DUE_MS - left_ms
    await looking(keys).round()
    assert keys.told == [(what, None)]


async def test_a_key_that_is_gone_before_its_deadline_was_deleted_unless_its_expiry_is_heard(
    keys: _Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the key was SET again and has expired since, the look itself announces that."""
    keys.shard[X] = DUE_MS
    monkeypatch.setattr(watch, "DOUBT_SECONDS", 60)
    hesitant = asyncio.create_task(looking(keys).inspect([X]))
    await until(lambda: keys.inspections == 1, "it has read the key")
    assert keys.told == []
    hesitant.cancel()
    await asyncio.gather(hesitant, return_exceptions=True)
    monkeypatch.setattr(watch, "DOUBT_SECONDS", 0)
    await looking(keys).round()
    assert keys.told == [("deleted", None)]


async def test_while_a_pod_doubts_that_a_key_was_deleted_it_tells_of_the_others(
    keys: _Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "DOUBT_SECONDS", 60)
    keys.shard = {X: DUE_MS, ("note", "y"): DUE_MS}
    keys.there["note", "y"] = (DUE_MS, b"1")
    hesitant = asyncio.create_task(looking(keys).inspect(list(keys.shard)))
    await until(lambda: keys.told != [], "it has told of one")
    assert keys.told == [("there", None)]
    hesitant.cancel()
    await asyncio.gather(hesitant, return_exceptions=True)


async def test_a_key_whose_expiry_was_heard_has_expired_at_once(keys: _Keys) -> None:
    keys.shard[X] = DUE_MS
    keys.there["note", "y"] = (DUE_MS, b"1")
    keys.shard["note", "y"] = DUE_MS
    names = [X, ("note", "y"), ("note", "forgotten")]
    gone = await looking(keys).inspect(names, dict.fromkeys(names, HEARD))
    assert gone == [X, ("note", "forgotten")]
    assert keys.told == [("expired", b"null"), ("there", None)]


@pytest.mark.parametrize(("late_ms", "value"), [(-1, b"null"), (0, None)])
async def test_a_key_that_expired_before_its_known_deadline_has_not_the_value_that_is_known(
    keys: _Keys, late_ms: int, value: bytes | None
) -> None:
    """It had been set again. What it was is gone."""
    keys.shard[X], keys.now_ms = DUE_MS, DUE_MS + late_ms
    await looking(keys).inspect([X], {X: HEARD})
    assert keys.told == [("expired", value)]


async def test_keys_that_were_found_during_runs_are_looked_at_between_scans(keys: _Keys) -> None:
    keys.runs, keys.there[X] = [X, ("note", "y")], (DUE_MS, b"1")
    await _run_until(lambda: keys.told, looking(keys, every_ms=HOUR_MS))
    assert keys.told[:2] == [(X, False), (("note", "y"), True)]


async def test_what_took_the_place_of_a_key_cancels_its_timer(keys: _Keys) -> None:
    """For example a hash with a TTL."""
    keys.shard[X], keys.there[X] = DUE_MS, (DUE_MS + 1, None)
    await looking(keys).round()
    assert keys.told == [("deleted", None)]


async def test_after_a_scan_that_finds_nothing_scans_take_little_until_a_key_is_heard(keys: _Keys) -> None:
    scanner = looking(keys)
    assert scanner.rests == BUSY_RESTS
    for _ in range(2):
        await scanner.round()
        assert scanner.rests == IDLE_RESTS
    assert 1 / (1 + IDLE_RESTS) < 0.005
    scanner.noticed()
    assert scanner.rests == BUSY_RESTS


async def test_after_a_scan_that_finds_nothing_looks_are_rare_until_a_key_is_heard(
    keys: _Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "IDLE_LONGEST_SECONDS", 3600)
    scanner = looking(keys, every_ms=HOUR_MS)
    await scanner.round()
    running = asyncio.create_task(scanner.scan())
    for rounds in (1, 2):
        await until(lambda: keys.watched == rounds, "a round")  # noqa: B023 (awaited at once)
        scanner.noticed()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_pod_that_has_led_before_looks_often_when_it_leads_again(keys: _Keys) -> None:
    leads = True
    scanner = BareWatch(keys, leads=lambda: leads, declared=lambda _prefix: True, every_ms=0)
    await scanner.round()
    leads = False
    await _run_until(lambda: scanner.rests == BUSY_RESTS, scanner)


@pytest.mark.parametrize("how", ["found", "known"])
async def test_scans_continue_as_before_while_there_are_keys(keys: _Keys, how: str) -> None:
    keys.there[X] = (DUE_MS, b"1")
    if how == "known":
        keys.shard[X] = DUE_MS
    scanner = looking(keys)
    await scanner.round()
    assert scanner.rests == BUSY_RESTS


async def test_each_subscription_is_followed_by_a_scan_and_no_scan_comes_before_the_first(keys: _Keys) -> None:
    """What Redis announces because of a scan would be lost while nobody hears."""
    scanner = looking(keys, every_ms=HOUR_MS)
    running = asyncio.create_task(scanner.scan())
    await until(lambda: keys.watched, "it has begun")
    assert keys.scans == 0
    for scans in (1, 2, 3):
        scanner.scan_now()
        await until(lambda: keys.scans == scans, "a scan")  # noqa: B023 (awaited at once)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_pod_scans_as_soon_as_it_leads(keys: _Keys) -> None:
    """It began only with its next interval, so keys that lived for more than two intervals were not found."""
    asked = iter([False] * 3)
    scanner = BareWatch(keys, leads=lambda: next(asked, True), declared=lambda _prefix: True, every_ms=HOUR_MS)
    scanner.scan_now()
    await _run_until(lambda: keys.scans, scanner)


async def test_a_pod_that_does_not_lead_neither_scans_nor_looks(keys: _Keys) -> None:
    await _run_until(lambda: keys.turns > 5, looking(keys, leads=False))
    assert keys.scans == 0


async def test_switched_off_it_scans_for_nothing(keys: _Keys) -> None:
    await _run_until(lambda: keys.turns, looking(keys, every_ms=None))
    assert keys.scans == 0


async def _run_until(so: Callable[[], object], scanner: BareWatch) -> None:
    running = asyncio.create_task(scanner.scan())
    await until(so, "some turns")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
