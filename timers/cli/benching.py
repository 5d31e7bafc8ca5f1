"""Owns `timers bench`: it measures a server with timers under its own prefixes, run by a pod in this process."""

import asyncio
import secrets
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer

from timers import logs
from timers.app import collect_garbage_rarely
from timers.cli.shared import Output, end_as_by_ctrl_c, note, run, show, table
from timers.client import BATCH_LIMIT, TimerClient
from timers.core.durations import DAY_MS
from timers.core.fields import OWN_PREFIXES
from timers.core.model import Timer
from timers.doctor.checks import server_facts
from timers.doctor.proofs import round_trips_ms
from timers.engine.pod import Observer, WorkerOptions
from timers.engine.worker import Worker
from timers.errors import TimersError
from timers.processor import Context, Registry, processor
from timers.settings import load_worker_settings
from timers.store.cooperative import set_within
from timers.store.store import Arming, Store

ROUND_TRIPS: Final = 200
SINGLE: Final = 500
PAYLOAD: Final = {"email": "someone@example.org", "plan": "trial-1", "source": "web"}
WAIT_LIMIT_SECONDS: Final = 60.0
"""How long the command waits for timers after their due time. A timer that has not run by then counts as never run."""

NEVER_MS: Final = 3_650 * DAY_MS
"""This pod's retention, and how long it leaves unserved timers alone. It is very long, because this pod must not touch
the timers of others."""

Row = Mapping[str, Any]

app = typer.Typer()


@app.command()
def bench(
    timers: Annotated[int, typer.Option(min=1, max=100_000, help="Timers in each measurement.")] = 2_000,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Length of the lateness measurement.")] = 10.0,
    output: Output = "table",
) -> None:
    """Measure this server: round trips, arming, lateness, a burst. The timers have their own prefix and are removed at
    the end, also if it is stopped. While it measures, this process is a pod like any other."""
    logs.configure("console", "warning")
    collect_garbage_rarely()
    end_as_by_ctrl_c()
    measured = run(lambda client, store: _measured(_Bench(client, store, timers), seconds))
    lines = [f"server: {measured['server']}; {measured['shards']} shards; {measured['other_pods']} other pods\n"]
    for result in measured["results"]:
        lines += [f"{result['benchmark']}: {result['title']}", *table(result["rows"]), ""]
    show(measured, output, lines)


class _Bench(Observer):
    """Measures with timers of the prefixes that begin with `prefix`, and records this pod's runs. They do not count in
    the fleet's figures. The prefix is one of the service's own, so no hook hears of them."""

    def __init__(self, client: TimerClient, store: Store, timers: int) -> None:
        super().__init__()
        self.client, self.store, self.timers = client, store, timers
        self.prefix = f"{OWN_PREFIXES}bench-{secrets.token_hex(4)}"
        self.runs = Counter[str]()
        self._late_ms: list[int] = []
        self._last_end, self._left = 0.0, 0
        self._all_ended = asyncio.Event()

    def started(self, prefix: str, lateness_ms: int) -> None:
        self._late_ms.append(lateness_ms)

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        self._last_end = time.monotonic()
        self._left -= 1
        if self._left == 0:
            self._all_ended.set()

    async def arming(self) -> Sequence[Row]:
        """Measure arming in batches, then one by one."""
        began, prefix = time.monotonic(), f"{self.prefix}-arming"
        await self._arm(prefix, self.store.clock.now_ms() + DAY_MS, 1.0)
        batched = self.timers / (time.monotonic() - began)
        timings, single = list[float](), min(SINGLE, self.timers)
        for number in range(single):
            began = time.monotonic()
            await self.store.arm([Arming(prefix, f"single-{number}", f"+{DAY_MS}", {"payload": PAYLOAD})])
            timings.append((time.monotonic() - began) * 1000)
        one_by_one = {"way": "one by one", "timers/s": round(1000 * single / sum(timings)), **_spread(timings)}
        return [
            {"way": f"batches of {min(BATCH_LIMIT, self.timers):,}", "timers/s": round(batched), **_spread([])},
            one_by_one,
        ]

    async def lateness(self, seconds: float) -> Row:
        """Measure the lateness, from due to start, of timers spread over this many seconds."""
        await self._fire("spread", seconds * 1000 / self.timers)
        return {**self._tally("spread"), **_spread(self._late_ms)}

    async def burst(self) -> Row:
        """Measure timers that are all due at once, from due to the last end."""
        due_at = await self._fire("burst", 0.0)
        drained = self.timers / max(self._last_end - due_at, 0.001)
        return {**self._tally("burst"), "timers/s": round(drained), **_spread(self._late_ms)}

    async def _fire(self, name: str, step_ms: float) -> float:
        """Arm timers ahead and wait until all have run. Returns when the first was due, by this machine's monotonic
        clock."""
        store, prefix = self.store, f"{self.prefix}-{name}"
        self._late_ms.clear()
        self._left = self.timers
        self._all_ended.clear()
        first_ms = await store.now_ms() + 1000 + self.timers // 2
        await self._arm(prefix, first_ms, step_ms)
        due_at = time.monotonic() + store.clock.seconds_until(first_ms)
        last_at = due_at + self.timers * step_ms / 1000
        await set_within(self._all_ended, last_at - time.monotonic() + WAIT_LIMIT_SECONDS)
        return due_at

    async def _arm(self, prefix: str, first_ms: float, step_ms: float) -> None:
        for start in range(0, self.timers, BATCH_LIMIT):
            numbers = range(start, min(start + BATCH_LIMIT, self.timers))
            due = {f"n{number}": round(first_ms + number * step_ms) for number in numbers}
            await self.store.arm(
                [Arming(prefix, timer_id, f"@{due_ms}", {"payload": PAYLOAD}) for timer_id, due_ms in due.items()]
            )

    def _tally(self, name: str) -> Row:
        ran = [number for key, number in self.runs.items() if key.startswith(f"{self.prefix}-{name}:")]
        return {"timers": self.timers, "never": self.timers - len(ran), "twice": sum(number > 1 for number in ran)}


async def _measured(made: _Bench, seconds: float) -> dict[str, Any]:
    info, others = await server_facts(made.store), await made.client.pods()
    family = "valkey" if "valkey_version" in info else "redis"
    aof = "append-only file on" if info.get("aof_enabled") else "append-only file off"
    async with _pod(made):
        results = [
            _result("round trips", f"{ROUND_TRIPS} in turn", [_spread(await round_trips_ms(made.store, ROUND_TRIPS))]),
            _result("arming", "due in a day, with a payload of 67 bytes", await made.arming()),
            _result("lateness", f"over {seconds:g} s, from due to start", [await made.lateness(seconds)]),
            _result("burst", "due in one millisecond, from due to the last end", [await made.burst()]),
        ]
    return {
        "server": f"{family} {info.get(f'{family}_version')}, {aof}",
        "shards": made.store.shards,
        "other_pods": len(others),
        "results": results,
    }


def _result(name: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    note(f"{name} measured")
    return {"benchmark": name, "title": title, "rows": list(rows)}


@asynccontextmanager
async def _pod(made: _Bench) -> AsyncIterator[None]:
    """A pod that runs these timers. All of them are removed at the end."""

    @processor(made.prefix)
    async def nothing(timer: Timer, _context: Context) -> None:
        made.runs[timer.key] += 1

    options = WorkerOptions(
        made.prefix,
        concurrency=1000,
        lease_ms=30_000,
        retention_ms=NEVER_MS,
        drain_timeout_ms=5_000,
        adopt_every_ms=None,
        unhandled_after_ms=NEVER_MS,
        audit_every_seconds=NEVER_MS / 1000,
        public_url=load_worker_settings().public_url,
    )
    worker = Worker(made.store, Registry([nothing]), made.client, options, made)
    note(f"measuring with timers of {made.prefix}-*")
    await worker.start()
    try:
        yield
    finally:
        await worker.drain()
        await _clean_up(made.client, made.prefix)


async def _clean_up(client: TimerClient, prefix: str) -> None:
    try:
        removed = await client.act("purge", {"prefix": f"{prefix}-*"})
        await client.forget(prefix)
    except TimersError as error:
        left = f"timers purge --prefix '{prefix}-*'; timers prefixes forget {prefix}"
        note(f"{error}; clean up later with: {left}")
    else:
        note(f"{removed.done} timers removed")


def _spread(timings_ms: Sequence[float]) -> Row:
    """Median, 99th percentile and maximum, or None for each without any values."""
    if not timings_ms:
        return {"p50_ms": None, "p99_ms": None, "max_ms": None}
    ordered = sorted(timings_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    median = statistics.median(ordered)
    return {"p50_ms": round(median, 1), "p99_ms": round(p99, 1), "max_ms": round(ordered[-1], 1)}
