"""A copy of the repository with one fault in it."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.findings import Property
from tests.nursery import ROOT

FAULTS: Final = Path(__file__).parent / "faults"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its name, what it does in a sentence, the trouble in which it shows, the promises that it may break, and
    the file that has it. The patch follows the first three lines of that file."""

    name: str
    does: str
    trouble: str
    promises: Sequence[Property]
    path: Path


def read(path: Path) -> Fault:
    """The fault of a file. Raises KeyError for a promise that does not exist."""
    does, trouble, promises = path.read_text().splitlines()[:3]
    by_number = {each.partition(" ")[0]: each for each in Property}
    broken = [by_number[number] for number in promises.removeprefix("promise: ").split()]
    return Fault(path.stem, does, trouble.removeprefix("trouble: "), broken, path)


def faults() -> list[Fault]:
    """All faults, by name."""
    return [read(path) for path in sorted(FAULTS.glob("*.patch"))]


def plant(fault: Fault, folder: Path) -> None:
    """Copies the repository to a folder that does not exist, with the fault. Raises as `check`."""
    for name in ("timers", "processors", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "vendor", "node_modules")
        )
    _apply(fault, folder)


def check(fault: Fault) -> None:
    """Raises CalledProcessError, with what git says, if the patch no longer fits."""
    _apply(fault, ROOT, "--check")


def _apply(fault: Fault, folder: Path, *options: str) -> None:
    command = ["/usr/bin/env", "git", "apply", *options, str(fault.path)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=_APART)


_APART: Final = {"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": "/nonexistent"}
"""Makes git take the folder for what it is, and not for a part of a repository around it."""
