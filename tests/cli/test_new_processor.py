"""`timers new-processor`: the package that it writes passes its tests, builds, and is found once installed."""

import os
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.cli.commands import CommandLine, run_python
from tests.unit.test_slips import MYPY

NAME = "invoice-reminder"


def test_what_it_writes_passes_its_own_tests(bare: CommandLine) -> None:
    written = bare("new-processor", NAME)
    assert written.code == 0, written
    assert written.out.splitlines() == [
        f"{NAME}/pyproject.toml",
        f"{NAME}/README.md",
        f"{NAME}/src/invoice_reminder/__init__.py",
        f"{NAME}/src/invoice_reminder/py.typed",
        f"{NAME}/tests/test_invoice_reminder.py",
    ]
    ended = run_python("pytest", "-q", "-p", "no:cacheprovider", cwd=Path(NAME).absolute())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


def test_what_it_writes_is_typed_and_in_form(bare: CommandLine) -> None:
    bare("new-processor", NAME)
    project = Path(NAME).absolute()
    for arguments in (("ruff", "check", "."), ("ruff", "format", "--check", "."), (*MYPY, "src")):
        ended = run_python(*arguments, cwd=project)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_its_wheel_brings_a_processor_that_pods_find(bare: CommandLine) -> None:
    bare("new-processor", NAME)
    project = Path(NAME).absolute()
    built = run_python("hatchling", "build", "-t", "wheel", cwd=project)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall("installed")
    bare.monkeypatch.syspath_prepend(os.fspath(Path("installed").absolute()))
    found = {row["prefix"]: row for row in bare("config", "-o", "json").json["processors"]}
    assert found[NAME] == {
        "prefix": NAME,
        "function": "invoice_reminder:invoice_reminder",
        "from": f"entry point of {NAME} 0.1.0",
    }
    del sys.modules["invoice_reminder"]  # it would be taken in the next test


@pytest.mark.parametrize("prefix", ["a.b-c_d2", "x2", "x", "log-mine"])
def test_any_prefix_that_can_be_a_module_gives_a_project(bare: CommandLine, prefix: str) -> None:
    assert bare("new-processor", prefix).code == 0
    project = tomllib.loads((Path(prefix) / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["timers.processors"]
    assert list(points) == [prefix]


@pytest.mark.parametrize("name", ["Upper", "2fast", "json", "pytest", "class", "timers-mine", "../up", "ends-"])
def test_a_name_that_cannot_be_both_prefix_and_module_is_refused(bare: CommandLine, name: str) -> None:
    assert f"NAME: {name!r}" in bare("new-processor", name).refusal(2)
    assert not list(Path().iterdir())


def test_existing_files_are_never_overwritten(bare: CommandLine) -> None:
    Path(NAME).mkdir()
    assert NAME in bare("new-processor", NAME).refusal()
    assert not list(Path(NAME).iterdir())
