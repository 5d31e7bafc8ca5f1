"""Owns what is measured of a peer, on servers of its own."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from redis.asyncio import Redis

from tests.bench.memory import settled_memory
from tests.bench.peers.adapters.orders import CHUNK, Order
from tests.bench.peers.catalogue import Peer
from tests.bench.peers.crew import AdapterFailed, Crew
from tests.bench.peers.figures import YARDSTICK, Figure, drained_per_s
from tests.bench.references import pipelined_set_per_s
from tests.bench.starts import Lateness
from tests.bench.usage import Usage
from tests.chaos.pods import until
from tests.servers import free_port, start_server

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
READY_TIMEOUT_S: Final = 90.0
SPREAD_S: Final = 10.0
LEAD_S: Final = 4.0
"""Before the first job is due, besides the time that arming takes."""
RESERVES: Final = (1.5, 4.0)
"""How many times the time that arming took before is left for it, at the first try and at the next."""
CAP_S: Final = 30.0
"""How long a drain is watched."""
LATE_TIMEOUT_S: Final = 60.0
WARM_UP: Final = 2 * CHUNK
CALM_S: Final = 10.0
IDLE_S: Final = 20.0
LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Setting:
    """How the server keeps data, and whether the peers keep what has ended."""

    name: str
    title: str
    kept: bool
    options: tuple[str, ...]


SETTINGS: Final = (
    Setting("a", "nothing persisted, nothing kept once it has ended", False, ("--appendonly", "no")),
    Setting("b", "append-only file (everysec), kept as long as the peer does by default", True, ()),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs."""

    burst: int = 20_000
    single: int = 5_000
    timed: int = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """A fresh server, and the programs of one peer on it."""

    peer: Peer
    redis: Redis
    crew: Crew
    numbers: "count[int]"

    async def arm(
        self,
        way: Literal["bulk", "single"],
        job: Literal["noop", "timed"],
        jobs: int,
        first_ms: float,
        over_ms: float,
        *,
        warm_up: int = 0,
    ) -> float:
        """Arm `warm_up` jobs, then so many, with ids that nothing has used yet; answers the seconds for the latter."""
        tag = f"peers-{next(self.numbers):04}-"
        return await self.crew.arm(Order(way, job, tag, warm_up + jobs, first_ms, over_ms, warm_up))

    @property
    def fastest(self) -> Literal["bulk", "single"]:
        """The way to arm many."""
        return "single" if self.peer.no_bulk else "bulk"

    async def left(self, due_ms: float) -> int:
        """How many jobs have not ended."""
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        pipe = self.redis.pipeline(transaction=False)
        for command in self.peer.left:
            pipe.execute_command(*due.strftime(command).split())
        return sum(await pipe.execute())


async def figures_of(peer: Peer, setting: Setting, sizes: Sizes) -> dict[str, Figure]:
    """Everything that is measured of it under this setting. What fails has the reason in the place of its figure."""
    wanted = peer.measures(setting.name)
    found: dict[str, Figure] = {}
    if {"bulk", "single", "bytes"} & {*wanted}:
        async with _place(peer, setting) as place:
            await _try(found, ("bulk", "single", "bytes"), _arming(place, sizes))
    async with _place(peer, setting) as place:
        found[YARDSTICK] = await pipelined_set_per_s(place.redis, sizes.burst)
        outer, inner = (nullcontext, place.crew.working) if peer.arms_first else (place.crew.working, nullcontext)
        try:
            async with outer():
                await _work(place, sizes, wanted, found, inner)
        except (AdapterFailed, TimeoutError) as error:
            found.update({name: str(error) for name in wanted if name not in found})
    return {name: figure for name, figure in found.items() if name in {*wanted, YARDSTICK}}


async def _work(place: Place, sizes: Sizes, wanted: Sequence[str], found: dict[str, Figure], inner: Any) -> None:
    if not place.peer.arms_first:
        await _ready(place)
    if "p50" in wanted:
        await _try(found, ("p50", "p99"), _lateness(place, sizes.timed, inner))
    if "idle" in wanted:
        await _try(found, ("idle",), _idle(place, inner))
    if "drain" in wanted:  # the last, for not all have ended when it is no longer watched
        per_s = found.get(place.fastest)
        arm_s = sizes.burst / (per_s if isinstance(per_s, float) else 1000.0)
        if not place.peer.arms_first:
            await _drain(place, WARM_UP, arm_s * WARM_UP / sizes.burst, inner)
        await _try(found, ("drain",), _drain(place, sizes.burst, arm_s, inner))


@asynccontextmanager
async def _place(peer: Peer, setting: Setting) -> AsyncIterator[Place]:
    """The server listens on TCP, which every peer speaks. Only ours wants to hear of keys that expire."""
    port = free_port()
    events = () if peer.name.startswith("ours") else ("--notify-keyspace-events", "")
    options = ("--port", str(port), "--bind", "127.0.0.1", *events, *setting.options)
    url = f"redis://127.0.0.1:{port}/0"
    with tempfile.TemporaryDirectory(prefix="timers-peers-") as folder:
        async with (
            await start_server("redis", Path(folder), *options),
            Redis.from_url(url, decode_responses=True) as redis,
        ):
            yield Place(peer, redis, Crew(peer, url, Path(folder), kept=setting.kept), count())


async def _try(
    found: dict[str, Figure], names: Sequence[str], measured: Coroutine[Any, Any, dict[str, Figure]]
) -> None:
    try:
        found.update(await measured)
    except (AdapterFailed, TimeoutError) as error:
        found.update({name: str(error) or "timed out" for name in names})


async def _arming(place: Place, sizes: Sizes) -> dict[str, Figure]:
    """Rates with the answers awaited; and what the server's memory grew by for each, beyond a thousand."""
    tomorrow_ms = time.time() * 1000 + DAY_MS
    await place.arm(place.fastest, "noop", CHUNK, tomorrow_ms, HOUR_MS)
    before = await settled_memory(place.redis)
    many_s = await place.arm(place.fastest, "noop", sizes.burst, tomorrow_ms, HOUR_MS, warm_up=WARM_UP)
    each = (await settled_memory(place.redis) - before) / (WARM_UP + sizes.burst)
    if place.peer.no_bulk:
        return {"bulk": place.peer.no_bulk, "single": sizes.burst / many_s, "bytes": each}
    single_s = await place.arm("single", "noop", sizes.single, tomorrow_ms, HOUR_MS, warm_up=WARM_UP)
    return {"bulk": sizes.burst / many_s, "single": sizes.single / single_s, "bytes": each}


async def _ready(place: Place) -> None:
    """A job that is due at once has started."""
    await place.arm("single", "timed", 1, time.time() * 1000, 1)
    await _started(place, 1, READY_TIMEOUT_S)
    place.crew.forget()


async def _started(place: Place, number: int, timeout_s: float) -> None:
    async def happened() -> bool:
        return len(place.crew.late_ms()) >= number

    await until(happened, timeout_s=timeout_s, what=f"the start of {number:,} jobs")


async def _lateness(place: Place, jobs: int, inner: Any) -> dict[str, Figure]:
    if place.peer.others:
        await place.arm(place.fastest, "noop", place.peer.others, time.time() * 1000 + DAY_MS, DAY_MS)
    first_ms = (time.time() + LEAD_S) * 1000
    await place.arm(place.fastest, "timed", jobs, first_ms, SPREAD_S * 1000)
    async with inner():
        try:
            await _started(place, jobs, LEAD_S + SPREAD_S + LATE_TIMEOUT_S)
        except TimeoutError:
            if not place.crew.late_ms():
                raise
    late = Lateness.of(place.crew.late_ms(), jobs)
    return {"p50": late.p50_ms, "p99": late.p99_ms}


async def _drain(place: Place, jobs: int, arm_s: float, inner: Any) -> dict[str, Figure]:
    due_ms = await _armed_ahead(place, jobs, arm_s)
    before = place.crew.ticks()
    async with inner():
        await asyncio.sleep(due_ms / 1000 - time.time())
        left, seconds = await _watched(place, jobs, before, due_ms)
    if left == jobs:
        raise AdapterFailed(f"none of {jobs:,} jobs ended within {CAP_S:g} s")
    return {"drain": drained_per_s(jobs, left, seconds)}


async def _armed_ahead(place: Place, jobs: int, arm_s: float) -> float:
    """When they are due. The machine may be slower than it just was: jobs that came too late are waited for, once."""
    for reserve in RESERVES:
        before = place.crew.ticks()
        due_ms = (time.time() + LEAD_S + reserve * arm_s) * 1000
        await place.arm(place.fastest, "noop", jobs, due_ms, 0)
        if time.time() * 1000 < due_ms:
            return due_ms
        await _watched(place, jobs, before, due_ms)
    raise AdapterFailed(f"{jobs:,} jobs were not armed before they were due; this machine is too busy")


async def _watched(place: Place, jobs: int, before: int, due_ms: float) -> tuple[int, float]:
    """How many are left, and the seconds from due until then: when all have run and Redis holds none, or the time is
    over. Then what has run counts as done, though Redis may hold more: a peer may queue a job twice."""
    while True:
        await asyncio.sleep(LOOK_S)
        not_run = max(0, jobs - (place.crew.ticks() - before))
        in_redis, seconds = await place.left(due_ms), time.time() - due_ms / 1000
        if not (not_run or in_redis):
            return 0, seconds
        if seconds > CAP_S:
            return not_run or min(jobs, in_redis), seconds


async def _idle(place: Place, inner: Any) -> dict[str, Figure]:
    async with inner():
        await asyncio.sleep(CALM_S)
        before = await Usage.so_far(place.redis)
        await asyncio.sleep(IDLE_S)
        used = (await Usage.so_far(place.redis)).since(before)
    return {"idle": used.commands / used.seconds}
