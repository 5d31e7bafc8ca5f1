"""Fencing tokens: an identity's tokens only rise, whatever happens to the timer or the data."""

import pytest

from tests.store.acts import OTHER, PREFIX, an_end, armed, arming, claim, finished, lease_ended, running, settle
from timers.core.model import Status
from timers.store.store import Store

TOKEN = "timers:{0}:token"


async def test_they_rise_over_rescues_occurrences_and_replacements(store: Store) -> None:
    first = await running(store, lease_ms=1)
    await lease_ended(store, first)
    (rescued,) = (await store.rescue(0, [(PREFIX, "a")], pod=OTHER, lease_ms=30_000)).timers
    await settle(store, an_end(rescued, Status.SCHEDULED, due_ms=rescued.due_ms, occurrence=2))
    (second,) = await claim(store)
    await settle(store, an_end(second))
    replaced = await running(store, if_exists="replace")
    tokens = [first.token, rescued.token, second.token, replaced.token]
    assert tokens == sorted(set(tokens))


async def test_they_rise_over_purge_and_re_creation(store: Store) -> None:
    first = await running(store)
    await settle(store, an_end(first))
    await store.cancel(PREFIX, "a", purge=True)
    assert (await running(store)).token > first.token


async def test_they_rise_over_retention_0(store: Store) -> None:
    first = await running(store)
    await settle(store, an_end(first), retention_ms=0)
    assert (await running(store)).token > first.token


async def test_a_replaced_timer_keeps_its_token_until_the_next_claim(store: Store) -> None:
    before = await finished(store)
    assert (await armed(store, if_exists="replace", due="+3600000")).token == before.token


async def test_timers_of_one_claim_have_tokens_in_their_order(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(100)])
    tokens = [timer.token for timer in await claim(store, 100)]
    assert tokens == list(range(tokens[0], tokens[0] + 100))


async def test_after_a_loss_of_all_data_they_jump_up(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(100)])
    highest = max(timer.token for timer in await claim(store, 100))
    await store.connections.commands.flushdb()
    await store.arm([arming(str(i)) for i in range(100)])
    assert min(timer.token for timer in await claim(store, 100)) > highest


async def test_after_the_loss_of_the_counter_alone_they_jump_up(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(3)])
    first = await claim(store, 2)
    await store.connections.commands.delete(TOKEN)
    (third,) = await claim(store)
    assert third.token > first[-1].token


async def test_no_token_is_given_twice_after_the_server_lost_its_last_second(store: Store) -> None:
    """The counter goes back with the data. A run that the server has forgotten must not look like its successor."""
    redis = store.connections.commands
    await store.arm([arming(str(i)) for i in range(100)])
    await claim(store, 50)
    kept = await redis.get(TOKEN)
    lost = {timer.token for timer in await claim(store, 49)}
    assert kept is not None
    await redis.set(TOKEN, kept)
    (after,) = await claim(store)
    assert after.token > max(lost)


@pytest.mark.parametrize("garbage", ["", "token", "-5", "inf", "nan", "9007199254740992", "9223372036854775807"])
async def test_a_counter_that_is_no_number_stops_no_claim(store: Store, garbage: str) -> None:
    first = await running(store)
    await store.connections.commands.set(TOKEN, garbage)
    await store.arm([arming("b"), arming("c")])
    second, third = await claim(store, 2)
    assert first.token < second.token < third.token < 2**53


async def test_a_counter_of_another_type_stops_no_claim(store: Store) -> None:
    await store.connections.commands.rpush(TOKEN, "foreign")
    assert (await running(store)).token > 0


async def test_a_counter_ahead_of_the_clock_counts_on(store: Store) -> None:
    """For example after the server's clock was set back."""
    ahead = (await store.now_ms() + 3_600_000) * 1000
    await store.connections.commands.set(TOKEN, ahead)
    assert (await running(store)).token == ahead + 1


async def test_a_new_counter_starts_at_the_servers_microseconds(frozen: Store) -> None:
    timer = await running(frozen)
    assert timer.token - 1 == await frozen.now_ms() * 1000
    assert timer.token < 2**53
