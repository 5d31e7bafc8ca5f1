"""Owns the commands on timers: create, from options or from a file; get, fire, ls, stats; and, for one timer or for all
that match a filter, change, cancel, reschedule, retry, purge."""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Signature, signature
from typing import Annotated, Any, Final

import typer

from timers.cli.shared import (
    Format,
    Id,
    Of,
    OneId,
    OnePrefix,
    Output,
    Prefix,
    WithStatus,
    given_file,
    note,
    progress,
    run,
    show,
    table,
)
from timers.client import BATCH_LIMIT, Armed, TimerClient
from timers.client.actions import Counts
from timers.client.fleet import read_story
from timers.core.fields import decode, decode_line, decode_text, lines_of
from timers.core.model import Timer
from timers.core.shapes import Action
from timers.core.spec import NewTimer, TimerChange
from timers.errors import InvalidInput, Refused, TimersError
from timers.store.filters import Filter
from timers.store.listing import PageRequest
from timers.store.store import Store

app = typer.Typer()

Texts = list[str] | None
WithTag = Annotated[Texts, typer.Option("--tag", metavar="TAG", help="All with this tag; repeatable.")]
DueAfter = Annotated[str | None, typer.Option("--due-after", metavar="TIME", help="All due then or later: 1h, -1d …")]
DueBefore = Annotated[str | None, typer.Option("--due-before", metavar="TIME", help="All due earlier: 1h, -1d …")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With a filter: only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With a filter: skip the confirmation.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Due in 90s, 15m, 24h, 7d, P1M …")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due at 2026-11-21T20:00:00Z, or epoch ms.")]

Payload = Annotated[str | None, typer.Option(metavar="JSON", help="Data for the processor.")]
Repeat = Annotated[
    str | None,
    typer.Option(metavar="1d|CRON|JSON", help="An interval, '0 9 * * MON-FRI' or @daily, or the API's JSON."),
]
Retry = Annotated[
    str | None, typer.Option(metavar="N|5s,1m,…|JSON", help="Maximum of attempts, a list of waits, or the API's JSON.")
]
Metadata = Annotated[Texts, typer.Option(metavar="NAME=VALUE", help="Repeatable.")]

REMOVABLE: Final = ("payload", "repeat", "retry", "tags", "metadata")
"""What `--remove` takes."""

Act = Callable[[TimerClient, str, str], Awaitable[Timer]]
"""Acts on the timer with a prefix and an id."""

Command = Callable[..., None]

_COLUMNS: Final = ("prefix", "id", "status", "due_at", "attempt", "failures", "version")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command acts on: one timer, or all that match a filter. Its fields are the command's parameters."""

    prefix: Prefix = None
    id: Id = None
    of: Of = None
    status: WithStatus = None
    tag: WithTag = None
    due_after: DueAfter = None
    due_before: DueBefore = None
    dry_run: DryRun = False
    yes: Yes = False
    output: Output = "table"

    @property
    def filter(self) -> Filter:
        """The filter; empty for one timer. Raises InvalidInput."""
        given = {"prefix": self.of, "status": self.status, "tag": self.tag}
        return Filter.parse({**given, "due_after": self.due_after, "due_before": self.due_before})

    def act(self, action: Action, one: Act, **more: Any) -> None:
        """Act on the timer or on all, with what the action needs `more`. Exits with 1 if some of all were refused."""
        wanted = self.filter
        if not wanted.is_empty:
            return self._act_on_all(action, wanted, more)
        if self.prefix is None or self.id is None:
            name = "ID" if self.prefix else "PREFIX"
            raise InvalidInput.of(name, None, "PREFIX and ID, or a filter such as --prefix")
        if self.dry_run:  # not ignored, because then it would act
            raise InvalidInput.of("--dry-run", True, "a filter beside it, such as --prefix")
        prefix, id = self.prefix, self.id
        return show(run(lambda client, _: one(client, prefix, id)).to_json(), self.output)

    def _act_on_all(self, action: Action, wanted: Filter, more: Mapping[str, Any]) -> None:
        """Count the timers, ask, then act until all are done, showing the progress on a terminal."""
        if self.prefix is not None:
            raise InvalidInput.of("PREFIX", self.prefix, "either PREFIX and ID, or a filter such as --prefix")

        async def act(client: TimerClient, store: Store) -> Counts:
            chosen = wanted.at(await store.now_ms())
            found = await client.act(action, chosen, dry_run=True, **more)
            if self.dry_run or not found.matched:
                return found
            if not self.yes:
                if not sys.stdin.isatty():
                    raise Refused(
                        f"{found.matched} timers match; without a terminal to confirm on, {action} needs --yes"
                    )
                typer.confirm(f"{action} {found.matched} timers?", abort=True, err=True)
            with progress(action, found.matched) as tell:
                counts = await client.act(action, chosen, stop=lambda some: bool(tell(some.matched)), **more)
                tell(counts.matched)
            return counts

        came = run(act)
        counts = {"matched": came.matched, "done": came.done, "refused": dict(came.refused)}
        show({"action": action, "dry_run": self.dry_run, **counts}, self.output)
        for reason, examples in came.examples.items():
            for one in examples:
                note(f"{reason}: {one['prefix']}:{one['id']}: {one['detail']}")
        if came.refused:
            raise typer.Exit(1)


def with_selection(command: Command) -> Command:
    """The command with the parameters of its selection, its own first parameter."""
    common, own = signature(Selection).parameters, list(signature(command).parameters.values())[1:]

    def targeted(**given: Any) -> None:
        command(Selection(**{name: given.pop(name) for name in common}), **given)

    prefix, id, *options = common.values()
    parameters = [each.replace(kind=each.POSITIONAL_OR_KEYWORD) for each in (prefix, id, *own, *options)]
    targeted.__name__, targeted.__doc__ = command.__name__, command.__doc__
    targeted.__annotations__ = {each.name: each.annotation for each in parameters}
    targeted.__dict__["__signature__"] = Signature(parameters)
    return targeted


@app.command()
def create(
    prefix: Prefix = None,
    id: Id = None,
    *,
    after: In = None,
    at: At = None,
    payload: Payload = None,
    repeat: Repeat = None,
    retry: Retry = None,
    missed: Annotated[
        str | None,
        typer.Option(metavar="fire|skip|latest|all|JSON", help="If it could not start in time; default fire."),
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a run may take.")] = None,
    tag: Annotated[Texts, typer.Option(metavar="TAG", help="Repeatable.")] = None,
    metadata: Metadata = None,
    if_exists: Annotated[
        str | None, typer.Option(metavar="error|replace|keep", help="If the timer exists; default error.")
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(metavar="fast|fsync|replicated|ledger", help="What to wait for; default TIMERS_DURABILITY."),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Arm all timers in a file: the API's JSON, or one per line.")
    ] = None,
    output: Output = "table",
) -> None:
    """Arm a timer, or many with --batch. Exit with 1 if any was refused."""
    if prefix is None and batch is None:
        raise InvalidInput.of("PREFIX", None, "a prefix, or --batch FILE")
    rest = {
        "missed": _json_or(missed, "missed", str),
        "timeout": timeout,
        "if_exists": if_exists,
        "durability": durability,
    }
    given = _fields(payload, repeat, retry, tag, metadata, prefix=prefix, id=id, **rest)
    if after is not None or at is not None or (batch is None and not given.keys() & {"repeat", "retry"}):
        given |= due_of(after, at)
    if batch is None:
        new = NewTimer.parse(given)
        show(run(lambda client, _: client.arm(new)).timer.to_json(), output)
    elif given:
        raise InvalidInput.of(
            next(iter(given)), next(iter(given.values())), "no other option with --batch; put it into the file"
        )
    else:
        _create_all(_read(batch), output)


@app.command()
@with_selection
def change(
    chosen: Selection,
    after: In = None,
    at: At = None,
    *,
    payload: Payload = None,
    repeat: Repeat = None,
    retry: Retry = None,
    set_tag: Annotated[
        Texts,
        typer.Option(metavar="TAG", help="The new tags; repeatable. Beside PREFIX and ID, --tag does the same."),
    ] = None,
    metadata: Metadata = None,
    remove: Annotated[
        Texts,
        typer.Option(metavar="FIELD", help="Remove payload, repeat, retry, tags or metadata; repeatable."),
    ] = None,
) -> None:
    """Change fields of a scheduled timer, or of all that match a filter. What is not given stays."""
    if chosen.id is not None and chosen.tag:
        set_tag = [*chosen.tag, *(set_tag or ())]
        chosen = replace(chosen, tag=None)
    given = _fields(payload, repeat, retry, set_tag, metadata)
    if after is not None or at is not None:
        given |= due_of(after, at)
    for field in remove or ():
        if field in given or field not in REMOVABLE:
            raise InvalidInput.of("remove", field, f"one of {', '.join(REMOVABLE)} that is not given too")
        given[field] = None
    if not given:
        raise InvalidInput.of("payload", None, "at least one field to change: --payload, --retry, --set-tag, --in …")
    changes = TimerChange.parse(given)
    chosen.act("change", lambda client, prefix, id: client.change(prefix, id, changes), changes=changes)


def _fields(
    payload: str | None, repeat: str | None, retry: str | None, tags: Any, metadata: Texts, **more: Any
) -> dict[str, Any]:
    """The fields that are given, as in the API."""
    given = {
        **more,
        "payload": None if payload is None else decode_text(payload, "payload"),
        "repeat": _json_or(repeat, "repeat", lambda text: {"cron" if _is_cron(text.strip()) else "every": text}),
        "retry": _json_or(retry, "retry", _retry),
        "tags": tags,
        "metadata": None if metadata is None else dict(map(_pair, metadata)),
    }
    return {name: value for name, value in given.items() if value is not None}


def _is_cron(text: str) -> bool:
    return " " in text or text.startswith("@")


def _retry(text: str) -> Any:
    return {"max_attempts": int(text)} if text.isdecimal() else {"backoff": text.split(",")}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput.of("metadata", text, "NAME=VALUE")
    return name, value


def _json_or(text: str | None, field: str, short: Callable[[str], Any]) -> Any:
    """JSON if it is an object, otherwise what the short form means; None stays."""
    if text is None:
        return None
    return decode_text(text, field) if text.startswith("{") else short(text)


def _create_all(timers: Sequence[Any], output: Format) -> None:
    async def arm(client: TimerClient, store: Store) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        with progress("create", len(timers)) as tell:
            for start in range(0, len(timers), BATCH_LIMIT):
                some = timers[start : start + BATCH_LIMIT]
                for asked, came in zip(some, await client.batch(some), strict=True):
                    shown.append({"number": len(shown) + 1, **_result(asked, came)})
                tell(len(shown))
        return shown

    results = run(arm)
    show(results, output)
    refused = sum(each["error"] is not None for each in results)
    note(f"{len(results) - refused} of {len(results)} armed")
    if refused:
        raise typer.Exit(1)


def _result(asked: object, came: Armed | TimersError) -> dict[str, Any]:
    if isinstance(came, Armed):
        return {"prefix": came.timer.prefix, "id": came.timer.id, "result": came.how, "error": None}
    known = asked if isinstance(asked, dict) else {}
    return {"prefix": known.get("prefix"), "id": known.get("id"), "result": "refused", "error": str(came)}


def _read(path: str) -> list[Any]:
    """The timers in a JSON array, in the API's `{"timers": […]}`, or in a file with one JSON object per line: the
    fields of each, or the error that says why it has none."""
    with given_file("batch", path) as file:
        raw = file.read()
    try:
        whole = decode(raw.strip())
    except ValueError:
        whole = list(map(decode_line, lines_of(raw)))
    if isinstance(whole, dict) and whole.keys() == {"timers"}:
        whole = whole["timers"]
    timers, rule = whole if isinstance(whole, list) else [whole], "a JSON object as in POST /v1/timers"
    return [each if isinstance(each, dict | InvalidInput) else InvalidInput.of("", each, rule) for each in timers]


@app.command()
def get(
    prefix: OnePrefix,
    id: OneId,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain why it was late, ran twice or did not run.")
    ] = False,
    output: Output = "table",
) -> None:
    """Show a timer."""

    async def found(client: TimerClient, store: Store) -> tuple[Timer, list[str]]:
        timer = await client.get(prefix, id)
        return timer, await read_story(store, timer) if explain else []

    timer, story = run(found)
    show(story if explain else timer.to_json(), output)


@app.command()
def fire(prefix: OnePrefix, id: OneId, output: Output = "table") -> None:
    """Make a scheduled timer due now."""
    show(run(lambda client, _: client.fire(prefix, id)).to_json(), output)


@app.command()
@with_selection
def cancel(
    chosen: Selection,
    purge: Annotated[bool, typer.Option("--purge", help="For one timer: also remove its record.")] = False,
) -> None:
    """Cancel a scheduled timer, or all that match a filter. None of them starts afterwards."""
    if purge and not chosen.filter.is_empty:
        raise InvalidInput.of("--purge", True, "PREFIX and ID beside it; `timers purge` takes a filter")
    chosen.act("cancel", lambda client, prefix, id: client.cancel(prefix, id, purge=purge))


@app.command()
@with_selection
def reschedule(chosen: Selection, after: In = None, at: At = None) -> None:
    """Change the due time of a scheduled timer, or of all that match a filter."""
    due = due_of(after, at)
    chosen.act("reschedule", lambda client, prefix, id: client.reschedule(prefix, id, **due), **due)


@app.command()
@with_selection
def retry(chosen: Selection) -> None:
    """Arm a failed, unhandled or cancelled timer again, due now; or all that match a filter."""
    chosen.act("retry", lambda client, prefix, id: client.retry(prefix, id))


@app.command()
@with_selection
def purge(chosen: Selection) -> None:
    """Remove the record of a timer, or of all that match a filter. Running timers are refused; scheduled ones never
    run."""
    chosen.act("purge", lambda client, prefix, id: client.cancel(prefix, id, purge=True))


def due_of(after: str | None, at: str | None) -> dict[str, Any]:
    """The field that `--in` or `--at` sets. Raises InvalidInput if both or neither are given."""
    if after is not None and at is None:
        return {"delay": after}
    if at is not None and after is None:
        return {"due_at": at}
    raise InvalidInput.of("delay", after, "exactly one of --in and --at")


@app.command()
def ls(
    prefix: Of = None,
    *,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Timers per page, up to 1000.")] = 100,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue where a page ended.")] = None,
    output: Output = "table",
) -> None:
    """List timers page by page: by status (running first), prefix, and due or end time."""
    wanted = {"prefix": prefix, "status": status, "tag": tag, "due_after": due_after, "due_before": due_before}
    asked = PageRequest.parse({**wanted, "limit": limit, "cursor": cursor})
    found = run(lambda client, _: client.page(asked))
    shown = [timer.to_json() for timer in found.items]
    page = {"items": shown, "next_cursor": found.next_cursor}
    show(page if output == "json" else shown, output, [{name: timer[name] for name in _COLUMNS} for timer in shown])
    if found.next_cursor is not None and output != "json":
        note(f"there are more timers; continue with --cursor {found.next_cursor}")


@app.command()
def stats(prefix: Of = None, output: Output = "table") -> None:
    """Show counts, lateness, the age of the oldest overdue timer, and whether notifications arrive."""
    found = run(lambda client, _: client.stats(prefix)).to_json()
    late, pods = found["lateness_ms"], found["pods"]
    heard = found["notifications"] if any(pod["notifications"] for pod in pods) else None
    summary = {"notifications": heard, "overdue_ms": found["overdue_ms"], "pods": len(pods)}
    whole = [{**summary, **{f"late_{name}_ms": value for name, value in late.items()}}]
    by_prefix = [{"prefix": prefix, **counts} for prefix, counts in found["by_prefix"].items()]
    show(found, output, [*table(whole), "", *table([*by_prefix, {"prefix": "all", **found["by_status"]}])])
