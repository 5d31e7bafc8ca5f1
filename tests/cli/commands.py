"""Runs the command line in this process, as `main` does, and as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import ROOT, start_timers
from tests.waiting import DEADLINE_SECONDS
from timers.cli import main

END_SECONDS = DEADLINE_SECONDS
"""For a process to end."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def refusal(self, code: int = 1) -> str:
        """The one line on stderr with which a command refuses. Stdout must be empty."""
        assert (self.code, self.out) == (code, ""), self
        (line,) = self.err.splitlines()
        return line


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The `timers` command in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["timers", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self.capsys.readouterr()
        return Ended(ended.value.code if isinstance(ended.value.code, int) else 0, captured.out, captured.err)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its TIMERS_ settings, plus the settings given."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}, **extra}


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m` in a folder until it ends."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=clean_environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=2 * END_SECONDS,
        check=False,
    )


class Process:
    """The `timers` command as a process. Its output goes to files, which can be read while it runs."""

    program: Sequence[str] = ()
    """What to run instead."""

    def __init__(self, folder: Path, *arguments: str, **settings: str) -> None:
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            environ = clean_environment({"PYTHONPATH": str(ROOT), **settings})
            self._process = (
                subprocess.Popen(
                    [*self.program, *arguments],
                    cwd=folder,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                if self.program
                else start_timers(arguments, folder, environ, out, err)
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait until it ends by itself."""
        return Ended(self._process.wait(END_SECONDS), self.out, self.err)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
