"""Owns `timers copy`, which moves a service."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from timers.cli.shared import Output, show
from timers.client import open_store
from timers.client.moving import Mover, abort, preview
from timers.core.durations import parse_ms
from timers.errors import ConfigurationError, InvalidInput, Moving, Unavailable
from timers.setting_values import MAX_SHARDS, redacted, without_account
from timers.settings import load_worker_settings
from timers.store.identity import READS
from timers.store.servers.connect import connect
from timers.store.store import Store

app = typer.Typer()

_AGAIN = "repeat the command, it goes on where this one came to; or give the source back with --abort"


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
        bool, typer.Option("--abort", help="Give FROM_URL back after a move that was not finished: it goes on.")
    ] = False,
    output: Output = "table",
) -> None:
    """Move the service to another server, to a cluster, or to another number of shards. All timers stay exactly as they
    are; callers get 503 meanwhile, and due timers wait. Repeat it after an interruption."""
    if abort_:
        if to_url is not None or dry_run:
            raise InvalidInput.of("--abort", to_url or "--dry-run", "FROM_URL alone")
        place = asyncio.run(_aborted(from_url))
        _tell(f"the service stays; what was copied to {place} can be deleted")
        return
    if to_url is None:
        raise InvalidInput.of("TO_URL", "nothing", "the URL of an empty db")
    asyncio.run(_copy(from_url, to_url, shards, parse_ms(wait, "--wait") / 1000, output, dry_run=dry_run))


async def _copy(
    from_url: str, to_url: str, shards: int | None, wait_seconds: float, output: Output, *, dry_run: bool
) -> None:
    async with _opened("FROM_URL", from_url) as source, _opened("TO_URL", to_url, shards) as target:
        places = without_account(from_url), without_account(to_url)
        mover = Mover(source, target, places, tell=_tell, wait_seconds=wait_seconds)
        if dry_run:
            await mover.check()
            found = await preview(source)
            number = sum(sum(counts.values()) for counts in found.values())
            _show({"moved": False, "timers": number, "by_prefix": found}, output)
            return
        try:
            report = await mover.run()
        except Moving:
            raise
        except Unavailable as error:
            raise Unavailable(f"{error}; {_AGAIN}") from error
        if report.was_done:
            _tell(f"the service has moved to {places[1]} already")
            return
        _tell(f"the service has moved to {places[1]}; give its pods and callers that URL")
        if report.unreadable:
            _tell(f"{report.unreadable} records cannot be read; they lie in the new quarantine")
        _show(report.to_json(), output)


async def _aborted(url: str) -> str:
    async with _opened("FROM_URL", url) as source:
        return await abort(source)


@asynccontextmanager
async def _opened(name: str, url: str, shards: int | None = None) -> AsyncIterator[Store]:
    """The store of a db; errors speak of the argument with this name."""
    try:
        connections = connect(url)
        try:
            store = await open_store(connections, shards=shards)
            store.identity.newest = load_worker_settings().format or READS
            yield store
        finally:
            await connections.close()
    except ConfigurationError as error:
        said = str(error).replace("TIMERS_REDIS_URL", name).replace("TIMERS_SHARDS", "--shards")
        raise ConfigurationError(f"{said} ({redacted(url)})" if redacted(url) not in said else said) from error


def _show(report: Mapping[str, Any], output: Output) -> None:
    if output != "table":
        show(report, output)
        return
    rows = [
        {"what": f"{prefix} {status}", "number": n}
        for prefix, counts in report["by_prefix"].items()
        for status, n in counts.items()
    ]
    show([*rows, *({"what": what, "number": n} for what, n in report.get("carried", {}).items() if n)], output)


def _tell(said: str) -> None:
    typer.echo(f"timers: {said}", err=True)
