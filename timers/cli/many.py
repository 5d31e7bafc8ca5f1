"""Owns the commands that show many timers: ls, stats."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from timers.cli.acting import DueAfter, DueBefore, Of, WithStatus, WithTag
from timers.cli.output import Format, Output, show_document, show_records
from timers.cli.session import run
from timers.core.model import Timer
from timers.store.listing import PageRequest

_COLUMNS: Final = ("prefix", "id", "status", "due_at", "attempt", "failures", "version")


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (ls, stats):
        app.command()(command)


def ls(
    prefix: Of = None,
    *,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Timers on the page, up to 1000.")] = 100,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """List timers, page by page: running ones first, then by due time."""
    wanted = {"prefix": prefix, "status": status, "tag": tag, "due_after": due_after, "due_before": due_before}
    asked = PageRequest.parse({**wanted, "limit": limit, "cursor": cursor})
    found = run(lambda session: session.client.page(asked))
    if output is Format.JSON:
        show_document({"items": [timer.to_json() for timer in found.items], "next_cursor": found.next_cursor}, output)
        return
    show_records([_line(timer, output) for timer in found.items], output)
    if found.next_cursor is not None:
        typer.echo(f"timers: there is more; --cursor {found.next_cursor}", err=True)


def _line(timer: Timer, form: Format) -> Mapping[str, Any]:
    shown = timer.to_json()
    return {name: shown[name] for name in _COLUMNS} if form is Format.TABLE else shown


def stats(output: Output = Format.TABLE) -> None:
    """Show counts, lateness, what is overdue, and whether notifications arrive."""
    found = run(lambda session: session.client.stats()).to_json()
    if output is not Format.TABLE:
        show_document(found, output)
        return
    late = found["lateness_ms"]
    summary = {"notifications": found["notifications"], "overdue_ms": found["overdue_ms"], "pods": len(found["pods"])}
    show_records([{**summary, **{f"late_{name}_ms": value for name, value in late.items()}}], output)
    typer.echo()
    by_prefix = [{"prefix": prefix, **counts} for prefix, counts in found["by_prefix"].items()]
    show_records([*by_prefix, {"prefix": "all", **found["by_status"]}], output)
