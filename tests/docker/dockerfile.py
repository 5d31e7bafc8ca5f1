"""Reads the Dockerfile and runs its build stage without a container engine, in a folder instead of an image."""

import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.install.environment import ROOT

FOLDER: Final = ROOT / "docker"
VENV: Final = "/opt/timers"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its lines joined."""

    name: str
    rest: str


def stages() -> list[list[Instruction]]:
    """The instructions by stage. Each stage begins with its FROM."""
    text = "\n".join(line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    found: list[list[Instruction]] = []
    for line in text.replace("\\\n", "").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            found.append([])
        if name and found:
            found[-1].append(Instruction(name, " ".join(rest.split())))
    return found


def environment_of(stage: list[Instruction]) -> dict[str, str]:
    """The variables that a stage's ENV sets."""
    words = [word for each in stage if each.name == "ENV" for word in each.rest.split()]
    return dict(word.split("=", 1) for word in words)


def build(folder: Path) -> Path:
    """Run the build stage in a folder, with the tests' interpreter. Returns the venv. If the locked dependencies cannot
    be fetched, the test is skipped, or fails in CI."""
    source, venv = folder / "src", folder / "opt"
    source.mkdir()
    for instruction in stages()[0]:
        if instruction.name == "COPY":
            *copied, target = instruction.rest.split()
            for name in copied:
                _copy(ROOT / name, source / (name if target == "./" else target))
        if instruction.name == "RUN" and "--require-hashes" in instruction.rest:
            _layer(instruction.rest, source, venv)
        elif instruction.name == "RUN":
            _run(instruction.rest, source, venv)
    return venv


def _copy(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(origin, target)


def _layer(line: str, source: Path, venv: Path) -> None:
    """Install the dependencies, or take them from the last time, as an engine takes an unchanged layer."""
    made_of = f"{sys.executable} {sys.version} {line} {(source / 'requirements.lock').read_text()}"
    layer = ROOT / ".cache" / f"image-{zlib.crc32(made_of.encode()):08x}"
    if not (layer / "complete").exists():
        for old in layer.parent.glob("image-*"):
            shutil.rmtree(old)
        _run(line, source, layer)
        (layer / "complete").touch()
    shutil.copytree(layer, venv, symlinks=True)
    (venv / "complete").unlink()
    for program in (venv / "bin").iterdir():
        if not program.is_symlink():  # it names its interpreter
            program.write_text(program.read_text().replace(str(layer), str(venv)))


def _run(line: str, cwd: Path, venv: Path) -> None:
    line = line.replace(VENV, str(venv)).replace("python -m venv", f"{sys.executable} -m venv")
    done = subprocess.run(["/bin/sh", "-c", line], cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)
    if "--require-hashes" in line and done.returncode and not os.environ.get("CI"):
        pytest.skip(f"the locked dependencies cannot be fetched: {done.stderr[-200:]}")
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
