"""beat: who is alive, as pods tell each other."""

import time_machine

from timers.store.store import PodSign, Store

FORGET_MS = 4000


async def beat(store: Store, pod: str, **info: object) -> list[PodSign]:
    return await store.beat(pod, info, forget_after_ms=FORGET_MS)


async def test_pods_learn_of_each_other_and_what_they_say(store: Store) -> None:
    (first,) = await beat(store, "a", roles=["worker"])
    assert (first.pod, first.info) == ("a", {"roles": ["worker"]})
    signs = await beat(store, "b", text="ä \n")
    assert {sign.pod: sign.info for sign in signs} == {"a": {"roles": ["worker"]}, "b": {"text": "ä \n"}}


async def test_the_newest_words_count(store: Store) -> None:
    await beat(store, "a", running=1)
    (sign,) = await beat(store, "a", running=2)
    assert sign.info == {"running": 2}


async def test_a_sign_carries_the_servers_time(frozen: Store, clock: time_machine.Traveller) -> None:
    await beat(frozen, "a")
    before_ms = await frozen.now_ms()
    clock.shift(1)
    signs = await beat(frozen, "b")
    assert {sign.pod: sign.seen_ms for sign in signs} == {"a": before_ms, "b": before_ms + 1000}


async def test_a_silent_pod_is_forgotten_by_the_others(frozen: Store, clock: time_machine.Traveller) -> None:
    await beat(frozen, "silent")
    clock.shift(FORGET_MS / 1000)
    assert [sign.pod for sign in await beat(frozen, "a")] == ["silent", "a"]
    clock.shift(0.001)
    assert [sign.pod for sign in await beat(frozen, "a")] == ["a"]
    assert await frozen.connections.commands.hkeys("timers:{pods}:info") == [b"a"]


async def test_a_pod_that_leaves_is_gone_at_once(store: Store) -> None:
    await beat(store, "a")
    await beat(store, "b")
    assert [sign.pod for sign in await store.beat("a", None, forget_after_ms=FORGET_MS)] == ["b"]
    assert await store.beat("b", None, forget_after_ms=FORGET_MS) == []
    assert await store.connections.commands.keys("*") == []


async def test_a_pod_without_words_is_still_alive(store: Store) -> None:
    await beat(store, "a")
    await store.connections.commands.delete("timers:{pods}:info")
    assert {sign.pod: sign.info for sign in await beat(store, "b", x=1)} == {"a": {}, "b": {"x": 1}}
