"""`docs/logs.md` lists exactly the events that the code logs, with their levels and fields."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

LEVELS: Final = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}

SPREAD: Final = {"run.named": "the run", "named": "the run", "found": "the counts"}
"""How the page calls what a call spreads over its line: `**run.named`."""


class Logged(NamedTuple):
    """The level and fields of one event."""

    level: str
    fields: frozenset[str]


def calls() -> Iterator[ast.Call]:
    """Every call of a logger in the code."""
    for folder in ("timers", "processors"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                    logger = ast.unparse(node.func.value)
                    if re.search(r"log\b|\bget_logger\(", logger):
                        yield node


def field_of(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        return SPREAD[ast.unparse(keyword.value).partition("(")[0]]
    return "exception" if keyword.arg == "exc_info" else keyword.arg


def in_the_code() -> dict[str, Logged]:
    """The events in the code. If two places log the same event, it has the fields of both."""
    levels, fields = dict[str, str](), defaultdict[str, set[str]](set)
    for call in calls():
        assert isinstance(call.func, ast.Attribute)
        event = ast.literal_eval(call.args[0])
        assert isinstance(event, str), f"an event is a text that can be looked up: {ast.unparse(call)}"
        levels[event] = LEVELS[call.func.attr]
        fields[event] |= {field_of(keyword) for keyword in call.keywords}
        if call.func.attr == "exception":
            fields[event].add("exception")
    return {event: Logged(level, frozenset(fields[event])) for event, level in levels.items()}


def on_the_page() -> dict[str, Logged]:
    text = (ROOT / "docs" / "logs.md").read_text("utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \|(.*?)\| .+ \|$", text, re.MULTILINE)
    return {event: Logged(level, frozenset(re.findall(r"the \w+|\w+", fields))) for event, level, fields in rows}


def test_the_page_has_every_event_that_is_logged() -> None:
    assert on_the_page() == in_the_code()
