"""Owns what the commands share: how they reach the timers, the format of data on stdout, and what a shell completes."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar

import typer

from timers.client import TimerClient, client_of, open_redis
from timers.core.fields import OWN_PREFIXES, is_own
from timers.core.model import Status
from timers.embedded import reachable_url
from timers.errors import InvalidInput, LedgerUnavailable, Moving, Unavailable
from timers.settings import load_worker_settings
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.store import Store

T = TypeVar("T")

COMPLETION_SECONDS: Final = 2.0
COMPLETIONS: Final = 100


def run(act: Callable[[TimerClient, Store], Awaitable[T]], **options: str | None) -> T:
    """Run `act` with a client of the Redis of the settings, or of the embedded server of a running `timers dev`, and
    with the client's store; then close the connections. `options` stand for settings (`TIMERS_SHARDS="4"`)."""

    async def opened() -> T:
        settings = load_worker_settings(**{name: value for name, value in options.items() if value is not None})
        store = await open_redis(await reachable_url(settings.redis_url, settings.data_dir), settings)
        async with client_of(store, settings) as client:
            return await act(client, store)

    return asyncio.run(opened())


@contextmanager
def resumable(again: str) -> Iterator[None]:
    """Say with the error of a server that is away how to go on: to `again`, a command that continues where this one
    stopped."""
    try:
        yield
    except Moving:
        raise
    except (Unavailable, LedgerUnavailable) as error:
        error.args = (f"{error}; {again}, which continues where this one stopped",)
        raise


Format = Literal["table", "json", "jsonl"]
Output = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]


def show(data: Any, form: Format, for_people: Any = None) -> None:
    """Show lines of text, records with the same fields, or one record. For people, who get what is `for_people` if that
    differs: lines, the rows of a table, or a line for each field. For programs: JSON, or for `jsonl` each on one
    line."""
    if form == "json":
        typer.echo(json.dumps(data, indent=2))
    elif form == "jsonl":
        for each in data if isinstance(data, list) else [data]:
            typer.echo(json.dumps(each))
    else:
        shown = data if for_people is None else for_people
        typer.echo("\n".join(_fields(shown) if isinstance(shown, Mapping) else table(shown)))


def table(records: Sequence[Any]) -> Sequence[str]:
    """The rows of a table of records with the same fields, as lines; lines as they are."""
    if not records:
        return ["none"]
    if isinstance(records[0], str):
        return records
    rows = [[name.upper() for name in records[0]], *([_short(v) for v in record.values()] for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return ",".join(map(cell, value)) if isinstance(value, list) else cell(value)


def _fields(record: Mapping[str, Any]) -> list[str]:
    """One field per line, and a timer's history last, with one transition per line."""
    width = max(map(len, record)) + 2
    lines = [f"{name:<{width}}{cell(value)}" for name, value in record.items() if name != "history"]
    for position, entry in enumerate(record.get("history", ())):
        who = entry["processor"] or entry["by"]
        by = "" if who is None else f"  by {cell(who)}"
        late = "" if entry["lateness_ms"] is None else f"  {entry['lateness_ms']} ms late"
        told = f"{entry['at']}  {entry['status']:<9}  attempt {entry['attempt']}{by}{late}  {cell(entry['note'])}"
        lines.append(f"{'' if position else 'history':<{width}}{told}")
    return lines


def cell(value: Any) -> str:
    """Text is shown as it is, unless it could control a terminal. Everything else is shown as JSON."""
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def given_file(name: str, path: str) -> AbstractContextManager[BinaryIO]:
    """The file at the path, or stdin for `-`. Raises InvalidInput, which names the argument."""
    try:
        return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")
    except OSError as error:
        raise InvalidInput.of(name, path, f"a file that can be read ({error.strerror})") from None


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end this command as Ctrl-C does: with what its `finally` says. Under `nohup`, SIGHUP stays
    ignored."""
    for ends in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ends) is not signal.SIG_IGN:
            signal.signal(ends, lambda *_: signal.raise_signal(signal.SIGINT))


def note(said: str) -> None:
    """Say on stderr how the work went."""
    typer.echo(f"timers: {said}", err=True)


@contextmanager
def progress(label: str, number: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal. Call the result with how many of about `number` are
    done."""
    with typer.progressbar(length=number, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        yield lambda done: bar.update(done - bar.pos)


def _completed(read: Callable[[TimerClient, Store], Awaitable[Sequence[str]]], incomplete: str) -> Sequence[str]:
    """What begins with the text; nothing if it cannot be read in time."""

    async def in_time(client: TimerClient, store: Store) -> Sequence[str]:
        async with asyncio.timeout(COMPLETION_SECONDS):
            return await read(client, store)

    try:
        return [each for each in run(in_time) if each.startswith(incomplete)][:COMPLETIONS]
    except Exception:  # noqa: BLE001 (an error would be written into the line that is being typed)
        return []


def _statuses(incomplete: str) -> Sequence[str]:
    """The text may be a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{status.value}" for status in Status if status.value.startswith(last)]


def complete_prefixes(incomplete: str) -> Sequence[str]:
    async def read(client: TimerClient, store: Store) -> Sequence[str]:
        asked = f"{OWN_PREFIXES}*" if is_own(incomplete) else None
        return [view.prefix for view in await client.prefixes(asked)]

    return _completed(read, incomplete)


def _ids(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The ids of the prefix given before it."""
    prefix = context.params.get("prefix")

    async def read(client: TimerClient, store: Store) -> Sequence[str]:
        wanted = Filter.parse({"prefix": prefix}).where(lambda timer: timer.id.startswith(incomplete))
        return [timer.id for timer in (await read_page(store, wanted, limit=COMPLETIONS)).items]

    return _completed(read, incomplete) if prefix else []


_PREFIX: Final = typer.Argument(help="The timer's prefix.", show_default=False, autocompletion=complete_prefixes)
_ID: Final = typer.Argument(help="The timer's id.", show_default=False, autocompletion=_ids)
OnePrefix = Annotated[str, _PREFIX]
OneId = Annotated[str, _ID]
Prefix = Annotated[str | None, _PREFIX]
Id = Annotated[str | None, _ID]
ExactPrefix = Annotated[
    str, typer.Argument(help="Which prefix, exactly.", show_default=False, autocompletion=complete_prefixes)
]


def prefix_option(said: str) -> Any:
    return typer.Option("--prefix", metavar="PREFIX", help=said, autocompletion=complete_prefixes)


Of = Annotated[str | None, prefix_option("All with this prefix; login-* matches several.")]
OnlyOf = Annotated[str | None, prefix_option("Only timers of this prefix; login-* …")]
WithStatus = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="All with this status; repeatable.", autocompletion=_statuses),
]
