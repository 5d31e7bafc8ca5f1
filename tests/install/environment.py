"""A clean environment: this project, from its wheel, and the example plugin, installed in a venv.

They are built here. Dependencies are not fetched again: the venv sees the packages of the environment that
runs the tests, but not what that finds by `.pth` files: neither this repository nor its editable install.

`make dist` sets `DIST` to the folder with its results. Those are tested instead, with the locked dependencies.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.cli.commands import END_SECONDS, clean_environment

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """A venv in which this project is installed."""

    venv: Path

    def timers(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the installed command in a folder until it ends."""
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
        """Start the installed command as a process, with its output in the file `log` of the folder."""
        with (cwd / "log").open("wb") as log:
            return subprocess.Popen(
                [self.venv / "bin" / "timers", *arguments],
                cwd=cwd,
                env=clean_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def make_environment(folder: Path, packed: Path) -> Environment:
    """Install a wheel of this project, and the plugin. Takes seconds, so tests share one."""
    plugin = build(ROOT / "examples" / "invoice-reminder", folder / "plugin", "wheel")
    venv = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python")
    if "DIST" in os.environ:
        _run(*pip, "install", "--quiet", "--require-hashes", "-r", ROOT / "requirements.lock")
    else:
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
        (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    # Without an index: everything but the plugin's dependency on this project is already there.
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall")
    _run(*pip, "install", "--quiet", *offline, packed, plugin)
    return Environment(venv)


def build(project: Path, into: Path, target: Literal["wheel", "sdist"]) -> Path:
    """The wheel or sdist of a project. For this project it is the one from `make dist`, if that runs the tests."""
    if project == ROOT and "DIST" in os.environ:
        into = Path(os.environ["DIST"])
    else:
        _run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=project)
    (packed,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return packed


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a folder with these files."""
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
