"""`python -m tests.bench`: measure everything, or what is named, on Redis and on Valkey; tables on stdout."""

import atexit
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from tests import postgres
from tests.bench import (
    arming,
    burst,
    cuts,
    durable,
    first_page,
    http,
    idle,
    inbox,
    instructions,
    lateness,
    ledger,
    losses,
    pages,
    scale,
    sharing,
    spread,
    takeover,
    weight,
)
from tests.bench.report import Benchmark, Measured, settings_of, surroundings
from tests.bench.stage import stage
from tests.servers import FAMILIES
from timers.embedded import Family
from timers.store.identity import CLUSTER_SHARDS

NAMES: Final = (
    "lateness",
    "burst",
    "spread",
    "pods",
    "takeover",
    "cuts",
    "arming",
    "memory",
    "idle",
    "pages",
    "dashboard",
    "http",
    "inbox",
    "instructions",
    "ledger",
    "durability",
    "losses",
    "scale",
    "cluster",
    "capacity",
)


class Output(StrEnum):
    """How the figures are shown."""

    TABLE = "table"
    JSON = "json"


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(NAMES)}; default: all")] = None,
    *,
    family: Annotated[Family | None, typer.Option(help="default: one after the other")] = None,
    runs: Annotated[int, typer.Option(min=1, help="of each; the tables show medians")] = 3,
    seed: int = 1,
    output: Annotated[Output, typer.Option("-o", "--output")] = Output.TABLE,
    others: Annotated[
        int, typer.Option(min=0, help="armed timers beside those of `lateness`, and in `idle`, `pages` and `dashboard`")
    ] = 200_000,
    burst_timers: Annotated[int, typer.Option(min=1)] = 20_000,
    pods: Annotated[str, typer.Option(help="numbers of pods in `pods`, `scale` and `cluster`")] = "1,2,4",
    primaries: Annotated[str, typer.Option(help="numbers of primaries in `cluster`")] = "1,3",
    shards: Annotated[int, typer.Option(min=1, help="in `cluster`")] = CLUSTER_SHARDS,
    per_s: Annotated[int, typer.Option(min=1, help="rate in `pods`, `scale` and `cluster`")] = 500,
    kills: Annotated[int, typer.Option(min=1, help="in `takeover`, for each lease and run")] = 5,
    failovers: Annotated[int, typer.Option(min=1, help="in `losses`, with each durability and run")] = 3,
    restored: Annotated[int, typer.Option(min=1, help="timers that `ledger` gives back")] = 100_000,
    memory_timers: Annotated[int, typer.Option(min=1)] = 200_000,
) -> None:
    """Measure lateness, drain rate, sharing, takeover, cuts, arming, memory, idle cost, lists, dashboard, HTTP."""
    counts = [int(count) for count in pods.split(",")]
    made = (
        lateness.benchmark(2_000, others),
        burst.benchmark(burst_timers),
        spread.benchmark(burst_timers),
        sharing.benchmark(counts, per_s, 10.0),
        takeover.benchmark((2_000, 10_000), kills),
        cuts.benchmark(10_000, 20.0),
        arming.benchmark(20_000, 2_000),
        weight.benchmark(memory_timers),
        idle.benchmark((1, 10_000), (1, 4), others, 10.0),
        pages.benchmark(20_000, others),
        first_page.benchmark(20_000, others),
        http.benchmark(10_000, 40_000),
        inbox.benchmark(10.0),
        instructions.benchmark(6),
        ledger.benchmark(40_000, 5_000, burst_timers, restored),
        durable.benchmark(4_000, 2_000, 200, 15),
        losses.benchmark(failovers, 1_000),
        scale.scale(counts, per_s, 10.0, burst_timers),
        scale.cluster([int(count) for count in primaries.split(",")], shards, counts, per_s, 10.0, burst=burst_timers),
        scale.capacity(memory_timers),
    )
    postgres.prepare()
    atexit.register(postgres.stop)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it stops its servers then too
    chosen = _chosen(dict(zip(NAMES, made, strict=True)), names or NAMES)
    show = _show_json if output is Output.JSON else _show_tables
    show(_measured(chosen, (family,) if family else FAMILIES, runs, seed), runs, seed)


def _chosen(known: dict[str, Benchmark], names: Sequence[str]) -> list[Benchmark]:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not a benchmark; there are: {', '.join(known)}")
    return [known[name] for name in names]


def _measured(chosen: Sequence[Benchmark], families: Sequence[Family], runs: int, seed: int) -> Iterator[Measured]:
    """Each benchmark on each server, each run on a fresh one."""
    for benchmark in chosen:
        for family in families:
            done = [uvloop.run(_once(benchmark, family, seed + run)) for run in range(runs)]
            yield replace(done[0], runs=[rows for one in done for rows in one.runs])


async def _once(benchmark: Benchmark, family: Family, seed: int) -> Measured:
    print(f"{benchmark.name} on {family}, seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="timers-bench-") as folder:
        async with stage(Path(folder), family, seed, benchmark.server_options) as ready:
            rows = await benchmark.measure(ready)
            server = f"{ready.server.family} {ready.server.version}"
            return Measured(benchmark, server, await settings_of(ready), [rows])


def _conditions(runs: int, seed: int) -> dict[str, object]:
    command = shlex.join(["python", "-m", "tests.bench", *sys.argv[1:]])
    return {"command": command, "seed": seed, "runs": runs, **surroundings()}


def _show_tables(measured: Iterator[Measured], runs: int, seed: int) -> None:
    for name, said in _conditions(runs, seed).items():
        print(f"{name}: {said}")
    print(
        f"Medians of {runs} runs; max and whatever should be 0 are the worst of all. `never`: it did not come at all.\n"
    )
    for one in measured:
        print(one.table(), flush=True)
    print(f"load at the end: {surroundings()['load']}")


def _show_json(measured: Iterator[Measured], runs: int, seed: int) -> None:
    before = _conditions(runs, seed)
    results = [one.to_json() for one in measured]
    print(json.dumps({**before, "load_at_the_end": surroundings()["load"], "results": results}, indent=1))


if __name__ == "__main__":
    typer.run(main)
