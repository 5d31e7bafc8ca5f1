"""No two public classes in the project have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import timers
import timers_processors

ROOTS = [Path(package.__path__[0]) for package in (timers, timers_processors)]


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict[str, list[str]](list)
    for path in (path for root in ROOTS for path in sorted(root.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.name}:{node.lineno}")
    assert len(places) > 200, "the classes are found"
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
