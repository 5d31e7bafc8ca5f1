"""Counts the instructions of the server in the steps of a fired timer, with and without a ledger. It runs under
valgrind (Debian's package `valgrind`), so the counts are the same on any machine, however busy."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import Stage
from tests.servers import binary_for
from tests.store.acts import POD, an_end, arming, claim
from timers.client import open_store
from timers.embedded import EmbeddedServer
from timers.store.following import notes
from timers.store.servers import connect
from timers.store.store import Store

BATCH: Final = 200
RETENTION_MS: Final = 60_000
SLOW_S: Final = 60.0
"""How long a server may take to start that is fifty times slower than usual."""

_COLUMNS: Final = (
    Column("step"),
    Column("instructions/timer"),
    Column("with a ledger"),
    Column("times those without", 2),
)
_STEPS: Final = ("claim", "settle", "copy")
_TOTALS: Final = re.compile(r"^totals: (\d+)", re.MULTILINE)


def benchmark(batches: int) -> Benchmark:
    """The benchmark for so many batches of each step."""
    return Benchmark(
        "instructions",
        f"of the server under callgrind: {batches} batches of {BATCH} timers that are claimed and end, and that a pod "
        "then copies to the ledger",
        _COLUMNS,
        partial(_measure, batches),
        "the kernel, and what the caches cost; batches of other sizes",
    )


async def _measure(batches: int, stage: Stage) -> Sequence[Row]:
    if shutil.which("valgrind") is None:
        print("not measured: there is no valgrind", file=sys.stderr)
        return ()
    without, followed = [await _counted(batches, stage, ledger) for ledger in (False, True)]
    both = [*zip_longest(_STEPS, without, followed, fillvalue=0.0), ("all", sum(without), sum(followed))]
    return [(step, one, other, other / one if one else float("inf")) for step, one, other in both]


async def _counted(batches: int, stage: Stage, ledger: bool) -> list[float]:
    """The instructions a timer of each step."""
    async with _traced(stage, f"traced-{ledger}") as (server, store):
        await _fire(store, 1, ledger)  # loads the scripts
        spent = list[float]()
        async for _ in _steps(store, batches, ledger):
            spent.append(await asyncio.to_thread(_since_last, server, stage.folder) / batches / BATCH)
    return spent[1:]


async def _fire(store: Store, batches: int, ledger: bool) -> None:
    async for _ in _steps(store, batches, ledger):
        pass


async def _steps(store: Store, batches: int, ledger: bool) -> AsyncIterator[None]:
    """Arm timers, and yield; then each of `_STEPS`, and yield."""
    if ledger:
        await notes(store, 0, 0)  # from now on changes are noted
    for number in range(batches):
        await store.arm([arming(f"user-{batches}-{number}-{i:04}") for i in range(BATCH)])
    yield
    claimed = [await claim(store, BATCH) for _ in range(batches)]
    assert all(len(timers) == BATCH for timers in claimed)
    yield
    for timers in claimed:
        await store.settle(0, [an_end(timer) for timer in timers], pod=POD, retention_ms=RETENTION_MS)
    yield
    if ledger:
        await _copy(store)
        yield


async def _copy(store: Store) -> None:
    """Read all notes and take them away, as the pod does that follows."""
    found = await notes(store, 0, 0)
    while found.cursor:
        found = await notes(store, 0, found.cursor, found.notes)
    await notes(store, 0, 0, found.notes)


@asynccontextmanager
async def _traced(stage: Stage, name: str) -> AsyncIterator[tuple[EmbeddedServer, Store]]:
    folder = stage.folder / name
    folder.mkdir()
    program = folder / "traced-server"
    traced = f"valgrind -q --tool=callgrind --callgrind-out-file={stage.folder}/{name}.%p"
    program.write_text(f'#!/bin/sh\nexec {traced} {binary_for(stage.server.family)} "$@"\n')
    program.chmod(0o700)
    async with await EmbeddedServer.start(folder, program, ("--hz", "1"), start_timeout_s=SLOW_S) as server:
        store = await open_store(connect(server.url))
        try:
            yield server, store
        finally:
            await store.connections.close()


def _since_last(server: EmbeddedServer, folder: Path) -> int:
    """The instructions since this was called last."""
    before = set(folder.glob(f"*.{server.pid}*"))
    control = shutil.which("callgrind_control")
    assert control, "this needs valgrind"
    subprocess.run([control, "--dump", str(server.pid)], check=True, capture_output=True)
    (written,) = set(folder.glob(f"*.{server.pid}*")) - before
    found = _TOTALS.search(written.read_text())
    assert found, written
    return int(found[1])
