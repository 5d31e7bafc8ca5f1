"""The driver's calls to the service. The witness gets a line before each call, and one with its answer."""

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.chaos.over_http import HttpClient
from tests.chaos.over_http import Made as OverHttp
from tests.chaos.processors import PREFIX, Behaviour, prefix_of
from tests.chaos.witness import Event, Kind, Made, Verb, Witness
from timers import NewTimer, Status, TimerClient, TimersError
from timers.client import Armed
from timers.core.policies import Repeat
from timers.errors import AlreadyExists, LedgerUnavailable, Refused, Unavailable

BATCH: Final = 500
TRIES: Final = 50
TRY_AGAIN_S: Final = 0.2
REPEAT_EVERY: Final = "700ms"

BareChange = Literal["", "set", "short", "deleted"]
"""What becomes of a bare key before its end: nothing, it is set again for long or for a short time, it is deleted."""

_LONGER_MS: Final = 3_000
"""How long a key lives that is set again."""

_SHORTER_MS: Final = 200
"""How long, if no scan is to find it."""

LOOK_BEFORE_S: Final = 0.5
"""How long before it expires a bare key is to be a timer that can be read, if it counts as created."""


class Calls:
    """A client that reports each call to the witness. Timers are named by their id, which says their prefix too."""

    def __init__(self, client: TimerClient | HttpClient, redis: Redis, witness: Witness) -> None:
        self._client: Any = client
        self._redis = redis
        self._witness = witness

    async def create_all(self, wanted: Sequence[tuple[str, int, Behaviour]]) -> None:
        """Arms timers (id, due in epoch ms, behaviour), in batches."""
        for start in range(0, len(wanted), BATCH):
            await self._create_batch(wanted[start : start + BATCH])

    async def _create_batch(self, wanted: Sequence[tuple[str, int, Behaviour]]) -> bool:
        """Returns False if nobody knows whether it took effect."""
        news = [new_timer(timer_id, due_ms, behaviour) for timer_id, due_ms, behaviour in wanted]
        calls = [
            self._witness.invoke(
                Verb.CREATE, named(timer_id), due_ms=due_ms, slots=behaviour.get("slots", 0), if_exists="error"
            )
            for timer_id, due_ms, behaviour in wanted
        ]
        try:
            results = await self._client.batch(news)
        except (Unavailable, LedgerUnavailable) as error:
            for call in calls:
                self._witness.answer(call, Kind.INFO, type(error).__name__)
            return False
        for call, result in zip(calls, results, strict=True):
            self._answer_create(call, result)
        return True

    def _answer_create(self, call: Event, result: Armed | OverHttp | TimersError) -> None:
        if isinstance(result, Armed | OverHttp):
            self._witness.answer(call, Kind.OK, Made(result.how))
        else:
            refusal = Made.EXISTS if isinstance(result, AlreadyExists) else Made.REFUSED
            self._witness.answer(call, Kind.FAIL, refusal)

    async def create(self, timer_id: str, due_ms: int, behaviour: Behaviour) -> None:
        """Arms one timer."""
        await self._create_batch([(timer_id, due_ms, behaviour)])

    async def create_surely(self, timer_id: str, due_ms: int, behaviour: Behaviour) -> None:
        """Arms one timer by one of two strict creates in a batch, and repeats both as long as nobody knows whether they
        took effect."""
        for _ in range(TRIES):
            if await self._create_batch([(timer_id, due_ms, behaviour)] * 2):
                return
            await asyncio.sleep(TRY_AGAIN_S)

    async def create_and_cancel(self, timer_id: str, due_ms: int, behaviour: Behaviour) -> None:
        """Arms one timer as `create_surely`, and cancels it as soon as that is known: the service may still be about to
        arm it. Repeats the cancel as long as nobody knows whether it took effect."""
        await self.create_surely(timer_id, due_ms, behaviour)
        for _ in range(TRIES):
            if await self.cancel(timer_id):
                return
            await asyncio.sleep(TRY_AGAIN_S)

    async def set_bare(self, timer_id: str, life_ms: int, behaviour: Behaviour, change: BareChange = "") -> None:
        """Sets a bare key as any client may, and checks shortly before its end whether it was adopted: only then is it
        certain to fire, because a lost event loses a key that no pod has seen. After a third of its life it may be set
        again or deleted. Returns when the key is gone."""
        key, due_ms = f"{PREFIX}:{timer_id}", _now_ms() + life_ms
        call = self._witness.invoke(Verb.CREATE, named(timer_id), due_ms=due_ms, slots=1, if_exists="replace")
        adopted = False
        with suppress(RedisError, TimersError):
            await self._redis.set(key, json.dumps(behaviour), px=life_ms)
            if change:
                await asyncio.sleep(life_ms / 3000)
                changes = {"set": self._set_again, "short": self._set_shortly, "deleted": self._delete}
                due_ms = await changes[change](timer_id, key, due_ms, behaviour)
            await asyncio.sleep((due_ms - _now_ms()) / 1000 - LOOK_BEFORE_S)
            # A scan may not have seen yet that the key was set again, also to an earlier time.
            ends_ms = await self._redis.pexpiretime(key)
            adopted = (await self._client.get(PREFIX, timer_id)).due_ms == ends_ms
        self._witness.answer(call, Kind.OK if adopted else Kind.INFO, Made.CREATED if adopted else "")
        await asyncio.sleep(2 * LOOK_BEFORE_S)
        await self._gone(key)

    async def _set_again(self, timer_id: str, key: str, due_ms: int, behaviour: Behaviour) -> int:
        """Set the key again if it is there still, which moves its timer. Returns when it is due now."""
        later_ms = _now_ms() + _LONGER_MS
        call = self._witness.invoke(Verb.RESCHEDULE, named(timer_id), due_ms=later_ms)
        kind, is_set = Kind.INFO, False
        try:
            is_set = bool(await self._redis.set(key, json.dumps(behaviour), px=_LONGER_MS, xx=True))
            kind = Kind.OK if is_set else Kind.FAIL
        finally:
            self._witness.answer(call, kind, Made.SET if is_set else "")
        return later_ms if is_set else due_ms

    async def _set_shortly(self, timer_id: str, key: str, due_ms: int, behaviour: Behaviour) -> int:
        """Set the key again, if it is there still, to end before a scan. Its event starts it then; if that is lost, the
        key counts as deleted. Returns when it is due now."""
        soon_ms = _now_ms() + _SHORTER_MS
        calls = [
            self._witness.invoke(Verb.RESCHEDULE, named(timer_id), due_ms=soon_ms),
            self._witness.invoke(Verb.CANCEL, named(timer_id)),
        ]
        try:
            is_set = bool(await self._redis.set(key, json.dumps(behaviour), px=_SHORTER_MS, xx=True))
        finally:
            for call in calls:
                self._witness.answer(call, Kind.INFO)
        return soon_ms if is_set else due_ms

    async def _delete(self, timer_id: str, key: str, due_ms: int, _: Behaviour) -> int:
        """Delete the key. Its timer counts as cancelled once the service says so before its time: a pod that looks
        later cannot tell a key that was deleted from one that has expired."""
        call = self._witness.invoke(Verb.CANCEL, named(timer_id))
        kind = Kind.INFO
        try:
            await self._redis.delete(key)
            while kind is Kind.INFO and _now_ms() < due_ms - LOOK_BEFORE_S * 1000:
                await asyncio.sleep(TRY_AGAIN_S)
                kind = Kind.OK if await self._is_cancelled(timer_id) else Kind.INFO
        finally:
            self._witness.answer(call, kind)
        return due_ms

    async def _is_cancelled(self, timer_id: str) -> bool:
        return bool((await self._client.get(PREFIX, timer_id)).status is Status.CANCELLED)

    async def _gone(self, key: str) -> None:
        """Waits until the key is gone. Asks only after its end, because asking makes Redis expire a key that is due."""
        while True:
            with suppress(RedisError):
                if not await self._redis.exists(key):
                    return
            await asyncio.sleep(TRY_AGAIN_S)

    async def cancel(self, timer_id: str) -> bool:
        """Cancels a timer if it still can be. Returns False if nobody knows whether it took effect."""
        call = self._witness.invoke(Verb.CANCEL, named(timer_id))
        return await self._answered(call, self._client.cancel(prefix_of(timer_id), timer_id))

    async def reschedule(self, timer_id: str, due_ms: int) -> None:
        """Moves a timer's due time if it still can be moved."""
        call = self._witness.invoke(Verb.RESCHEDULE, named(timer_id), due_ms=due_ms)
        await self._answered(call, self._client.reschedule(prefix_of(timer_id), timer_id, due_at=due_ms))

    async def retry(self, timer_id: str) -> None:
        """Arms a failed or cancelled timer again, due now."""
        call = self._witness.invoke(Verb.RETRY, named(timer_id))
        await self._answered(call, self._client.retry(prefix_of(timer_id), timer_id))

    async def _answered(self, call: Event, answer: Awaitable[object]) -> bool:
        try:
            await answer
        except Refused as error:
            self._witness.answer(call, Kind.FAIL, type(error).__name__)
        except (Unavailable, LedgerUnavailable) as error:
            self._witness.answer(call, Kind.INFO, type(error).__name__)
            return False
        else:
            self._witness.answer(call, Kind.OK)
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def named(timer_id: str) -> str:
    """The timer's name in the history."""
    return f"{prefix_of(timer_id)}/{timer_id}"


def new_timer(timer_id: str, due_ms: int, behaviour: Behaviour) -> NewTimer:
    """A strict create of one timer."""
    slots = behaviour.get("slots")
    repeat = None if slots is None else Repeat(every=REPEAT_EVERY, count=slots)
    return NewTimer(prefix=prefix_of(timer_id), id=timer_id, due_at=due_ms, payload=behaviour, repeat=repeat)
