"""Owns the commands for existing timers: get, fire, ls, stats; and, for one timer or for all that match a filter,
cancel, reschedule, retry, purge."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Annotated, Any, Final

import typer

from timers.cli.completing import ids, prefixes, statuses
from timers.cli.output import Format, Output, progress, show_document, show_lines, show_record, show_records, show_timer
from timers.cli.session import Session, run
from timers.client.actions import Counts
from timers.client.fleet import read_story
from timers.core.keywords import Action
from timers.core.model import Timer
from timers.errors import InvalidInput, Refused
from timers.store.filters import Filter
from timers.store.listing import PageRequest

OnePrefix = Annotated[
    str,
    typer.Argument(help="The timer's prefix.", show_default=False, autocompletion=prefixes),
]
OneId = Annotated[str, typer.Argument(help="The timer's id.", show_default=False, autocompletion=ids)]
Prefix = Annotated[str | None, typer.Argument(help="The timer's prefix.", show_default=False, autocompletion=prefixes)]
Id = Annotated[str | None, typer.Argument(help="The timer's id.", show_default=False, autocompletion=ids)]
Of = Annotated[
    str | None,
    typer.Option(
        "--prefix", metavar="PREFIX", help="All with this prefix; login-* matches several.", autocompletion=prefixes
    ),
]
WithStatus = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="All with this status; repeatable.", autocompletion=statuses),
]
WithTag = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="All with this tag; repeatable.")]
DueAfter = Annotated[str | None, typer.Option("--due-after", metavar="TIME", help="All due then or later: 1h, -1d …")]
DueBefore = Annotated[str | None, typer.Option("--due-before", metavar="TIME", help="All due earlier: 1h, -1d …")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With a filter: only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With a filter: skip the confirmation.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Due in 90s, 15m, 24h, 7d, P1M …")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due at 2026-11-21T20:00:00Z, or epoch ms.")]

Act = Callable[[Session, str, str], Awaitable[Timer]]
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
    output: Output = Format.TABLE

    @property
    def filter(self) -> Mapping[str, Any]:
        """What was given of a filter; empty for one timer."""
        given = {"prefix": self.of, "status": self.status, "tag": self.tag}
        given |= {"due_after": self.due_after, "due_before": self.due_before}
        return {name: value for name, value in given.items() if value is not None}

    def act(self, action: Action, one: Act, **more: Any) -> None:
        """Act on the timer or on all, with what the action needs `more`. Exits with 1 if some of all were refused."""
        if self.filter:
            return self._act_on_all(action, more)
        if self.prefix is None or self.id is None:
            name = "ID" if self.prefix else "PREFIX"
            raise InvalidInput.of(name, None, "PREFIX and ID, or a filter such as --prefix")
        prefix, id = self.prefix, self.id
        return show_timer(run(lambda session: one(session, prefix, id)).to_json(), self.output)

    def _act_on_all(self, action: Action, more: Mapping[str, Any]) -> None:
        """Count the timers, ask, then act until all are done."""
        if self.prefix is not None:
            raise InvalidInput.of("PREFIX", self.prefix, "either PREFIX and ID, or a filter such as --prefix")
        asked = Filter.parse(self.filter)

        async def act(session: Session) -> Counts:
            chosen = asked.at(await session.store.now_ms())
            found = await session.client.act(action, chosen, dry_run=True, **more)
            if self.dry_run or not found.matched:
                return found
            if not self.yes:
                _ask(action, found.matched)
            return await _act(session, action, chosen, found.matched, more)

        came = run(act)
        counts = {"matched": came.matched, "done": came.done, "refused": dict(came.refused)}
        show_record({"action": action, "dry_run": self.dry_run, **counts}, self.output)
        for reason, examples in came.examples.items():
            for one in examples:
                typer.echo(f"timers: {reason}: {one['prefix']}:{one['id']}: {one['detail']}", err=True)
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


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    acting: list[Command] = [cancel, reschedule, retry, purge]
    commands: list[Command] = [get, fire, *map(with_selection, acting), ls, stats]
    for command in commands:
        app.command()(command)


def get(
    prefix: OnePrefix,
    id: OneId,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain why it was late, ran twice or did not run.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show a timer."""

    async def found(session: Session) -> tuple[Timer, list[str]]:
        timer = await session.client.get(prefix, id)
        return timer, await read_story(session.store, timer) if explain else []

    timer, story = run(found)
    if explain:
        show_lines(story, output)
    else:
        show_timer(timer.to_json(), output)


def fire(prefix: OnePrefix, id: OneId, output: Output = Format.TABLE) -> None:
    """Make a scheduled timer due now."""
    show_timer(run(lambda session: session.client.fire(prefix, id)).to_json(), output)


def cancel(
    chosen: Selection,
    purge: Annotated[bool, typer.Option("--purge", help="For one timer: also remove its record.")] = False,
) -> None:
    """Cancel a scheduled timer, or all that match a filter. None of them starts afterwards."""
    if purge and chosen.filter:
        raise InvalidInput.of("--purge", True, "PREFIX and ID beside it; `timers purge` takes a filter")
    chosen.act("cancel", lambda session, prefix, id: session.client.cancel(prefix, id, purge=purge))


def reschedule(chosen: Selection, after: In = None, at: At = None) -> None:
    """Change the due time of a scheduled timer, or of all that match a filter."""
    due = due_of(after, at)
    chosen.act("reschedule", lambda session, prefix, id: session.client.reschedule(prefix, id, **due), **due)


def retry(chosen: Selection) -> None:
    """Arm a failed, unhandled or cancelled timer again, due now; or all that match a filter."""
    chosen.act("retry", lambda session, prefix, id: session.client.retry(prefix, id))


def purge(chosen: Selection) -> None:
    """Remove the record of a timer, or of all that match a filter. Running timers are refused; scheduled ones never
    run."""
    chosen.act("purge", lambda session, prefix, id: session.client.cancel(prefix, id, purge=True))


def due_of(after: str | None, at: str | None) -> dict[str, Any]:
    """The field that `--in` or `--at` sets. Raises InvalidInput if both or neither are given."""
    if after is not None and at is None:
        return {"delay": after}
    if at is not None and after is None:
        return {"due_at": at}
    raise InvalidInput.of("delay", after, "exactly one of --in and --at")


async def _act(session: Session, action: Action, chosen: Filter, number: int, more: Mapping[str, Any]) -> Counts:
    """Act on all matching timers, about `number` of them, and show the progress on a terminal."""
    with progress(action, number) as show:

        def go_on(counts: Counts) -> bool:
            show(counts.matched)
            return False

        counts = await session.client.act(action, chosen, stop=go_on, **more)
        show(counts.matched)
        return counts


def _ask(action: str, number: int) -> None:
    if not sys.stdin.isatty():
        raise Refused(f"{number} timers match; without a terminal to confirm on, {action} needs --yes")
    typer.confirm(f"{action} {number} timers?", abort=True, err=True)


def ls(
    prefix: Of = None,
    *,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Timers per page, up to 1000.")] = 100,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue where a page ended.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """List timers page by page: running ones first, then by due time."""
    wanted = {"prefix": prefix, "status": status, "tag": tag, "due_after": due_after, "due_before": due_before}
    asked = PageRequest.parse({**wanted, "limit": limit, "cursor": cursor})
    found = run(lambda session: session.client.page(asked))
    shown = [timer.to_json() for timer in found.items]
    if output is Format.JSON:
        show_document({"items": shown, "next_cursor": found.next_cursor}, output)
        return
    narrow = output is Format.TABLE
    show_records([{name: timer[name] for name in _COLUMNS} for timer in shown] if narrow else shown, output)
    if found.next_cursor is not None:
        typer.echo(f"timers: there are more timers; continue with --cursor {found.next_cursor}", err=True)


def stats(prefix: Of = None, output: Output = Format.TABLE) -> None:
    """Show counts, lateness, the age of the oldest overdue timer, and whether notifications arrive."""
    found = run(lambda session: session.client.stats(prefix)).to_json()
    if output is not Format.TABLE:
        show_document(found, output)
        return
    late = found["lateness_ms"]
    summary = {"notifications": found["notifications"], "overdue_ms": found["overdue_ms"], "pods": len(found["pods"])}
    show_records([{**summary, **{f"late_{name}_ms": value for name, value in late.items()}}], output)
    typer.echo()
    by_prefix = [{"prefix": prefix, **counts} for prefix, counts in found["by_prefix"].items()]
    show_records([*by_prefix, {"prefix": "all", **found["by_status"]}], output)
