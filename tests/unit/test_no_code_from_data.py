"""Data cannot become code: no pickle, no eval, no import by a name from data."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import timers
import timers_processors

ROOTS = [Path(package.__path__[0]) for package in (timers, timers_processors)]
SOURCES = sorted(path for root in ROOTS for path in root.rglob("*.py"))

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "code"}
CALLS = {"eval", "exec", "compile", "__import__"}
IMPORTERS = {"processor.py": "import_module"}
"""The one place that imports by name: the modules that the operator names in TIMERS_PROCESSORS."""


def findings(source: str, file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                names_of = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                names_of = [module]
            case ast.Call(func=ast.Name(called)):
                names_of = []
                if called in CALLS:
                    yield called
            case ast.Call(func=ast.Attribute(attr="import_module")):
                names_of = []
                if IMPORTERS.get(file) != "import_module":
                    yield "import_module"
            case _:
                names_of = []
        yield from (name for name in names_of if name.partition(".")[0] in MODULES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_source_makes_code_of_data(path: Path) -> None:
    assert list(findings(path.read_text("utf-8"), path.name)) == []


@pytest.mark.parametrize("path", sorted(ROOTS[0].rglob("*.lua")), ids=lambda path: path.name)
def test_no_script_makes_code_of_data(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not [word for word in ("loadstring", "load(", "dofile", "cjson", "cmsgpack") if word in text]
    assert set(re.findall(r"struct\.\w+\([^,]*", text)) <= {"struct.pack(HEAD", "struct.unpack(HEAD"}


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml as y",
        "eval('1')",
        "x = exec(y)",
        "importlib.import_module(n)",
    ],
)
def test_the_check_finds_each_forbidden_call_and_import(bad: str) -> None:
    assert list(findings(bad, "other.py"))
