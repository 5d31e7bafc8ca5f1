"""`make chaos-score`: plants each fault in a copy and runs the chaos there. Exits 1 if a run misses its fault."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from tests.chaos.score.planting import Fault, faults, plant

LIMIT_S: Final = 300.0
"""How long a run may take to find its fault."""

Size = tuple[str, str, str]
"""The number of timers, the number of faults, the seconds over which the timers become due."""

_SIZES: Final[dict[str, Size]] = {
    "kills": ("4000", "6", "8"),
    "pauses": ("4000", "6", "24"),
    "hooks": ("1500", "10", "40"),
    "flushalls": ("1500", "3", "10"),
    "outages": ("1500", "3", "20"),
}


_WITH_LEDGER: Final = frozenset(("flushalls", "outages"))


def main(
    *,
    name: Annotated[list[str] | None, typer.Option(help="of a fault, by its file; default: all")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="default: 1, 2 and 3")] = None,
) -> None:
    """Show for each planted fault in how many runs the chaos finds it."""
    seeds, missed = seed or [1, 2, 3], 0
    print(f"{'fault':26} {'promise':38} {'trouble':10} found  slowest")
    for fault in faults():
        if name and fault.name not in name:
            continue
        tries = [search(fault, one) for one in seeds]
        found = [took_s for took_s in tries if took_s is not None]
        missed += len(seeds) - len(found)
        slowest = f"{max(found):5.0f} s" if found else "-"
        print(
            f"{fault.name:26} {fault.promises[0]:38.38} {fault.trouble:10} {len(found)} of {len(seeds)} {slowest}",
            flush=True,
        )
    raise typer.Exit(min(missed, 1))


def search(fault: Fault, seed: int, *, size: Size | None = None) -> float | None:
    """Runs the chaos on a copy with the fault. Returns the seconds that it took to find it; None if it did not."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="timers-planted-"))
    try:
        plant(fault, folder / "copy")
        ended = subprocess.run(
            [sys.executable, "-m", "tests.chaos", *_arguments(fault.trouble, seed, size or _SIZES[fault.trouble])],
            cwd=folder / "copy",
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        shutil.rmtree(folder)
    if any(f"\n{promise}: " in ended.stdout for promise in fault.promises):
        return time.monotonic() - begin
    print(f"{fault.name}, seed {seed}:\n{ended.stdout[-4000:]}{ended.stderr[-4000:]}", file=sys.stderr)
    return None


def _arguments(trouble: str, seed: int, size: Size) -> list[str]:
    timers, times, spread_s = size
    ledger = ["--ledger", "sqlite"] if trouble in _WITH_LEDGER else []
    plan = ["--timers", timers, "--times", times, "--spread-s", spread_s, "--drain-s", "60", "--family", "redis"]
    return ["--trouble", trouble, "--seed", str(seed), *plan, *ledger]


if __name__ == "__main__":
    typer.run(main)
