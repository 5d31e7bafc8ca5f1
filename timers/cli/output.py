"""Owns the format of data on stdout: a table for people; JSON, or a JSON line per record, for programs."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Output = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]


def show_document(document: Any, form: Format) -> None:
    """Show one JSON document, indented for `json`."""
    typer.echo(json.dumps(document, indent=2 if form is Format.JSON else None))


def show_lines(lines: Sequence[str], form: Format) -> None:
    """Show a text line by line. Programs get a JSON array, or one JSON string a line."""
    match form:
        case Format.TABLE:
            typer.echo("\n".join(lines))
        case Format.JSON:
            typer.echo(json.dumps(lines, indent=2))
        case Format.JSONL:
            typer.echo("\n".join(map(json.dumps, lines)))


@contextmanager
def progress(label: str, number: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal. Call the result with how many of about `number` are
    done."""
    with typer.progressbar(length=number, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        yield lambda done: bar.update(done - bar.pos)


def show_timer(timer: Mapping[str, Any], form: Format) -> None:
    """Show one timer."""
    if form is Format.TABLE:
        typer.echo(_as_table(timer))
    else:
        typer.echo(json.dumps(timer, indent=2 if form is Format.JSON else None))


def show_record(record: Mapping[str, Any], form: Format) -> None:
    """Show one record of plain fields."""
    if form is Format.TABLE:
        width = max(map(len, record)) + 2
        typer.echo("\n".join(f"{name:<{width}}{cell(value)}" for name, value in record.items()))
    else:
        typer.echo(json.dumps(record, indent=2 if form is Format.JSON else None))


def show_records(records: Sequence[Mapping[str, Any]], form: Format) -> None:
    """Show records with the same fields: as the lines of a table, as a JSON array, or as JSON lines."""
    match form:
        case Format.TABLE:
            typer.echo("\n".join(_columns(records)))
        case Format.JSON:
            typer.echo(json.dumps(records, indent=2))
        case Format.JSONL:
            for record in records:
                typer.echo(json.dumps(record))


def _columns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    if not records:
        return ["none"]
    rows = [[name.upper() for name in records[0]], *([_short(v) for v in record.values()] for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return ",".join(map(cell, value)) if isinstance(value, list) else cell(value)


def _as_table(timer: Mapping[str, Any]) -> str:
    """One field per line, and the history last, with one transition per line."""
    width = max(map(len, timer)) + 2
    lines = [f"{name:<{width}}{cell(value)}" for name, value in timer.items() if name != "history"]
    for position, entry in enumerate(timer["history"]):
        who = entry["processor"] or entry["by"]
        by = "" if who is None else f"  by {cell(who)}"
        late = "" if entry["lateness_ms"] is None else f"  {entry['lateness_ms']} ms late"
        told = f"{entry['at']}  {entry['status']:<9}  attempt {entry['attempt']}{by}{late}  {cell(entry['note'])}"
        lines.append(f"{'' if position else 'history':<{width}}{told}")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """Text is shown as it is, unless it could control a terminal. Everything else is shown as JSON."""
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)
