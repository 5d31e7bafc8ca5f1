"""What is imported when: no command waits for the imports of another, and the help and the version for none."""

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
import typer

import timers
from tests.cli.commands import END_SECONDS, CommandLine
from timers.cli import COMMANDS

NEVER = ("api", "app", "dashboard", "engine", "processor", "metrics")
"""What runs or serves timers."""

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


def modules_imported_by(*command: str) -> set[str]:
    """The modules that a command has imported by its end, whatever its exit code."""
    report = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules))))"
    run = [sys.executable, "-c", f"{report}; import runpy; " + "; ".join(command)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    return set(json.loads(ended.stdout.splitlines()[-1]))


def imported_by(*command: str) -> set[str]:
    """The packages of these modules."""
    return {name.partition(".")[0] for name in modules_imported_by(*command)}


def test_run_as_a_module_it_imports_no_client_or_server_either() -> None:
    imported = imported_by("sys.argv[1:] = ['--version']", "runpy.run_module('timers', run_name='__main__')")
    assert imported.isdisjoint({"aiohttp", "redis", "typer"})


def test_the_help_and_a_misspelt_command_import_nothing_of_the_service() -> None:
    for words in (["--help"], ["crate"]):
        modules = modules_imported_by(f"sys.argv[1:] = {words}", "runpy.run_module('timers', run_name='__main__')")
        assert {name for name in modules if name.startswith("timers.")} <= {"timers.cli", "timers.errors"}
        assert {"aiohttp", "jinja2", "redis", "structlog", "whenever"}.isdisjoint(modules)


def test_a_command_on_a_timer_imports_nothing_that_runs_or_serves_timers() -> None:
    words = "sys.argv[1:] = ['get', 'log', 'a', '--url', 'redis://127.0.0.1:1/0']"
    modules = modules_imported_by(words, "runpy.run_module('timers', run_name='__main__')")
    assert {"timers.client", "redis"} <= modules
    assert {"aiohttp", "jinja2", *("timers." + name for name in NEVER)}.isdisjoint(modules)
    assert {"attr", "opentelemetry.context", "pydantic_settings", "pygments", "rich", "structlog"}.isdisjoint(modules)
    assert len(modules) < 500


@pytest.mark.parametrize(("module", "commands"), COMMANDS.items())
def test_the_list_of_commands_has_what_the_modules_have(module: str, commands: Mapping[str, str]) -> None:
    made = typer.main.get_group(import_module(f"timers.cli.{module}").app).commands
    assert made.keys() == commands.keys()
    for name, said in commands.items():
        assert " ".join((made[name].help or "").split()).startswith(said)


def test_a_module_of_processors_imports_no_client_of_redis() -> None:
    imported = imported_by("from timers import Context, Fail, Rearm, Retry, Timer, processor, Unavailable")
    assert imported.isdisjoint({"aiohttp", "redis", "structlog", "typer"})


def test_every_public_name_is_what_a_type_checker_takes_it_for() -> None:
    nodes = list(ast.walk(ast.parse(Path(timers.__file__).read_text())))
    typed = {
        name: vars(module)[name]
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("timers.")
        for module in [import_module(node.module)]
        for alias in node.names
        for name in (vars(module).keys() & set(timers.__all__) if alias.name == "*" else [alias.name])
    }
    assert typed.keys() == set(timers.__all__) <= set(dir(timers))
    errors = {name for name, found in vars(timers.errors).items() if inspect.isclass(found)}
    assert {name for name in errors if issubclass(vars(timers.errors)[name], timers.TimersError)} <= typed.keys()
    assert {name for name, found in typed.items() if getattr(timers, name) is not found} == set()
    with pytest.raises(AttributeError, match="'timers' has no attribute 'TimerCleint'"):
        _ = timers.TimerCleint  # type: ignore[attr-defined]


def test_a_module_imported_first_leaves_the_decorator_its_name() -> None:
    told = imported_by("import timers.processor", "from timers import processor", "processor('log')", "import aiohttp")
    assert "aiohttp" in told, "it came to the end"
