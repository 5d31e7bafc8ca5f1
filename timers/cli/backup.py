"""Owns `timers export` and `timers import`."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from timers.cli.shared import OnlyOf, Output, cell, progress, run, show
from timers.client import TimerClient
from timers.client.backup import IfExists, Import, Report, export, number_of_timers
from timers.core.durations import FromNow, parse_bound
from timers.core.fields import check_prefixes
from timers.errors import InvalidInput, Unavailable
from timers.store.store import Store

LINE_LIMIT_BYTES: Final = 16 * 2**20
"""Of a line in an export: more than any record takes."""

app = typer.Typer()


@app.command("export")
def export_all(
    prefix: OnlyOf = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only timers that have changed since: -1d, or a time.")
    ] = None,
) -> None:
    """Write all timers to stdout, one JSON object per line, with declarations, pauses and keys. Exit
    with 1 if a record cannot be read."""
    if prefix is not None:
        check_prefixes(prefix)
    bound = None if since is None else _since(since)

    async def write(client: TimerClient, store: Store) -> tuple[int, int]:
        since_ms = round(await store.now_ms()) + bound if isinstance(bound, FromNow) else bound
        written = unreadable = 0
        with progress("export", await number_of_timers(store)) as tell:
            async for page in export(store, prefix=prefix, since_ms=since_ms):
                sys.stdout.buffer.write("".join(f"{line}\n" for line in page.lines).encode())
                for member in page.unreadable:
                    typer.echo(f"timers: the record of {cell(member)} cannot be read and is left out", err=True)
                written, unreadable = page.written, unreadable + len(page.unreadable)
                tell(page.seen)
        sys.stdout.buffer.flush()
        return written, unreadable

    written, unreadable = run(write)
    typer.echo(f"timers: {written} timers exported", err=True)
    if unreadable:
        raise typer.Exit(1)


def _since(text: str) -> int:
    try:
        return parse_bound(text)
    except InvalidInput as error:
        raise error.under("--since") from None


@app.command("import")
def import_all(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="An export; - or nothing for stdin.")] = "-",
    *,
    if_exists: Annotated[
        IfExists,
        typer.Option(help="If there is a timer of that name: newer keeps the one that was created or changed later."),
    ] = "newer",
    rebase: Annotated[bool, typer.Option("--rebase", help="Move all due times by the age of the export.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what it would do.")] = False,
    output: Output = "table",
) -> None:
    """Put the timers of an export into this db. Repeat it after an interruption: what is there stays. Exit with 1 if a
    line is bad or the export was cut."""

    async def put(client: TimerClient, store: Store) -> Report:
        lines = _lines(opened)
        begun = Import(
            store,
            next(lines, None) or b"",
            now_ms=await store.now_ms(),
            tell=lambda number, why: typer.echo(f"timers: line {number}: {' '.join(why.split())}", err=True),
            if_exists=if_exists,
            rebase=rebase,
            dry_run=dry_run,
        )
        try:
            with progress("import", begun.expected) as tell:
                for number, line in enumerate(lines, 1):
                    await begun.take(line)
                    if not number % 1000:
                        tell(number)
                return await begun.end()
        except Unavailable as error:
            raise Unavailable(f"{error}; repeat the import, it goes on where this one came to") from error

    with _opened(file) as opened:
        report = run(put)
    found = report.to_json()
    if output == "table":
        rows = [{"what": kind, "result": result, "number": n} for kind, result, n in report.rows()]
        show(rows, output)
    else:
        show({"dry_run": dry_run, **found}, output)
    if report.trouble is not None:
        typer.echo(f"timers: {report.trouble}", err=True)
    if report.bad:
        typer.echo(f"timers: {report.bad} bad lines", err=True)
    if report.bad or report.trouble is not None:
        raise typer.Exit(1)


def _opened(path: str) -> AbstractContextManager[BinaryIO]:
    try:
        return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")
    except OSError as error:
        raise InvalidInput.of("FILE", path, f"a file that can be read ({error.strerror})") from None


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines; None for one that is too long."""
    while line := file.readline(LINE_LIMIT_BYTES):
        if len(line) < LINE_LIMIT_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_LIMIT_BYTES)
        yield None
