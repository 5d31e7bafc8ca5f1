"""Bare keys and pods: adoption, changes by key and by API, deletion, and expiry while no pod is alive."""

import asyncio
import math
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.core.explain import attempts
from timers.core.model import Status, Timer
from timers.core.spec import TimerChange
from timers.engine.peers import weight
from timers.store.keys import expired_channel
from timers.store.membership import ADOPT_EVERY
from timers.store.servers.connections import Connections

pytestmark = pytest.mark.every_server

EXPIRED = expired_channel(0)

HOUR_MS = 3_600_000
OFTEN_MS = 50
"""A scan so often that tests need not wait for it."""


async def adopted(fleet: Fleet, key: str, prefix: str = "note") -> Timer:
    """The timer of a bare key, once a pod has adopted it."""

    async def look() -> Timer | None:
        (timer,) = await fleet.store.get([(prefix, key)])
        return timer if timer is not None and timer.status is Status.SCHEDULED else None

    timer = await eventually(look, f"{prefix}:{key} is adopted")
    assert timer is not None
    return timer


async def adopted_soon(fleet: Fleet, value: str = "1", key: str = "x") -> Timer:
    """The timer of a key of a few seconds. First another key is adopted: from then on the pod scans often."""
    await fleet.redis.set("note:first", "1", px=HOUR_MS)
    await adopted(fleet, "first")
    await fleet.redis.set(f"note:{key}", value, px=4_000)
    return await adopted(fleet, key)


class TestChanges:
    async def test_a_change_of_an_adopted_timer_is_not_undone_by_the_next_scan(self, fleet: Fleet) -> None:
        calls = Calls()
        await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", '"from the key"', px=HOUR_MS)
        await adopted(fleet, "x")
        changed = await fleet.client.change("note", "x", TimerChange.parse({"payload": "from the API"}))

        async def gone() -> bool:
            return not await fleet.redis.exists("note:x")

        await eventually(gone, "the key is deleted")
        await fleet.redis.set("note:seen-after", "1", px=HOUR_MS)
        await adopted(fleet, "seen-after")
        timer = await fleet.client.get("note", "x")
        assert (timer.payload, timer.due_ms, timer.version) == ("from the API", changed.due_ms, changed.version)
        assert await fleet.redis.pttl("note:{0}:x") > 0

    @pytest.mark.parametrize("score", ["inf", "-inf", "1e300"])
    async def test_a_foreign_score_among_the_known_keys_stopped_the_adoption_of_all(
        self, fleet: Fleet, score: str
    ) -> None:
        await fleet.redis.zadd("timers:{0}:bare", {"note:odd": float(score), "note:x": float(score)})
        calls = Calls()
        await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", '"from the key"', px=HOUR_MS)
        assert (await adopted(fleet, "x")).payload == "from the key"
        await fleet.redis.set("note:odd", "1", px=1)
        await fleet.completed("odd")

    async def test_an_adopted_timer_is_on_time_though_its_key_is_looked_at_first(self, fleet: Fleet) -> None:
        """The look comes up to 200 ms before. A pod that stands still then misses it; the next key counts."""
        calls, missed = Calls(), ["created", "bare-adopted", "bare-expired"]
        causes = missed
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        keys = [f"x{number}" for number in range(10)]
        while causes == missed:
            key = keys[len(calls)]
            due_ms = (await adopted_soon(fleet, key=key)).due_ms
            timer = await fleet.completed(key)
            causes = [entry.cause for entry in timer.history[:-4:-1]]
            assert (timer.due_ms, calls.ids[-1]) == (due_ms, key)
            assert not await fleet.redis.exists(f"note:{key}")
        assert causes == ["created", "bare-adopted", "bare-due"]
        assert calls.ids == keys[: len(calls)]
        await until(lambda: pod.seen.bare_keys[-2:] == ["adopted", "ending"], "both are told")

    async def test_a_key_set_again_while_no_pod_was_there_does_not_fire_at_its_old_time(self, fleet: Fleet) -> None:
        """Its timer is overdue when pods start, and is not claimed before a pod has looked at the key."""
        calls = Calls()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        due_ms = (await adopted_soon(fleet)).due_ms
        await fleet.kill(pod)
        await fleet.redis.set("note:x", "2", px=HOUR_MS)
        await fleet_past(fleet, due_ms)
        await fleet.pod(calls, name="b", adopt_every_ms=OFTEN_MS)

        async def moved() -> Timer | None:
            timer = await fleet.client.get("note", "x")
            return timer if timer.due_ms > due_ms else None

        timer = await eventually(moved, "the timer has moved")
        assert (timer.payload, timer.status, len(calls)) == (2, Status.SCHEDULED, 0)

    async def test_a_key_that_expired_while_no_pod_was_there_fires(self, fleet: Fleet) -> None:
        calls = Calls()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        due_ms = (await adopted_soon(fleet, '"kept"')).due_ms
        await fleet.kill(pod)
        await fleet_past(fleet, due_ms)
        await fleet.redis.exists("note:x")
        await fleet.pod(calls, name="b", adopt_every_ms=None)
        timer = await fleet.completed("x")
        assert ([seen.payload for seen in calls.timers], timer.due_ms) == (["kept"], due_ms)

    async def test_a_key_set_again_with_a_shorter_life_fires_when_that_is_over(self, fleet: Fleet) -> None:
        """Without a payload: nobody has read what it was, and what it was before would be the wrong message."""
        calls = Calls()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await until(pod.hears, "it hears")
        await fleet.redis.set("note:x", '{"n":1}', px=HOUR_MS)
        await adopted(fleet, "x")
        await fleet.redis.set("note:x", '{"n":2}', px=1)
        timer = await fleet.completed("x")
        assert [seen.payload for seen in calls.timers] == [None]
        assert timer.occurrence == 1
        (attempt,) = attempts(timer.history)
        assert (attempt.event_ms or 0) + (attempt.claim_ms or 0) == attempt.waited_ms
        assert timer.history[0].to_json()["run_ms"] == attempt.run_ms

    async def test_short_lives_right_after_the_end_of_an_adopted_key_fire(self, fleet: Fleet) -> None:
        """A pod that had read the end of the first took the next for it, for as long as five seconds."""
        calls = Calls()
        pods = [await fleet.pod(calls, name=name, adopt_every_ms=OFTEN_MS) for name in "ab"]
        for pod in pods:
            await until(pod.hears, "it hears")
        await fleet.redis.set("note:x", '"adopted"', px=HOUR_MS)
        await adopted(fleet, "x")
        for times in (1, 2, 3):
            await fleet.redis.set("note:x", '"short"', px=1)

            async def has_run(times: int = times) -> bool:
                timer = await fleet.client.get("note", "x")
                return (timer.occurrence, timer.status) == (times, Status.COMPLETED)

            await eventually(has_run, f"life {times} has run")
        assert [seen.payload for seen in calls.timers] == [None] * 3

    async def test_an_expiry_reported_late_does_not_fire_a_key_set_since(self, fleet: Fleet) -> None:
        """SET of a key that is due but not yet deleted announces the old key; a scan may be faster than the event."""
        calls = Calls()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", "2", px=HOUR_MS)
        timer = await adopted(fleet, "x")
        await until(pod.hears, "it hears")
        assert await fleet.redis.publish(EXPIRED, "note:x") == 1
        await fleet.redis.set("note:told-after", "1", px=1)
        await fleet.completed("told-after")
        assert await fleet.client.get("note", "x") == timer
        assert calls.ids == ["told-after"]

    @pytest.mark.parametrize("is_there", [False, True])
    async def test_a_short_life_after_a_change_that_was_read_late_fires(self, fleet: Fleet, *, is_there: bool) -> None:
        """A key that was deleted or extended just before its deadline, and read after it, counts as expired. The next
        expiry of its name counted as that one, until the next canary."""
        calls = Calls()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS, canary_every_seconds=HOUR_MS)
        await until(lambda: math.isfinite(pod.worker.health().lag_seconds), "the canary of its start has come")
        await fleet.redis.set("note:x", '"first"', px=HOUR_MS)
        await adopted(fleet, "x")
        async with fleet.redis.pubsub() as listener, fleet.redis.pipeline() as read_late:
            await listener.subscribe(EXPIRED)
            read_late.zadd("timers:{0}:bare", {"note:x": await fleet.store.now_ms() - 1_000})
            if is_there:
                read_late.set("note:x", '"moved"', px=2 * HOUR_MS)
            else:
                read_late.delete("note:x")
            await read_late.execute()

            async def answered_ms() -> int:
                found = await fleet.redis.get("timers:{0}:answered:note:x")
                return int(found.split()[1]) if found else 0

            after_ms = await eventually(answered_ms, "it counts as expired")
            async with asyncio.timeout(DEADLINE_SECONDS):
                async for message in listener.listen():
                    if message["type"] == "message" and _canary_ms(message["data"]) > after_ms:
                        break
        for times in (1, 2) if is_there else (2, 3):
            await fleet.redis.set("note:x", '"short"', px=1)

            async def has_run(times: int = times) -> bool:
                timer = await fleet.client.get("note", "x")
                return (timer.occurrence, timer.status) == (times, Status.COMPLETED)

            await eventually(has_run, f"life {times} has run")
        assert [seen.payload for seen in calls.timers] == [*([] if is_there else ["first"]), None, None]


def _canary_ms(key: bytes) -> int:
    """When a canary expired; 0 for other keys."""
    return int(key.rpartition(b":")[2]) if key.startswith(b"timers:canary:") else 0


class TestDuringARun:
    @pytest.mark.parametrize("dies", [False, True])
    async def test_a_key_that_is_found_and_expires_during_a_run_fires_after_it_with_its_value(
        self, fleet: Fleet, *, dies: bool
    ) -> None:
        """Its value was lost; and if no pod heard that it expired, the key was lost."""
        calls = Held()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await until(pod.hears, "it hears")
        await fleet.redis.set("note:x", "1", px=1)
        await until(lambda: len(calls) == 1, "it runs")
        await fleet.redis.set("note:x", '"second"', px=1_000)

        async def remembered() -> bool:
            return bool(await fleet.redis.hexists("timers:{0}:meanwhile", "note:x"))

        await eventually(remembered, "the key is remembered")
        if dies:
            await fleet.kill(pod)

        async def gone() -> bool:
            return not await fleet.redis.exists("note:x")

        await eventually(gone, "the key has expired")
        calls.release.set()
        if dies:
            await fleet.pod(calls, name="b", adopt_every_ms=OFTEN_MS)
            await fleet.expire_lease("x")
        await until(lambda: calls.timers[-1].payload == "second", "it fires")
        timer = await fleet.completed("x")
        assert [seen.payload for seen in calls.timers] == [None] * (1 + dies) + ["second"]
        assert timer.occurrence == 2

    async def test_a_key_that_is_deleted_during_a_run_does_not_fire(self, fleet: Fleet) -> None:
        calls = Held()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await until(pod.hears, "it hears")
        await fleet.redis.set("note:x", "1", px=1)
        await until(lambda: len(calls) == 1, "it runs")
        await fleet.redis.set("note:x", '"second"', px=HOUR_MS)

        async def remembered() -> bool:
            return bool(await fleet.redis.hexists("timers:{0}:meanwhile", "note:x"))

        await eventually(remembered, "the key is remembered")
        await fleet.redis.delete("note:x")

        async def forgotten() -> bool:
            return not await remembered()

        await eventually(forgotten, "the key is forgotten")
        calls.release.set()
        assert (await fleet.completed("x")).occurrence == 1


class TestForged:
    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.CANCELLED, Status.COMPLETED])
    async def test_a_forged_expiry_does_not_run_a_timer_of_the_api(self, fleet: Fleet, status: Status) -> None:
        """A scheduled one ran at once and a cancelled one was revived, both with the payload `null`."""
        calls = Calls()
        pod = await fleet.pod(calls)
        await until(pod.hears, "it hears")
        await fleet.client.create("note", "x", delay="0s" if status is Status.COMPLETED else "24h", payload=1)
        if status is Status.CANCELLED:
            await fleet.client.cancel("note", "x")
        timer = await fleet.reached(status, "x")
        ran = len(calls)
        assert await fleet.redis.publish(EXPIRED, "note:x") == 1
        await until(lambda: set(pod.seen.bare_keys) == {"refused"}, "it is refused")
        assert (await fleet.client.get("note", "x"), len(calls)) == (timer, ran)

    async def test_a_forged_expiry_takes_no_occurrence_from_a_repeat(self, fleet: Fleet) -> None:
        calls = Calls()
        pod = await fleet.pod(calls)
        await until(pod.hears, "it hears")
        timer = await fleet.client.create("note", "x", delay="1h", repeat={"every": "1h", "count": 3})
        assert await fleet.redis.publish(EXPIRED, "note:x") == 1
        await until(lambda: set(pod.seen.bare_keys) == {"refused"}, "it is refused")
        assert await fleet.client.get("note", "x") == timer

    async def test_a_forged_expiry_without_a_timer_starts_a_new_one_without_payload(self, fleet: Fleet) -> None:
        """What is left, as SECURITY.md says: nobody can tell it from the expiry of a key."""
        calls = Calls()
        pod = await fleet.pod(calls)
        await until(pod.hears, "it hears")
        assert await fleet.redis.publish(EXPIRED, "note:new") == 1
        assert (await fleet.completed("new")).payload is None


class TestOnce:
    async def test_a_pod_that_stands_still_as_it_subscribes_fires_no_key_again(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It took what came before it read the confirmation for news, though another pod had answered it."""
        calls, let_go = Calls(), asyncio.Event()
        pod = await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", "1", px=HOUR_MS)
        await adopted(fleet, "x")
        monkeypatch.setattr(Connections, "dial", _reading_once(let_go, Connections.dial))
        slow = await fleet.pod(calls, name="b", adopt_every_ms=HOUR_MS)

        async def subscribed() -> bool:
            return bool((await fleet.redis.pubsub_numsub(EXPIRED))[0][1] == 2)

        await eventually(subscribed, "both have subscribed")
        await fleet.redis.set("note:x", "1", px=1)
        await fleet.completed("x")
        await fleet.drain(pod)
        await until(lambda: len(slow.worker.peers.members) == 1, "nobody else is left")
        await fleet.redis.set("note:told-after", "1", px=1)
        let_go.set()
        await fleet.completed("told-after")
        assert calls.ids == ["x", "told-after"]


class TestSubscription:
    async def test_a_pod_is_not_ready_before_it_has_subscribed(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another pod ended as soon as this one was ready, and the bare keys that expired in between were lost."""
        let_go = asyncio.Event()
        monkeypatch.setattr(Connections, "dial", _reading_once(let_go, Connections.dial))
        pod = await fleet.pod(Calls())

        async def subscribed() -> bool:
            return bool((await fleet.redis.pubsub_numsub(EXPIRED))[0][1])

        await eventually(subscribed, "it has asked for its subscription")
        health = pod.worker.health()
        (problem,) = health.problems
        assert (health.ready, problem[:19], problem[-16:]) == (False, "no subscription to ", "'s notifications")
        let_go.set()
        await until(lambda: pod.worker.health().ready, "it is ready")

    async def test_a_cut_subscription_is_followed_by_a_scan(self, fleet: Fleet) -> None:
        """Keys that expire while no pod hears are lost, unless a scan has found them."""
        pod = await fleet.pod(Calls(), adopt_every_ms=HOUR_MS)
        await until(pod.hears, "it hears")
        for key in ("first", "second"):
            await fleet.redis.set(f"note:{key}", "1", px=HOUR_MS)
            await fleet.redis.client_kill_filter(_type="pubsub")
            await adopted(fleet, key)


def _reading_once(let_go: asyncio.Event, dial: Callable[[Connections], Any]) -> Callable[[Connections], Any]:
    """Connections that read nothing after a SUBSCRIBE before the test lets them go."""

    def dialled(connections: Connections) -> Any:
        connection = dial(connections)
        send, read = connection.send_command, connection.read_response

        async def reads(*given: Any, **more: Any) -> Any:
            await let_go.wait()
            return await read(*given, **more)

        async def sends(*words: Any, **more: Any) -> None:
            await send(*words, **more)
            if words[0] == "SUBSCRIBE":
                connection.read_response = reads

        connection.send_command = sends
        return connection

    return dialled


async def fleet_past(fleet: Fleet, at_ms: int) -> None:
    """Wait until the server's clock is past this time."""

    async def over() -> bool:
        return await fleet.store.now_ms() > at_ms

    await eventually(over, "its time is over")


class TestOff:
    async def test_switched_off_no_key_is_adopted_nor_fires(self, fleet: Fleet) -> None:
        calls = Calls()
        await fleet.redis.set("note:long", "1", px=HOUR_MS)
        pod = await fleet.pod(calls, adopt_every_ms=None)
        await until(pod.hears, "it hears")
        assert await fleet.redis.publish(EXPIRED, "note:short") == 1
        await fleet.client.create("note", "armed", delay="0s")
        await fleet.completed("armed")
        assert await fleet.store.get([("note", "long"), ("note", "short")]) == [None, None]
        assert "bare-expired" not in pod.worker.health().services

    async def test_a_pod_that_is_switched_off_keeps_no_other_from_adopting(self, fleet: Fleet) -> None:
        """Of all pods, it would lead."""
        second, first = sorted(["a", "b"], key=lambda name: weight(zlib.crc32(name.encode()), 0))
        await fleet.pod(Calls(), name=first, adopt_every_ms=None, settings={ADOPT_EVERY: "off"})
        await fleet.pod(Calls(), name=second, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", "1", px=HOUR_MS)
        await adopted(fleet, "x")
