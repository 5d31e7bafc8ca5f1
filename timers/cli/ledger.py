"""Owns the commands for the ledger: its database, and giving Redis back what the ledger has."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import typer

from timers.cli import COMMANDS
from timers.cli.shared import Output, note, progress, resumable, run, show
from timers.client import TimerClient
from timers.client.copies import give_back, give_facts_back, told
from timers.client.fleet import shortened
from timers.engine.following import claim_ledger
from timers.errors import ConfigurationError, LedgerUnavailable, TimersError
from timers.ledger import rows
from timers.ledger.database import Database, SchemaState
from timers.setting_values import redacted
from timers.settings import load_worker_settings
from timers.store.following import COPY, advance, detach, founded, notes, server_of, stages
from timers.store.store import Store

T = TypeVar("T")

_NONE: Final = "TIMERS_LEDGER_URL is not set; there is no ledger"
_COUNTED: Final = ("restored", "kept", "running")

app = typer.Typer()
db = typer.Typer(name="db", help=COMMANDS["ledger"]["db"], no_args_is_help=True)
app.add_typer(db)


@db.command()
def upgrade(
    without_notify: Annotated[
        bool,
        typer.Option(
            "--without-notify", help="PostgreSQL: no trigger wakes the pods for rows of the inbox; they look for them."
        ),
    ] = False,
) -> None:
    """Make the tables of the ledger, or bring them to the state that this version needs."""

    async def act(database: Database) -> SchemaState:
        await database.upgrade(notify=not without_notify)
        return await database.state()

    _, state = _run(act)
    note(f"the ledger's tables are of version {state.found}")


@db.command()
def status(output: Output = "table") -> None:
    """Show the state of the ledger's tables, and which shards of Redis do not agree with it yet, with how far they are
    (`-`: Redis does not answer). Exits with 1 if this version cannot use the tables, nothing can be written, or the
    database was set back."""

    async def look(database: Database) -> tuple[SchemaState, str | None]:
        state = await database.state()
        if state.problem is None:
            with suppress(LedgerUnavailable):
                await database.ping()
        return state, state.problem or database.trouble

    url, (state, problem) = _run(look)
    behind, problem = (None, problem) if problem else _shards_behind()
    versions = {"found": state.found, "needed": state.newest, "problem": problem}
    show({"database": url, **versions, "shards_behind": behind}, output)
    if problem is not None:
        raise typer.Exit(1)


def _shards_behind() -> tuple[list[str] | None, str | None]:
    """As `told`, None while Redis is away; and how it is said that the database was set back, if it was."""

    async def ask(client: TimerClient, store: Store) -> tuple[list[str] | None, str | None]:
        database, (_, told_ms) = await _checked(client), await server_of(store)
        try:
            await database.ping(told_ms)
        except LedgerUnavailable as error:
            return None, str(error)
        return await told(database, await stages(store, range(store.shards))), None

    try:
        return run(ask)
    except TimersError:
        return None, None


@db.command()
def refill() -> None:
    """Have the pods copy all timers from Redis to the ledger again: after its database was emptied or replaced."""

    async def ask(client: TimerClient, store: Store) -> int:
        await _checked(client)
        for shard in range(store.shards):
            await notes(store, shard, 0)
            # At an earlier stage it is copied after that anyway. A pod may say meanwhile that it is whole once more.
            while (stage := await founded(store, shard)).is_whole and not await advance(store, shard, stage, COPY):
                pass
        return len(await client.pods())

    who = "the pods copy" if run(ask) else "no pod is alive; the next one copies"
    note(f"{who} all timers to the ledger")


@db.command("detach")
def leave() -> None:
    """Stop recording changes for a ledger, after removing TIMERS_LEDGER_URL from all pods. Exits with 1 while a live
    pod has the setting, because that pod would start to record again."""

    async def act(client: TimerClient, store: Store) -> None:
        if using := [pod.pod for pod in await client.pods() if pod.has_ledger]:
            repair = "remove TIMERS_LEDGER_URL from their settings and restart them first"
            raise ConfigurationError(f"pods that are alive use the ledger: {shortened(using)}; {repair}")
        await detach(store)

    run(act)
    note("changes are no longer recorded for a ledger")


@app.command()
def rebuild(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what is missing or older in Redis.")] = False,
    output: Output = "table",
) -> None:
    """Restore to Redis the timers that are missing or older there than in the ledger. API keys, declarations and pauses
    come first. Pods do this automatically when Redis has lost its data. Repeat it after an interruption. Exit with 1
    if Redis refuses a timer, or another Redis db uses the ledger."""

    async def give(client: TimerClient, store: Store) -> list[dict[str, Any]]:
        database = await _checked(client)
        if not dry_run:
            await claim_ledger(store, database)
            await give_facts_back(store, database)  # first, so that nothing of a paused prefix starts
        found, done, report = await rows.count(database), 0, []
        with resumable("repeat it"), progress("rebuild", sum(found.values())) as tell:
            for shard in found:
                came = Counter[str]()
                async for _, codes in give_back(store, database, shard, dry_run=dry_run):
                    came.update(codes)
                    done += len(codes)
                    tell(done)
                counts = {code: came.pop(code, 0) for code in _COUNTED}
                report.append({"shard": shard, **counts, "refused": came.total()})
        return report

    report = run(give)
    show(report, output)
    if any(row["refused"] for row in report):
        raise typer.Exit(1)


async def _checked(client: TimerClient) -> Database:
    """The ledger, with tables that this version can use."""
    if client.ledger is None:
        raise ConfigurationError(_NONE)
    await client.ledger.check()
    return client.ledger


def _run(act: Callable[[Database], Awaitable[T]]) -> tuple[str, T]:
    """What `act` finds in the database of the settings, after its URL without the password."""
    url = load_worker_settings().ledger
    if url is None:
        raise ConfigurationError(_NONE)

    async def opened() -> T:
        database = Database(url)
        try:
            return await act(database)
        finally:
            await database.close()

    return redacted(url), asyncio.run(opened())
