"""`python -m tests.chaos`: the long run. Several seeds in a row, a table at the end, exit 1 if a promise was broken."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.chaos.driver import Plan, Result, run
from timers.embedded import Family

_COLUMNS = (
    "seed",
    "server",
    "timers",
    "faults",
    "starts",
    "duplicates",
    "hidden",
    "p50 ms",
    "p99 ms",
    "max ms",
    "findings",
)


def main(
    *,
    timers: int = 100_000,
    pods: int = 4,
    kills: int = 60,
    seed: Annotated[list[int] | None, typer.Option(help="may be given several times; default 1, 2, 3")] = None,
    family: Family = "redis",
    lease_ms: int = 2_000,
    spread_s: float = 90.0,
    cut_every_s: Annotated[float, typer.Option(help="cut all subscriptions that often; 0: never")] = 0.0,
    drain_s: float = 120.0,
) -> None:
    """Kill pods at random under load, and judge what happened by an outside witness."""
    results = []
    for one in seed or [1, 2, 3]:
        plan = Plan(
            timers=timers,
            pods=pods,
            kills=kills,
            seed=one,
            family=family,
            lease_ms=lease_ms,
            spread_s=spread_s,
            cut_every_s=cut_every_s,
            drain_s=drain_s,
        )
        results.append(_run(plan))
        print(results[-1], flush=True)
    print(_table(results))
    raise typer.Exit(0 if all(result.report.ok for result in results) else 1)


def _run(plan: Plan) -> Result:
    with tempfile.TemporaryDirectory(prefix="timers-chaos-") as directory:
        return asyncio.run(run(plan, Path(directory)))


def _table(results: list[Result]) -> str:
    rows = [_COLUMNS, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(result: Result) -> tuple[str, ...]:
    figures = result.report.figures
    late = (figures.lateness_p50_ms, figures.lateness_p99_ms, figures.lateness_max_ms)
    return (
        str(result.plan.seed),
        result.server,
        str(figures.timers),
        str(figures.faults_proven),
        str(figures.starts),
        str(figures.duplicates),
        str(figures.hidden_attempts),
        *("-" if value is None else f"{value:.1f}" for value in late),
        str(len(result.report.findings)),
    )


if __name__ == "__main__":
    typer.run(main)
