"""Measures what a failover under load loses of what was answered, where the replica that takes over lags behind."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage
from tests.engine.fleet import Calls, Fleet, until
from tests.replicas import Link, Replicated, replicated
from tests.waiting import eventually
from timers import NewTimer, TimerClient
from timers.client import client_over
from timers.core.model import Status, Timer
from timers.core.shapes import Durability
from timers.embedded import Family
from timers.errors import Unavailable
from timers.ledger.database import Database
from timers.logs import configure
from timers.store.following import server_of, stages
from timers.store.store import Settlement, Store

CALLERS: Final = 8
LAGS: Final = 20
LEASE_MS: Final = 2_000
"""Runs that the primary took along start again after this."""

DUE_IN_MS: Final = 1_000
OVER_MS: Final = 2_000
"""About as long as the load lasts."""

LEVELS: Final[Sequence[tuple[Durability, Durability]]] = (
    ("fast", "fast"),
    ("fsync", "fsync"),
    ("replicated", "replicated"),
    ("ledger", "ledger"),
    ("ledger", "replicated"),
)
"""The durability of creates, and of ends (TIMERS_DURABILITY). No end waits for the ledger."""

_OPTIONS: Final = {"fsync": ("--appendonly", "yes", "--appendfsync", "always")}
"""Of the primary."""

_COLUMNS: Final = (
    Column("creates"),
    Column("answered"),
    worst("lost"),
    Column("of 100", 1),
    Column("ends"),
    Column("written"),
    worst("run again"),
    Column("of 100", 1),
)


def benchmark(failovers: int, runs: int) -> Benchmark:
    """The benchmark for so many failovers with each durability, and so many runs during each."""
    return Benchmark(
        "losses",
        f"{failovers} failovers, in each {CALLERS} callers and {runs:,} runs; a replica keeps up, the other gets what "
        "is new every 20 to 100 ms, falls behind and takes over; counted is what had reached its durability",
        _COLUMNS,
        partial(_measure, failovers, runs),
        "an old primary that comes back or hangs",
    )


async def _measure(failovers: int, runs: int, stage: Stage) -> list[Row]:
    configure("json", "critical")
    rows: list[Row] = []
    for creates, ends in LEVELS:
        found = Lost(0, 0, 0, 0)
        for _ in range(failovers):
            folder = stage.folder / stage.fresh("failover")
            folder.mkdir()
            more = await failover(stage.server.family, folder, stage.rng, runs, creates=creates, ends=ends)
            found = Lost(*map(add, found, more))
        made, lost, ended, again = found
        rows.append((creates, made, lost, 100 * lost / made, ends, ended, again, 100 * again / ended))
    return rows


class Lost(NamedTuple):
    """How many creates had reached their durability, and how many of those timers are gone; how many ends had, and how
    many of those runs came again."""

    made: int
    lost: int
    ended: int
    again: int


async def failover(
    family: Family, folder: Path, rng: Random, runs: int, *, creates: Durability, ends: Durability
) -> Lost:
    """What one failover loses."""
    ledger = await _ledger(folder) if creates == "ledger" else None
    async with replicated(family, folder, options=_OPTIONS.get(creates, ())) as group:
        made, ended = await _under_load(group, ledger, rng, runs, creates=creates, ends=ends)
        lost, again = await _after(group.replicas[1].url, ledger, made, ended)
    if ledger is not None:
        await ledger.close()
    return Lost(len(made), lost, len(ended), again)


async def _ledger(folder: Path) -> Database:
    database = Database(f"sqlite+aiosqlite:///{folder}/ledger.db")
    await database.upgrade()
    return database


async def _under_load(
    group: Replicated, ledger: Database | None, rng: Random, runs: int, *, creates: Durability, ends: Durability
) -> tuple[list[Timer], set[str]]:
    """The timers whose creates had reached their durability, and the ids of the runs whose ends had, when the lagging
    replica took over."""
    fleet = await Fleet.over(group.primary.url)
    pod = await fleet.pod(Calls("run"), durability=ends, ledger=ledger, lease_ms=LEASE_MS)
    ended, answered, made, over = _ends_of(pod.store), list[Timer](), list[Timer](), asyncio.Event()
    begin_ms = await fleet.store.now_ms() + DUE_IN_MS
    await _arm_on_all(fleet.client, [begin_ms + rng.randrange(OVER_MS) for _ in range(runs)])

    async def call(client: TimerClient) -> None:
        while not over.is_set():
            with suppress(Unavailable):
                answered.append(timer := await client.create("note", delay="1h", durability=creates))
                made.extend([timer] * (timer.durability in ("", creates)))

    async with client_over(fleet.store, ledger=None if ledger is None else str(ledger.engine.url)) as client:
        callers = [asyncio.create_task(call(client)) for _ in range(CALLERS)]
        await asyncio.sleep(fleet.store.clock.seconds_until(begin_ms))
        await _lag(group.links[1], rng, answered, made, ended)
        await group.promote(1)
        over.set()
        await asyncio.gather(*callers)
        await fleet.kill(pod)
    return made, ended


async def _arm_on_all(client: TimerClient, due_ms: Sequence[int]) -> None:
    """Arm what is to run, on all replicas."""
    news = [NewTimer(prefix="run", id=str(n), due_at=at, durability="replicated") for n, at in enumerate(due_ms)]
    for result in await client.batch(news):
        if isinstance(result, Exception) or result.timer.durability != "replicated":
            raise RuntimeError(f"a timer is not on all replicas: {result}")


def _ends_of(store: Store) -> set[str]:
    """The ids of the runs that a pod ends through its store, each once its end has the pod's durability."""
    ended, settle, is_reached = set[str](), store.settle, True

    def confirmed(_durability: str, reached: bool, _timers: int) -> None:
        nonlocal is_reached
        is_reached = reached

    async def witnessed(shard: int, settlements: Sequence[Settlement], **given: object) -> list[str]:
        codes = await settle(shard, settlements, **given)  # type: ignore[arg-type]  # passed on
        ended.update(each.timer.id for each in settlements if is_reached)
        return codes

    store.confirmed, store.settle = confirmed, witnessed  # type: ignore[method-assign]
    return ended


async def _lag(
    link: Link, rng: Random, answered: Sequence[Timer], made: Sequence[Timer], ended: Collection[str]
) -> None:
    """Pass on what is new from time to time; in the end, nothing of what is answered."""
    for _ in range(LAGS):
        link.open.clear()
        await asyncio.sleep(rng.uniform(0.02, 0.1))
        link.open.set()
        await _more(made, 1)
    await until(lambda: ended, "ends are written")
    link.open.clear()
    await asyncio.sleep(rng.uniform(0.1, 0.3))
    await _more(answered, CALLERS + 1)  # one of them was not on its way before


async def _more(some: Sequence[Timer], number: int) -> None:
    wanted = len(some) + number
    await until(lambda: len(some) >= wanted, "creates are answered")


async def _after(url: str, ledger: Database | None, made: Sequence[Timer], ended: set[str]) -> tuple[int, int]:
    """How many timers are gone once a pod has done what it can, and how many runs came again."""
    fleet, calls = await Fleet.over(url), Calls("run")
    pod = await fleet.pod(calls, ledger=ledger, lease_ms=LEASE_MS)

    async def is_done() -> bool:
        counts = (await fleet.client.counts()).get("run", {})
        stage = (await stages(fleet.store, [0]))[0]
        is_whole = ledger is None or (stage.is_whole and stage.server == (await server_of(fleet.store))[0])
        return is_whole and not any(counts.get(status) for status in (Status.SCHEDULED, Status.RUNNING))

    await eventually(is_done, "what was due has run")
    there = await fleet.store.get([(timer.prefix, timer.id) for timer in made])
    await fleet.kill(pod)
    await fleet.store.connections.close()
    return there.count(None), len(ended & set(calls.ids))
