"""Measures what `timers plan` calculates with: what each further pod costs and brings, what a timer costs a server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from redis.asyncio import Redis

from tests.bench.memory import settled_memory
from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import DAY_MS, Stage, opened
from tests.bench.starts import Lateness
from tests.bench.usage import Usage
from tests.clusters import Cluster
from tests.servers import start_server
from timers.client import client_over, open_store
from timers.store.servers import connect
from timers.store.store import Arming, Store

SMALL, LARGE = 60, 1060
"""Bytes of a payload."""

CALLERS: Final = 16
SINGLE: Final = 4_000

SCALE_COLUMNS: Final = (
    Column("primaries"),
    Column("pods"),
    Column("burst timers/s"),
    Column("scripts/timer", 2),
    Column("pods µs/timer"),
    Column("server µs/timer"),
    Column("busiest server"),
    Column("start p50 ms", 1),
    Column("p99", 1),
    Column("MiB/pod"),
    worst("connections/pod"),
)

CAPACITY_COLUMNS: Final = (
    Column("bytes/timer"),
    Column("bytes/byte of payload", 2),
    Column("arm alone µs"),
    Column("arm in batches µs"),
    Column("fork ms/GiB"),
    Column("restart s/million", 1),
)


def scale(counts: Sequence[int], per_s: int, over_s: float, burst: int) -> Benchmark:
    """The benchmark for some numbers of pods, at a rate for a time, then with so many timers due at once."""
    title = f"{per_s}/s of one prefix for {over_s:g} s, then {burst:,} due at once; connections to one server"
    measure = partial(_scale, counts, per_s, over_s, burst)
    return Benchmark("scale", title, SCALE_COLUMNS, measure, "several servers, pods on other machines")


def cluster(
    primaries: Sequence[int], shards: int, counts: Sequence[int], per_s: int, over_s: float, *, burst: int
) -> Benchmark:
    """The same on clusters with some numbers of primaries, over all of which the timers are spread."""
    one = scale(counts, per_s, over_s, burst)

    async def measure(stage: Stage) -> list[Row]:
        rows: list[Row] = []
        for number in primaries:
            async with _in_cluster(stage, number, shards) as within:
                rows += await one.measure(within)
        return rows

    return replace(
        one,
        name="cluster",
        title=f"{shards} shards, {one.title}",
        measure=measure,
        not_covered="replicas; servers and pods on other machines",
    )


@asynccontextmanager
async def _in_cluster(stage: Stage, primaries: int, shards: int) -> AsyncIterator[Stage]:
    """The stage on a cluster of its own, whose nodes are set as the stage's server."""
    async with AsyncExitStack() as ends:
        folder, family = stage.folder / f"cluster-{primaries}", stage.server.family
        made = await Cluster.start(family, folder, "--appendfsync", "everysec", primaries=primaries, replicas=0)
        ends.callback(made.stop)
        servers = [await ends.enter_async_context(Redis.from_url(node.url)) for node in made.nodes]
        store = await opened(made.url, shards)
        client = await ends.enter_async_context(client_over(store))
        redis = store.connections.commands
        yield replace(stage, url=made.url, redis=redis, servers=servers, store=store, client=client)


async def _scale(counts: Sequence[int], per_s: int, over_s: float, burst: int, stage: Stage) -> Sequence[Row]:
    return [await _with_pods(stage, count, round(per_s * over_s), over_s, burst) for count in counts]


async def _with_pods(stage: Stage, count: int, timers: int, over_s: float, burst: int) -> Row:
    own = await _connections(stage)
    prefix, all_at_once = stage.fresh("timed"), stage.fresh("noop")
    async with stage.pods(count) as pods:
        begin_ms = await stage.arm_ahead(prefix, timers, round(over_s * 1000))
        await asyncio.sleep(stage.store.clock.seconds_until(begin_ms))
        begin, pods_s = [await Usage.so_far(server) for server in stage.servers], await pods.cpu_s()
        await asyncio.sleep(over_s)
        await stage.completed(prefix, timers, timeout_s=60)
        used = [(await Usage.so_far(on)).since(before) for on, before in zip(stage.servers, begin, strict=True)]
        pods_s = await pods.cpu_s() - pods_s
        due_ms = await stage.arm_ahead(all_at_once, burst, 1)
        if not await stage.completed(all_at_once, burst, timeout_s=120):
            raise RuntimeError(f"{burst} timers were not drained within 120 s")
        seconds = (stage.store.clock.now_ms() - due_ms) / 1000
        connections = (await _connections(stage) - own) / count
        memory_mib = sum(pod.memory_mib() for pod in pods.live) / count
    late = Lateness.of((start.start_late_ms for start in stage.starts(prefix)), timers)
    servers_us = [each.server_s / timers * 1e6 for each in used]
    cost = (sum(each.scripts for each in used) / timers, pods_s / timers * 1e6, sum(servers_us), max(servers_us))
    rates = (str(len(servers_us)), str(count), burst / seconds)
    return (*rates, *cost, late.p50_ms, late.p99_ms, memory_mib, connections)


async def _connections(stage: Stage) -> int:
    """The most to one server."""
    return max([len(await server.client_list()) for server in stage.servers])


def capacity(timers: int) -> Benchmark:
    """The benchmark with so many timers."""
    return Benchmark(
        "capacity",
        f"{timers:,} timers with ids of 16 and payloads of {SMALL} bytes; the server's CPU time, also of a restart",
        CAPACITY_COLUMNS,
        partial(_capacity, timers),
        "replicas, disks that are slow, other names",
    )


async def _capacity(timers: int, stage: Stage) -> list[Row]:
    alone = await _arm_alone(stage)
    small, batches = await _weight(stage.store, stage.redis, "small", SMALL, timers)
    large, _ = await _weight(stage.store, stage.redis, "large", LARGE, timers // 10)
    fork_ms = await _fork_ms(stage.redis)
    restart_s = await _restart_s(stage, timers)
    return [(small, (large - small) / (LARGE - SMALL), alone, batches, fork_ms, restart_s / timers * 1e6)]


async def _arm_alone(stage: Stage) -> float:
    """The server's µs for each timer of callers who arm one each."""
    numbers = iter(range(SINGLE))

    async def call() -> None:
        for number in numbers:
            await stage.client.create("bench-noop", f"user-{number:011d}", delay="2d", payload="x" * (SMALL - 2))

    begin = await Usage.so_far(stage.redis)
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return (await Usage.so_far(stage.redis)).since(begin).server_s / SINGLE * 1e6


async def _weight(store: Store, redis: Redis, kind: str, payload: int, timers: int) -> tuple[float, float]:
    """Bytes of each timer, and the server's µs for arming it in a batch."""
    due, spec = f"@{await store.now_ms() + 2 * DAY_MS}", {"payload": "x" * (payload - 2)}
    before, begin = await settled_memory(redis), await Usage.so_far(redis)
    await _fill(store, timers, kind, due, spec)
    used = (await Usage.so_far(redis)).since(begin)
    return (await settled_memory(redis) - before) / timers, used.server_s / timers * 1e6


async def _fill(store: Store, timers: int, kind: str, due: str, spec: dict[str, str]) -> None:
    for start in range(0, timers, 1000):
        some = range(start, min(start + 1000, timers))
        await store.arm([Arming(f"bench-{kind}", f"user-{i:011d}", due, spec) for i in some])


async def _fork_ms(redis: Redis) -> float:
    await redis.bgsave()
    while (await redis.info("persistence"))["rdb_bgsave_in_progress"]:  # noqa: ASYNC110 (the server sets no event here)
        await asyncio.sleep(0.1)
    told = await redis.info("stats", "memory")
    return float(told["latest_fork_usec"]) / 1000 / (float(told["used_memory"]) / 2**30)


async def _restart_s(stage: Stage, timers: int) -> float:
    """CPU seconds that a server takes to read what it had written down."""
    folder, family = stage.folder / "restarted", stage.server.family
    server = await start_server(family, folder)
    store = await open_store(connect(server.url))
    async with client_over(store):
        spec = {"payload": "x" * (SMALL - 2)}
        await _fill(store, timers, "small", f"@{await store.now_ms() + 2 * DAY_MS}", spec)
    await server.stop()
    async with await start_server(family, folder) as again, Redis.from_url(again.url) as redis:
        told = await redis.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])
