"""The driver's calls to the service. The witness gets a line before each call, and one with its answer."""

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.chaos.over_http import HttpClient
from tests.chaos.over_http import Made as OverHttp
from tests.chaos.processors import PREFIX, Behaviour, prefix_of
from tests.chaos.witness import Event, Kind, Made, Verb, Witness
from timers import NewTimer, TimerClient, TimersError
from timers.client import Armed
from timers.core.policies import Repeat
from timers.errors import AlreadyExists, LedgerUnavailable, Refused, Unavailable

BATCH: Final = 500
TRIES: Final = 50
TRY_AGAIN_S: Final = 0.2
REPEAT_EVERY: Final = "700ms"

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
        """Arms one timer, and repeats the same strict create as long as nobody knows whether it took effect."""
        for _ in range(TRIES):
            if await self._create_batch([(timer_id, due_ms, behaviour)]):
                return
            await asyncio.sleep(TRY_AGAIN_S)

    async def set_bare(self, timer_id: str, life_ms: int, behaviour: Behaviour) -> None:
        """Sets a bare key as any client may, and checks shortly before its end whether it was adopted: only then
        is it certain to fire, because a lost event loses a key that no pod has seen. Returns when the key is gone."""
        key, due_ms = f"{PREFIX}:{timer_id}", time.time_ns() // 1_000_000 + life_ms
        call = self._witness.invoke(Verb.CREATE, named(timer_id), due_ms=due_ms, slots=1, if_exists="replace")
        adopted = False
        with suppress(RedisError, TimersError):
            await self._redis.set(key, json.dumps(behaviour), px=life_ms)
            await asyncio.sleep(life_ms / 1000 - LOOK_BEFORE_S)
            adopted = (await self._client.get(PREFIX, timer_id)).due_ms >= due_ms
        self._witness.answer(call, Kind.OK if adopted else Kind.INFO, Made.CREATED if adopted else "")
        await asyncio.sleep(2 * LOOK_BEFORE_S)
        await self._gone(key)

    async def _gone(self, key: str) -> None:
        """Waits until the key is gone. Asks only after its end, because asking makes Redis expire a key that is due."""
        while True:
            with suppress(RedisError):
                if not await self._redis.exists(key):
                    return
            await asyncio.sleep(TRY_AGAIN_S)

    async def cancel(self, timer_id: str) -> None:
        """Cancels a timer if it still can be."""
        call = self._witness.invoke(Verb.CANCEL, named(timer_id))
        await self._answered(call, self._client.cancel(prefix_of(timer_id), timer_id))

    async def reschedule(self, timer_id: str, due_ms: int) -> None:
        """Moves a timer's due time if it still can be moved."""
        call = self._witness.invoke(Verb.RESCHEDULE, named(timer_id), due_ms=due_ms)
        await self._answered(call, self._client.reschedule(prefix_of(timer_id), timer_id, due_at=due_ms))

    async def retry(self, timer_id: str) -> None:
        """Arms a failed or cancelled timer again, due now."""
        call = self._witness.invoke(Verb.RETRY, named(timer_id))
        await self._answered(call, self._client.retry(prefix_of(timer_id), timer_id))

    async def _answered(self, call: Event, answer: Awaitable[object]) -> None:
        try:
            await answer
        except Refused as error:
            self._witness.answer(call, Kind.FAIL, type(error).__name__)
        except (Unavailable, LedgerUnavailable) as error:
            self._witness.answer(call, Kind.INFO, type(error).__name__)
        else:
            self._witness.answer(call, Kind.OK)


def named(timer_id: str) -> str:
    """The timer's name in the history."""
    return f"{prefix_of(timer_id)}/{timer_id}"


def new_timer(timer_id: str, due_ms: int, behaviour: Behaviour) -> NewTimer:
    """A strict create of one timer."""
    slots = behaviour.get("slots")
    repeat = None if slots is None else Repeat(every=REPEAT_EVERY, count=slots)
    return NewTimer(prefix=prefix_of(timer_id), id=timer_id, due_at=due_ms, payload=behaviour, repeat=repeat)
