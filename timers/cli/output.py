"""Owns how data look on stdout: a table for people, JSON or one JSON line a record for programs."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Output = Annotated[Format, typer.Option("-o", "--output", help="How to show it.")]


def show_timer(timer: Mapping[str, Any], form: Format) -> None:
    """One timer."""
    if form is Format.TABLE:
        typer.echo(_as_table(timer))
    else:
        typer.echo(json.dumps(timer, indent=2 if form is Format.JSON else None))


def _as_table(timer: Mapping[str, Any]) -> str:
    """One field a line; the history last, one transition a line."""
    width = max(map(len, timer)) + 2
    lines = [f"{name:<{width}}{_cell(value)}" for name, value in timer.items() if name != "history"]
    for position, entry in enumerate(timer["history"]):
        late = "" if entry["lateness_ms"] is None else f"  {entry['lateness_ms']} ms late"
        told = f"{entry['at']}  {entry['status']:<9}  attempt {entry['attempt']}{late}  {_cell(entry['note'])}"
        lines.append(f"{'' if position else 'history':<{width}}{told}")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Text as it is unless it could steer a terminal; everything else as JSON."""
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)
