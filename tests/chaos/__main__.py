"""`python -m tests.chaos`: the long run. Makes each kind of trouble, prints a table, exits 1 on a broken promise."""

import asyncio
import atexit
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from tests import postgres
from tests.chaos.driver import Plan, Result, run
from tests.chaos.findings import Property
from tests.chaos.stage import Ledger
from tests.chaos.troubles import LEDGER_TROUBLES, TROUBLES
from tests.servers import FAMILIES
from timers.embedded import Family

_COLUMNS = (
    *("trouble", "server", "seed", "timers", "faults", "starts", "explained", "unexplained", "hidden", "lost", "early"),
    *("p50 ms", "p99 ms", "max ms", "takeover", "backlog", "findings", "took s"),
)


def main(
    *,
    trouble: Annotated[list[str] | None, typer.Option(help=f"{', '.join(TROUBLES)}; default: all")] = None,
    family: Annotated[Family | None, typer.Option(help="default: both")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="may be given several times")] = None,
    timers: Annotated[int | None, typer.Option(help="else what each kind of trouble brings along")] = None,
    times: Annotated[int | None, typer.Option(help="how often the fault is made; else as above")] = None,
    spread_s: Annotated[float | None, typer.Option(help="how long timers become due; else as above")] = None,
    ledger: Annotated[
        Literal["sqlite", "postgresql"] | None, typer.Option(help="default: both, where a ledger is needed; else none")
    ] = None,
    once: Annotated[
        Literal["sqlite", "postgresql"] | None, typer.Option(help="where effects happen once; default: there are none")
    ] = None,
    pods: int = 3,
    lease_ms: int = 4_000,
    drain_s: float = 120.0,
) -> None:
    """Make trouble for pods and server under load, and judge what happened by an outside witness."""
    results = []
    if postgres.prepare():
        atexit.register(postgres.stop)
    kinds = [(name, beside) for name in trouble or TROUBLES for beside in _ledgers(name, ledger)]
    for (name, beside), server, one in itertools.product(kinds, [family] if family else FAMILIES, seed or [1]):
        usual = TROUBLES[name]
        plan = Plan(
            trouble=name,
            timers=timers or usual.timers,
            times=times or usual.times,
            spread_s=spread_s or usual.spread_s,
            pods=pods,
            seed=one,
            family=server,
            ledger=beside,
            once=once or "",
            lease_ms=lease_ms,
            drain_s=drain_s,
        )
        results.append(_run(plan))
        print(results[-1], flush=True)
    print(_table(results))
    raise typer.Exit(0 if all(result.report.ok for result in results) else 1)


def _ledgers(trouble: str, asked: Ledger | None) -> tuple[Ledger, ...]:
    if asked is not None:
        return (asked,)
    return ("sqlite", "postgresql") if trouble in LEDGER_TROUBLES else ("",)


def _run(plan: Plan) -> Result:
    with tempfile.TemporaryDirectory(prefix="timers-chaos-") as directory:
        return asyncio.run(run(plan, Path(directory)))


def _table(results: list[Result]) -> str:
    rows = [_COLUMNS, *(tuple(_row(result)) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(result: Result) -> Iterator[str]:
    plan, report = result.plan, result.report
    figures = report.figures
    unexplained = len(report.of(Property.ONE_WINNER))
    yield from (
        f"{plan.trouble} {plan.ledger}".strip(),
        result.server,
        str(plan.seed),
        str(figures.timers),
        str(figures.faults_proven),
    )
    yield from (str(figures.starts), str(figures.duplicates - unexplained), str(unexplained))
    yield from (str(figures.hidden_attempts), str(len(report.of(Property.LOST))), str(len(report.of(Property.EARLY))))
    yield from (_ms(figures.lateness_p50_ms), _ms(figures.lateness_p99_ms), _ms(figures.lateness_max_ms))
    yield from (_ms(figures.takeover_max_ms), _ms(figures.backlog_max_ms))
    yield from (str(len(report.findings)), f"{result.took_s:.0f}")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    typer.run(main)
