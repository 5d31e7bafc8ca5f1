"""Membership: which pods are alive, what they tell each other, and what was ever declared."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import time_machine

from tests.store.acts import put_list
from tests.store.listening import wakes
from timers.errors import Unavailable
from timers.store import keys
from timers.store.membership import FORGET_AFTER_MS, INTRODUCE_BEATS, Declaration, Member, Membership, Roster
from timers.store.store import Store

ROOT = "timers:{pods}:"


def worker(pod: str, *processors: str, **said: object) -> Member:
    return Member(pod, roles=("worker",), processors=frozenset(processors), **said)  # type: ignore[arg-type]


def names(roster: Roster) -> list[str]:
    return sorted(member.pod for member in roster.members)


async def test_pods_learn_of_each_other_and_their_reports(store: Store) -> None:
    first = worker("a", "note", only=("note-ä",), shards=(0, 2), concurrency=7, lateness={3: 4}, notifications="ok")
    await Membership(store).beat(first)
    (alone,) = (await Membership(store).read()).members
    assert replace(alone, seen_ms=0) == first
    roster = await Membership(store).beat(worker("b"))
    assert {member.pod: member.concurrency for member in roster.members} == {"a": 7, "b": 0}
    read = await Membership(store).read()
    assert [replace(member, lateness={}, notifications="deaf") for member in read.members] == roster.members
    assert read.declared == roster.declared


async def test_the_newest_sign_counts(store: Store) -> None:
    membership = Membership(store)
    await membership.beat(Member("a", running=1))
    await membership.beat(Member("a", running=2, concurrency=3))
    await membership.beat(Member("a", running=2, concurrency=3))
    (sign,) = (await Membership(store).read()).members
    assert (sign.running, sign.concurrency) == (2, 3)


async def test_a_pod_that_comes_or_goes_sends_all_pods_for_the_news(real: Store) -> None:
    first, second = Membership(real), Membership(real)
    async with wakes(real, keys.PODS_ROOT) as heard:
        await first.beat(worker("a", "note"))
        await second.beat(worker("b"))
        assert await heard() == ["{pods} changed"] * 2
        await first.beat(worker("a", "note", running=1))
        assert await heard() == []
        await first.beat(worker("a", "note", "mail"))
        await second.leave("b")
        assert await heard() == ["{pods} changed"] * 2


async def test_a_beat_costs_the_same_however_many_pods_there_are(real: Store) -> None:
    crowd = [Membership(real) for _ in range(20)]
    for number, membership in enumerate(crowd):
        await membership.beat(worker(str(number), "note"))
    for membership in crowd[:2]:
        await membership.beat(worker(str(crowd.index(membership)), "note"))
    before, redis = await _traffic(real), real.connections.commands
    await redis.config_resetstat()
    await crowd[0].beat(worker("0", "note"))
    stats: Any = await redis.info("commandstats")
    assert sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_config|resetstat") <= 7
    assert await _traffic(real) - before < 1_000


async def test_a_sign_carries_the_servers_time(frozen: Store, clock: time_machine.Traveller) -> None:
    await Membership(frozen).beat(Member("a"))
    before_ms = await frozen.now_ms()
    clock.shift(1)
    roster = await Membership(frozen).beat(Member("b"))
    assert {member.pod: member.seen_ms for member in roster.members} == {"a": before_ms, "b": before_ms + 1000}


async def test_a_silent_pod_is_forgotten_by_the_others(frozen: Store, clock: time_machine.Traveller) -> None:
    await Membership(frozen).beat(worker("silent", "note"))
    clock.shift(FORGET_AFTER_MS / 1000)
    watching = Membership(frozen)
    assert names(await watching.beat(Member("a"))) == names(await watching.read()) == ["a", "silent"]
    clock.shift(0.001)
    assert names(await watching.read()) == ["a"]
    roster = await watching.beat(Member("a"))
    assert names(roster) == ["a"]
    assert list(roster.declared) == ["note"]
    assert await frozen.connections.commands.hkeys(f"{ROOT}cards") == [b"a"]
    assert await frozen.connections.commands.hkeys(f"{ROOT}states") == [b"a"]


async def test_a_pod_that_leaves_is_gone_at_once_and_its_declarations_stay(store: Store) -> None:
    first, second = Membership(store), Membership(store)
    await first.beat(worker("a", "note"))
    await second.beat(worker("b"))
    await first.leave("a")
    roster = await second.beat(worker("b"))
    assert (names(roster), {p: d.pod for p, d in roster.declared.items()}) == (["b"], {"note": "a"})
    await second.leave("b")
    left = await store.connections.commands.keys("*")
    assert sorted(left) == [f"{ROOT}declared".encode(), f"{ROOT}version".encode()]


async def test_reading_writes_nothing(real: Store) -> None:
    membership = Membership(real)
    assert not await membership.forget("note")
    assert (await membership.read()).members == []
    assert await membership.declared(Roster()) == Roster()
    assert await real.connections.commands.keys("*") == []


@pytest.mark.one_server
async def test_what_a_pod_is_and_what_is_declared_is_not_sent_at_every_beat(real: Store) -> None:
    """A thousand declared prefixes cost something at the first beat only."""
    prefixes = [f"prefix-{number}" for number in range(1000)]
    ours, other = Membership(real), Membership(real)
    await ours.beat(worker("a", *prefixes))
    await other.beat(worker("b"))
    await ours.beat(worker("a", *prefixes))
    before, roster = await _traffic(real), Roster()
    for _ in range(10):
        roster = await ours.beat(worker("a", *prefixes))
        assert len((await other.beat(worker("b"))).declared) == len(roster.declared) == 1000
    # Twenty beats, each with fewer bytes than the names alone.
    assert await _traffic(real) - before < 20 * 2_000
    assert roster.owner("prefix-999.x") == "prefix-999"
    assert [member.pod for member in roster.serving("prefix-999.x")] == ["a"]


async def _traffic(store: Store) -> int:
    """The bytes that the server has read and written."""
    stats: Any = await store.connections.commands.info("stats")
    return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])


async def test_declarations_are_read_again_only_when_they_have_changed(real: Store) -> None:
    pod, reader = Membership(real), Membership(real)
    await pod.beat(worker("a", "note"))
    known = await reader.declared(Roster())
    assert await reader.declared(known) is known
    await pod.beat(worker("a", "note", "mail"))
    assert set((await reader.declared(known)).declared) == {"note", "mail"}


async def test_a_declaration_that_was_cut_off_is_told_when_it_is_repeated(real: Store) -> None:
    """Redis had the prefix, and then the connection was lost. Pods ran its timers with the processor of a shorter
    one."""
    pod, by_hand = Membership(real), Membership(real)
    await pod.beat(worker("a", "note"))
    await real.connections.commands.hsetnx(f"{ROOT}declared", "note-daily", "1 b")
    assert not await by_hand.declare("note-daily", Declaration(1, "b"))
    assert (await pod.beat(worker("a", "note"))).owner("note-daily") == "note-daily"


async def test_a_create_just_after_data_was_lost_is_not_refused(real: Store) -> None:
    """A reader keeps what it knew until the pods have declared their prefixes again."""
    pod, reader = Membership(real), Membership(real)
    await pod.beat(worker("a", "note"))
    known = await reader.declared(Roster())
    await real.connections.commands.flushdb()
    assert await reader.declared(known) is known
    await pod.beat(worker("a", "note"))
    assert (await reader.declared(known)).version != known.version


async def test_a_pod_declares_again_what_was_lost(store: Store) -> None:
    """Lost for example by FLUSHDB, or by a forget between its start and its first sign of life."""
    membership, me = Membership(store), worker("a", "note")
    await membership.beat(me)
    await store.connections.commands.delete(f"{ROOT}seen", f"{ROOT}cards", f"{ROOT}declared", f"{ROOT}version")
    roster = await membership.beat(me)
    assert (names(roster), list(roster.declared)) == (["a"], ["note"])
    assert await membership.forget("note")
    assert list((await membership.beat(me)).declared) == ["note"]


async def test_after_data_was_lost_a_prefix_belongs_to_no_shorter_one(real: Store) -> None:
    """The pods that are there declare it again for the one that is away."""
    one, two, late = Membership(real), Membership(real), Membership(real)
    await two.beat(worker("two", "log-check"))
    for membership, name in ((one, "one"), (late, "late")):
        await membership.beat(worker(name, "log"))
    await real.connections.commands.flushdb()
    for membership, name in ((one, "one"), (late, "late"), (one, "one"), (Membership(real), "new")):
        assert (await membership.beat(worker(name, "log"))).owner("log-check") == "log-check"
    assert [member.pod for member in (await one.beat(worker("one", "log"))).serving("log-check")] == []
    await two.beat(worker("two", "log-check"))
    roster = await one.beat(worker("one", "log"))
    assert [member.pod for member in roster.serving("log-check")] == ["two"]
    assert roster.version == (await two.beat(worker("two", "log-check"))).version


async def test_what_was_lost_is_declared_after_a_beat_that_failed(real: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Membership(real)
    await Membership(real).beat(worker("two", "log-check"))
    await one.beat(worker("one", "log"))
    await real.connections.commands.flushdb()
    run, calls = real.run, 0

    async def fails_second(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Unavailable("away")
        return await run(*args)

    monkeypatch.setattr(real, "run", fails_second)
    with pytest.raises(Unavailable):
        await one.beat(worker("one", "log"))
    assert (await one.beat(worker("one", "log"))).owner("log-check") == "log-check"


async def test_a_declaration_taken_back_while_others_are_renewed_stays_away(store: Store) -> None:
    """A declaration is renewed without a word to others, so that nothing of what they know may be as it was."""
    gone, watching = Membership(store), Membership(store)
    await gone.beat(worker("gone", "log-check"))
    await watching.beat(worker("a", "log"))
    await gone.leave("gone")
    await Membership(store).beat(worker("b", "log"))  # renews it
    assert await watching.forget("log-check")
    for _ in range(2 * INTRODUCE_BEATS):
        assert (await watching.beat(worker("a", "log"))).owner("log-check") == "log"


async def test_a_declaration_is_taken_back(store: Store) -> None:
    gone, watching = Membership(store), Membership(store)
    await gone.beat(worker("gone", "log", "log-check"))
    await gone.leave("gone")
    roster = await watching.beat(worker("a", "log"))
    assert (roster.owner("log-check"), roster.serving("log-check")) == ("log-check", [])
    assert await watching.forget("log-check")
    assert not await watching.forget("log-check")
    roster = await watching.beat(worker("a", "log"))
    assert (roster.owner("log-check"), [member.pod for member in roster.serving("log-check")]) == ("log", ["a"])


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"nonsense", b"[1]", b"null", b'{"roles": 7}', b'{"lateness": {"x": 1}}', b'{"running": -1}', b"\xff"),
        *(b"[" * 10_000, b'{"shards": ["one"]}', b'{"concurrency": 1e400}', b'{"running": ' + b"9" * 5000 + b"}"),
    ],
)
@pytest.mark.parametrize("part", ["cards", "states"])
async def test_a_sign_that_cannot_be_read_stops_no_pod(store: Store, part: str, garbage: bytes) -> None:
    membership, me = Membership(store), worker("a", "note")
    await Membership(store).beat(worker("odd", "note"))
    await store.connections.commands.hset(f"{ROOT}{part}", "odd", garbage)
    assert names(await membership.beat(me)) == ["a", "odd"]
    for roster in (await membership.read(), *([await membership.beat(me)] if part == "cards" else [])):
        (odd,) = [member for member in roster.members if member.pod == "odd"]
        assert str(odd.trouble).startswith("its heartbeat cannot be read")
        assert json.dumps(odd.to_json())
        (own,) = [member for member in roster.members if member.pod == "a"]
        assert (own.works, own.trouble) == (True, None)


@pytest.mark.parametrize("score", ["inf", "-inf", 1e300, 0])
async def test_an_impossible_time_in_a_sign_stops_no_pod(store: Store, score: object) -> None:
    membership, me = Membership(store), worker("a", "note")
    strange: dict[bytes, Any] = {b"odd": score, b"\xff": score}
    await store.connections.commands.zadd(f"{ROOT}seen", strange)
    assert names(await membership.read()) == []
    assert names(await membership.beat(me)) == ["a"]
    assert await store.connections.commands.zcard(f"{ROOT}seen") == 1


async def test_a_foreign_declaration_stops_no_pod(store: Store) -> None:
    await store.connections.commands.hset(f"{ROOT}declared", mapping={b"\xff": b"1", "Bad": "x", "odd": b"\xff x"})
    roster = await Membership(store).beat(worker("a", "note"))
    assert {p: d.at_ms > 0 for p, d in roster.declared.items()} == {"odd": False, "note": True}


async def test_a_pod_with_an_empty_sign_is_still_alive(store: Store) -> None:
    await Membership(store).beat(worker("a", "note"))
    await store.connections.commands.delete(f"{ROOT}states", f"{ROOT}cards")
    roster = await Membership(store).beat(worker("b"))
    assert {member.pod: member.works for member in roster.members} == {"a": False, "b": True}


async def put_nothing(redis: Any, key: str) -> None:
    await redis.delete(key)


@pytest.mark.parametrize("put", [put_nothing, put_list])
async def test_a_registry_key_that_another_program_overwrote_was_lost_for_good(
    real: Store, put: Callable[[Any, str], Awaitable[None]]
) -> None:
    for name in ("seen", "states", "cards", "declared", "version"):
        pods, known = {pod: Membership(real) for pod in ("a", "b")}, Roster()
        for pod in "aba":  # then each has read that the other is there
            known = await pods[pod].beat(worker(pod, "note"))
        await put(real.connections.commands, f"{ROOT}{name}")
        await Membership(real).read()
        assert list((await Membership(real).declared(known)).declared) == ["note"], name
        for _ in range(INTRODUCE_BEATS):
            for pod, membership in pods.items():
                await membership.beat(worker(pod, "note"))
        roster = await Membership(real).read()
        assert [member.pod for member in roster.serving("note")] == ["a", "b"], name
        await real.connections.commands.flushdb()
