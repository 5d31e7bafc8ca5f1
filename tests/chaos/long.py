"""`make chaos-long`: a million timers and a thousand kills, in pieces that add up, and their figures in RESULTS.md.

A piece that has been run is not run again: its figures are kept under `.chaos/`, so the run may be ended and taken up
at any time, with nothing lost but the piece under way.
"""

import asyncio
import atexit
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import typer

from tests import postgres
from tests.chaos.driver import NOT_COVERED, Plan, Result, run
from tests.chaos.findings import Property
from tests.nursery import ROOT
from tests.servers import FAMILIES
from timers.embedded import Family

SEEDS: Final = (1, 2, 3)
PODS: Final = (1, 2, 4, 8, 16)
TIMERS: Final = 1_000_000
KILLS: Final = 1_000
SPREAD_S: Final = 75.0
SHOWN: Final = 5
"""Findings of a piece that are kept."""

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
KEPT: Final = ROOT / ".chaos" / "long.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is kept of a piece. Times are in ms."""

    seed: int
    pods: int
    server: str
    once: str
    command: str
    commit: str
    at: str
    took_s: float
    load: float
    timers: int
    kills: int
    starts: int
    explained: int
    hidden: int
    unknown: int
    lost: int
    early: int
    unexplained: int
    zombies: int
    twice: int
    late: int
    starved: int
    findings: list[str]
    p50: float
    p99: float
    worst: float
    takeover: float


def plans() -> list[Plan]:
    """The pieces in the order in which they are run: as mixed as can be, if only some of them are."""
    each = list(product(PODS, SEEDS, FAMILIES))
    return [_plan(pods, seed, family, len(each)) for pods, seed, family in sorted(each, key=_shuffled)]


def _shuffled(piece: tuple[int, int, Family]) -> tuple[int, int, int]:
    pods, seed, family = piece
    turn = (PODS.index(pods) + 2 * seed + FAMILIES.index(family)) % len(PODS)
    return turn, PODS.index(pods), seed


def _plan(pods: int, seed: int, family: Family, pieces: int) -> Plan:
    return Plan(
        trouble="kills",
        timers=-(-TIMERS // pieces),
        times=-(-KILLS // pieces),
        spread_s=SPREAD_S,
        pods=pods,
        seed=seed,
        family=family,
        drain_s=600.0,
        once="sqlite" if (seed + FAMILIES.index(family)) % 2 else "postgresql",
    )


def main(
    *, pieces: Annotated[int | None, typer.Option(help="at most so many; default: all that are left")] = None
) -> None:
    """Run the pieces that have not been run yet, and write the figures of all. Exits 1 on a broken promise."""
    if postgres.prepare():
        atexit.register(postgres.stop)
    done = _kept()
    left = [plan for plan in plans() if plan.command not in {piece.command for piece in done}]
    for plan in left[:pieces]:
        done.append(_run(plan))
        _keep(done[-1])
        RESULTS.write_text(document(done))
        print(
            f"{len(done)} of {len(plans())}: {done[-1].command}: {len(done[-1].findings) or 'no'} findings", flush=True
        )
    raise typer.Exit(1 if any(piece.findings for piece in done) else 0)


def _run(plan: Plan) -> Piece:
    begin = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="timers-chaos-") as directory:
        result = asyncio.run(run(plan, Path(directory)))
        if not result.report.ok:
            print(result, flush=True)
            history = KEPT.with_name(f"history-{plan.family}-{plan.pods}-{plan.seed}")
            shutil.copytree(Path(directory) / "history", history, dirs_exist_ok=True)
    return _piece(result, begin)


def _piece(result: Result, begin: datetime) -> Piece:
    plan, report, figures = result.plan, result.report, result.report.figures

    def broken(promise: Property) -> int:
        return len(report.of(promise))

    return Piece(
        seed=plan.seed,
        pods=plan.pods,
        server=result.server,
        once=plan.once,
        command=plan.command,
        commit=_commit(),
        at=begin.isoformat(timespec="minutes"),
        took_s=round(result.took_s, 1),
        load=round(os.getloadavg()[1], 1),
        timers=figures.timers,
        kills=figures.faults_proven,
        starts=figures.starts,
        explained=figures.duplicates - broken(Property.ONE_WINNER),
        hidden=figures.hidden_attempts,
        unknown=figures.unknown_creates,
        lost=broken(Property.LOST),
        early=broken(Property.EARLY),
        unexplained=broken(Property.ONE_WINNER),
        zombies=broken(Property.ZOMBIE),
        twice=broken(Property.ONCE),
        late=broken(Property.LATE),
        starved=figures.starved,
        findings=[str(finding).splitlines()[0] for finding in report.findings[:SHOWN]],
        p50=figures.lateness_p50_ms or 0,
        p99=figures.lateness_p99_ms or 0,
        worst=figures.lateness_max_ms or 0,
        takeover=figures.takeover_max_ms or 0,
    )


def _commit() -> str:
    """The commit, and whether anything but the figures has changed since."""
    changed = {name for name in _git("diff", "--name-only", "HEAD").split() if name != str(RESULTS.relative_to(ROOT))}
    return _git("describe", "--always").strip() + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["/usr/bin/env", "git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _kept() -> list[Piece]:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return [Piece(**json.loads(line)) for line in lines]


def _keep(piece: Piece) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps(asdict(piece)) + "\n")


_PROMISES: Final = {
    "lost": "lost",
    "early": "early",
    "unexplained": "unexplained duplicates",
    "zombies": "zombie results",
    "twice": "effects that `once` did not hold",
    "late": "later than they may be",
}


def document(done: Sequence[Piece]) -> str:
    """RESULTS.md: the sum, what it covers and does not, each piece, what was found."""
    broken = ", ".join(f"{_sum(name, done)} {promise}" for name, promise in _PROMISES.items())
    begun, load = sorted(piece.at for piece in done), sorted(piece.load for piece in done)
    found = [f"- `{piece.command}` at {piece.commit}: {text}" for piece in done for text in piece.findings]
    return f"""# The long run

`make chaos-long` wrote this. [README.md](README.md) says how a run is judged.

**{_sum("timers", done):,} timers and {_sum("kills", done):,} kills** in {len(done)} of {len(plans())} pieces: {broken}.

- {_left(done)}
- Seeds {_each("seed", done)}; {_each("pods", done)} pods; {_each("server", done)}; Python {platform.python_version()}.
- Commits {_each("commit", done)}; from {begun[0]} to {begun[-1]} UTC, at a load of {load[0]:g} to {load[-1]:g} on
  {os.cpu_count()} cores.
- Of {_sum("starts", done):,} starts {_sum("explained", done):,} repeated an occurrence, each because of a recorded
  fault. {_sum("hidden", done):,} claims were never seen to start; {_sum("unknown", done):,} creates had no answer.
- One timer in a hundred had an effect in SQL with `once`, in SQLite in half of the pieces, in PostgreSQL in the others.
- Lateness is judged (P3) by what the kernel says that processes waited for a core: {_sum("starved", done):,}
  starts were late while the machine gave the run less than it needed, and are not judged.
  The columns of lateness say what it was there, and measure nothing: [tests/bench](../bench/README.md) does.
- Not covered: {NOT_COVERED}.

{_table(done)}

{"What was found, at most five of each piece:" if found else "No promise was broken."}

{chr(10).join(found)}

A piece is repeated by its command, with the family, pods, seed and database for `once` of its row:

    {plans()[0].command}
"""


def _left(done: Sequence[Piece]) -> str:
    left = len(plans()) - len(done)
    return "All pieces have been run." if not left else f"{left} pieces are left: `make chaos-long` goes on with them."


def _sum(name: str, done: Iterable[Piece]) -> int:
    return sum(getattr(piece, name) for piece in done)


def _each(name: str, done: Iterable[Piece]) -> str:
    return ", ".join(map(str, sorted({getattr(piece, name) for piece in done})))


_COLUMNS: Final = ("timers", "kills", "starts", "explained", *_PROMISES, "starved")


def _table(done: Sequence[Piece]) -> str:
    heads = ("server", "pods", "seed", "once", *_COLUMNS, "p50 ms", "p99 ms", "takeover s", "load")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for piece in sorted(done, key=lambda one: (one.server, one.pods, one.seed)):
        counts = (f"{getattr(piece, name):,}" for name in _COLUMNS)
        times = (f"{piece.p50:,.0f}", f"{piece.p99:,.0f}", f"{piece.takeover / 1000:.1f}", f"{piece.load:g}")
        lines.append(f"| {' | '.join((piece.server, str(piece.pods), str(piece.seed), piece.once, *counts, *times))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
