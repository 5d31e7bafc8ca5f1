"""Owns the commands that carry timers elsewhere: `timers copy`, which moves a service; `timers export` and
`timers import`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, BinaryIO, Final

import typer

from timers.cli.shared import OnlyOf, Output, cell, given_file, note, progress, resumable, run, show
from timers.client import TimerClient, open_redis
from timers.client.backup import IfExists, Import, export, number_of_timers
from timers.client.moving import Mover, abort, by_prefix
from timers.core.durations import FromNow, format_time, parse_bound, parse_ms, parse_time
from timers.core.fields import check_prefixes
from timers.errors import ConfigurationError, InvalidInput
from timers.setting_values import MAX_SHARDS, check_given_url, redacted, without_account
from timers.settings import load_worker_settings
from timers.store.moving import counted
from timers.store.store import Store

app = typer.Typer()

LINE_LIMIT_BYTES: Final = 16 * 2**20
"""Of a line in an export: more than any record takes."""

_AGAIN = "reopen the source with --abort, or repeat the command"


@app.command("copy")
def copy(
    from_url: Annotated[str, typer.Argument(metavar="FROM_URL", help="The Redis where the service is.")],
    to_url: Annotated[
        str | None, typer.Argument(metavar="TO_URL", help="An empty Redis db, or cluster, to move it to.")
    ] = None,
    *,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="N", min=1, max=MAX_SHARDS, help="The number of shards there.")
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for timers that run.")
    ] = "60s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and count what it would move.")] = False,
    abort_: Annotated[
        bool, typer.Option("--abort", help="Reopen FROM_URL after a move that was not finished.")
    ] = False,
    output: Output = "table",
) -> None:
    """Move the service to another server, to a cluster, or to another number of shards. All timers stay exactly as they
    are; callers get 503 meanwhile, and due timers wait. Repeat it after an interruption."""
    check_given_url("FROM_URL", from_url)
    if abort_:
        if to_url is not None or dry_run:
            raise InvalidInput.of("--abort", "TO_URL" if to_url else "--dry-run", "FROM_URL alone")
        asyncio.run(_abort(from_url))
        return
    if to_url is None:
        raise InvalidInput.of("TO_URL", None, "the URL of an empty db")
    check_given_url("TO_URL", to_url)
    asyncio.run(_copy(from_url, to_url, shards, parse_ms(wait, "--wait") / 1000, output, dry_run=dry_run))


async def _copy(
    from_url: str, to_url: str, shards: int | None, wait_seconds: float, output: Output, *, dry_run: bool
) -> None:
    async with _opened("FROM_URL", from_url) as source, _opened("TO_URL", to_url, shards) as target:
        places = without_account(from_url), without_account(to_url)
        mover = Mover(source, target, places, tell=note, wait_seconds=wait_seconds)
        if dry_run:
            await mover.check()
            found = await counted(source)
            _show({"moved": False, "timers": sum(found.values()), "by_prefix": by_prefix(found)}, output)
            return
        with resumable(_AGAIN):
            report = await mover.run()
        if report.was_done:
            note(f"the service has moved to {places[1]} already")
            return
        note(f"the service has moved to {places[1]}; give its pods and callers that URL")
        if report.unreadable:
            note(f"{report.unreadable} records cannot be read; they lie in the new quarantine")
        _show(report.to_json(), output)


async def _abort(url: str) -> None:
    async with _opened("FROM_URL", url) as source:
        note(f"the service stays; what was copied to {await abort(source)} can be deleted")


@asynccontextmanager
async def _opened(name: str, url: str, shards: int | None = None) -> AsyncIterator[Store]:
    """The store of a db; errors speak of the argument with this name."""
    settings = load_worker_settings().model_copy(update={"shards": shards, "ledger_url": None})
    try:
        store = await open_redis(url, settings)
        try:
            yield store
        finally:
            await store.connections.close()
    except ConfigurationError as error:
        said = str(error).replace("TIMERS_REDIS_URL", name).replace("TIMERS_SHARDS", "--shards")
        if said == str(error):  # it is about the other db, and says so already
            raise
        raise ConfigurationError(f"{said} ({redacted(url)})" if redacted(url) not in said else said) from error


def _show(report: Mapping[str, Any], output: Output) -> None:
    rows = [
        {"what": f"{prefix} {status}", "number": n}
        for prefix, counts in report["by_prefix"].items()
        for status, n in counts.items()
    ]
    carried = ({"what": what, "number": n} for what, n in report.get("carried", {}).items() if n)
    show(report, output, [*rows, *carried])


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
                    note(f"the record of {cell(member)} cannot be read and is left out")
                written, unreadable = page.written, unreadable + len(page.unreadable)
                tell(page.seen)
        sys.stdout.buffer.flush()
        return written, unreadable

    written, unreadable = run(write)
    note(f"{written} timers exported")
    if unreadable:
        raise typer.Exit(1)


def _since(text: str) -> int:
    try:
        bound = parse_bound(text)
    except InvalidInput as error:
        raise error.under("--since") from None
    if isinstance(bound, FromNow) and bound > 0:  # a backup of nothing
        raise InvalidInput.of("--since", text, f"a time that has passed, such as -{text.removeprefix('+')}")
    return bound


@app.command("import")
def import_all(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="An export; - or nothing for stdin.")] = "-",
    *,
    if_exists: Annotated[
        IfExists,
        typer.Option(
            help="If the timer exists: the one created or changed later stays, the existing one, or the export's."
        ),
    ] = "newer",
    rebase: Annotated[
        bool, typer.Option("--rebase", help="Move all due times by the age of the export at the start of the import.")
    ] = False,
    rebase_at: Annotated[
        str | None,
        typer.Option(
            "--rebase-at",
            metavar="TIME",
            help="As --rebase, by its age at TIME: to repeat an interrupted --rebase, which has said TIME.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what it would do.")] = False,
    output: Output = "table",
) -> None:
    """Put the timers of an export into this db. Repeat it after an interruption: what it has imported stays. Exit with
    1 if a line is bad or the export was cut."""
    told_ms = None if rebase_at is None else parse_time(rebase_at, "--rebase-at")

    async def put(client: TimerClient, store: Store) -> Import:
        lines, at_ms = _lines(opened), told_ms
        if at_ms is None and rebase:
            at_ms = await store.now_ms()
        begun = Import(
            store,
            next(lines, b""),
            tell=lambda number, why: note(f"line {number}: {' '.join(why.split())}"),
            if_exists=if_exists,
            rebased_at_ms=at_ms,
            dry_run=dry_run,
            ledger=client.ledger,
        )
        again = "repeat the import"
        if at_ms is not None and not dry_run:
            again += f" with --rebase-at {format_time(at_ms)}"
            note(f"if this is interrupted, {again}: with --rebase, what is left would move further")
        with resumable(again):
            return await _take_all(begun, lines)

    with given_file("FILE", file) as opened:
        done = run(put)
    _show_import(done, output, dry_run=dry_run)


async def _take_all(begun: Import, lines: Iterator[bytes | None]) -> Import:
    with progress("import", begun.expected) as tell:
        for number, line in enumerate(lines, 1):
            await begun.take(line)
            if not number % 1000:
                tell(number)
        return await begun.end()


def _show_import(done: Import, output: Output, *, dry_run: bool) -> None:
    """Exits with 1 if a line is bad or the export was cut."""
    by_result = [(kind, result, n) for kind, found in done.by_result.items() for result, n in found.items()]
    rows = [{"what": kind, "result": result, "number": n} for kind, result, n in by_result]
    show({"dry_run": dry_run, **done.to_json()}, output, rows)
    if done.trouble is not None:
        note(done.trouble)
    if done.bad:
        note(f"{done.bad} bad lines")
    if done.bad or done.trouble is not None:
        raise typer.Exit(1)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines; None for one that is too long."""
    while line := file.readline(LINE_LIMIT_BYTES):
        if len(line) < LINE_LIMIT_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_LIMIT_BYTES)
        yield None
