"""`timers --version`: scripts call it, so it must not import what other commands need."""

import json
import subprocess
import sys

import pytest

import timers
from tests.cli.commands import END_SECONDS, CommandLine

ASK = """
import json, sys
sys.argv = ["timers", "--version"]
before = set(sys.modules)
from timers_processors.command import main
main()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_version_needs_few_imports(bare: CommandLine) -> None:
    ended = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=END_SECONDS, check=True)
    told, imported = ended.stdout.splitlines()
    assert told == bare("--version").out.strip()
    packages = {name.partition(".")[0] for name in json.loads(imported)}
    assert packages - sys.stdlib_module_names == {"timers_processors"}
    assert len(json.loads(imported)) < 150


def imported_by(*command: str) -> set[str]:
    """The packages that a command has imported by its end."""
    report = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules))))"
    run = "import runpy; " + "; ".join(command)
    ended = subprocess.run(
        [sys.executable, "-c", f"{report}; {run}"], capture_output=True, text=True, timeout=END_SECONDS, check=True
    )
    return {name.partition(".")[0] for name in json.loads(ended.stdout.splitlines()[-1])}


def test_run_as_a_module_it_imports_no_client_or_server_either() -> None:
    imported = imported_by("sys.argv[1:] = ['--version']", "runpy.run_module('timers', run_name='__main__')")
    assert imported.isdisjoint({"aiohttp", "redis", "typer"})


def test_a_module_of_processors_imports_no_client_of_redis() -> None:
    imported = imported_by("from timers import Context, Fail, Rearm, Retry, Timer, processor, Unavailable")
    assert imported.isdisjoint({"aiohttp", "redis", "typer"})


def test_every_public_name_is_there() -> None:
    assert {name for name in timers.__all__ if not hasattr(timers, name)} == set()
    with pytest.raises(AttributeError, match="'timers' has no attribute 'TimerCleint'"):
        _ = timers.TimerCleint  # type: ignore[attr-defined]
