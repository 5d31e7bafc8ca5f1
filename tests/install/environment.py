"""Owns a clean environment: the wheels of this project and of the example of a plugin, built here and installed.

What they depend on is not fetched again: the venv sees the packages of the environment that runs the tests, but not
what that one finds by `.pth` files, so neither this repository nor its editable install.
"""

import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cli.commands import END_SECONDS, clean_environment

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """A venv, and the wheel of this project that is installed in it."""

    venv: Path
    wheel: Path

    def timers(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """The installed command, run to its end in a folder."""
        return subprocess.run(
            [self.venv / "bin" / "timers", *arguments],
            cwd=cwd,
            env=clean_environment(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
            check=False,
        )

    def start(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[bytes]:
        """The installed command as a process that goes on; its output is in the file `log` of the folder."""
        with (cwd / "log").open("wb") as log:
            return subprocess.Popen(
                [self.venv / "bin" / "timers", *arguments],
                cwd=cwd,
                env=clean_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def make_environment(folder: Path) -> Environment:
    """Build both wheels and install them. Takes some ten seconds, so one serves a whole file of tests."""
    wheels = tuple(build(project, folder / "wheels") for project in (ROOT, ROOT / "examples" / "invoice-reminder"))
    venv = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", venv)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python")
    # Offline, so without an index: only the plugin's requirement of us is not met by what the tests' environment has.
    _run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", *wheels)
    return Environment(venv, wheels[0])


def build(project: Path, into: Path) -> Path:
    """The wheel of a project."""
    before = set(into.glob("*"))
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into, cwd=project)
    (wheel,) = set(into.glob("*.whl")) - before
    return wheel


def write(folder: Path, files: dict[str, str]) -> Path:
    """A folder with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def project_metadata() -> Any:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _run(*command: object, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
