"""Idempotency keys: a receiver that remembers them may drop what it has seen, so no key ever stands for two runs."""

import pytest
import time_machine

from tests.store.acts import DAY_MS, OTHER, PREFIX, an_end, armed, claim, finished, lease_ended, prune, running, settle
from timers.core.model import Status
from timers.store.store import Store


async def test_every_try_of_an_occurrence_has_the_same_key(store: Store) -> None:
    first = await running(store, lease_ms=1)
    await lease_ended(store, first)
    (rescued,) = (await store.rescue(0, [(PREFIX, "a")], pod=OTHER, lease_ms=30_000)).timers
    assert rescued.idempotency_key == first.idempotency_key == f"{PREFIX}:a:{first.created_ms}:1"


@pytest.mark.parametrize("how", ["purge", "retention", "retention 0"])
async def test_a_timer_that_was_removed_and_armed_again_does_not_repeat_its_key(store: Store, how: str) -> None:
    """A receiver that remembered the first key took the second run for a repetition, and dropped it."""
    seen = set[str]()
    for _ in range(20):
        timer = await running(store)
        assert timer.occurrence == 1
        seen.add(timer.idempotency_key)
        await settle(store, an_end(timer), retention_ms=0 if how == "retention 0" else DAY_MS)
        if how == "purge":
            await store.cancel(PREFIX, "a", purge=True)
        while how == "retention" and await prune(store, retention_ms=0, most=10) == 0:
            pass
    assert len(seen) == 20


async def test_a_replaced_timer_keeps_its_creation_and_goes_on_counting(store: Store) -> None:
    first = await finished(store)
    second = await running(store, if_exists="replace")
    assert (second.created_ms, second.occurrence) == (first.created_ms, 2)


@pytest.mark.parametrize("seconds", [0, -0.5, -3600])
@pytest.mark.parametrize("when", ["armed", "running", "ended", "removed"])
@pytest.mark.parametrize("how", ["purge", "retention", "retention 0"])
async def test_no_key_repeats_when_the_servers_clock_is_set_back(
    frozen: Store, clock: time_machine.Traveller, how: str, when: str, seconds: float
) -> None:
    """After each step the clock is set back, and then meets every millisecond of before again."""
    seen: list[str] = []
    for round_number in range(8):
        timer = await armed(frozen)
        clock.shift(seconds if when == "armed" else 0)
        clock.shift(max(0, timer.due_ms - await frozen.now_ms()) / 1000)  # never early
        (timer,) = await claim(frozen)
        clock.shift(seconds if when == "running" else 0)
        seen.append(timer.idempotency_key)
        await settle(frozen, an_end(timer), retention_ms=0 if how == "retention 0" else DAY_MS)
        clock.shift(seconds if when == "ended" else 0)
        if how == "purge":
            await frozen.cancel(PREFIX, "a", purge=True)
        if how == "retention":
            await prune(frozen, retention_ms=-DAY_MS, most=10)  # as if it was over
        assert await frozen.get([(PREFIX, "a")]) == [None]
        clock.shift(seconds if when == "removed" and round_number == 3 else 0)
        clock.shift(0.001 * (round_number % 2))
    assert len(set(seen)) == len(seen) == 8


async def test_a_timer_that_never_ran_leaves_the_tokens_alone(frozen: Store) -> None:
    await armed(frozen, due="+3600000")
    await frozen.cancel(PREFIX, "a", purge=True)
    assert await frozen.connections.commands.get("timers:{0}:token") is None


async def test_the_creation_is_what_the_arming_answers(frozen: Store) -> None:
    """Also where it is not the time of the server, because the clock was set back."""
    await frozen.connections.commands.set("timers:{0}:token", (await frozen.now_ms() + 5000) * 1000)
    timer = await armed(frozen)
    assert timer.created_ms == await frozen.now_ms() + 5000
    assert (await frozen.get([(PREFIX, "a")]))[0] == timer
    assert timer.status is Status.SCHEDULED
