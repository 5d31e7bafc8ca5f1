"""Owns the commands that act on one timer, or on all that pass a filter: cancel, reschedule, retry, purge."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import typer

from timers.cli.completing import ids, prefixes, statuses
from timers.cli.output import Format, Output, progress, show_record, show_timer
from timers.cli.session import Session, run
from timers.client.actions import Counts
from timers.core.keywords import Action
from timers.core.model import Timer
from timers.errors import InvalidInput, Refused
from timers.store.filters import Filter

Prefix = Annotated[
    str | None, typer.Argument(help="What kind of timer it is.", show_default=False, autocompletion=prefixes)
]
Id = Annotated[str | None, typer.Argument(help="Which one.", show_default=False, autocompletion=ids)]
Of = Annotated[
    str | None,
    typer.Option(
        "--prefix", metavar="PREFIX", help="All of this prefix; login-* for several.", autocompletion=prefixes
    ),
]
WithStatus = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="All in this status, or these.", autocompletion=statuses),
]
WithTag = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="All with this tag; repeat for several.")
]
DueAfter = Annotated[str | None, typer.Option("--due-after", metavar="TIME", help="All due then or later; 1h, -1d …")]
DueBefore = Annotated[str | None, typer.Option("--due-before", metavar="TIME", help="All due earlier; 1h, -1d …")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With a filter: only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With a filter: do not ask.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Due after 90s, 15m, 24h, 7d, P1M …")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due at 2026-11-21T20:00:00Z, or epoch ms.")]

One = Callable[[Session, str, str], Awaitable[Timer]]
"""Acts on the timer with a prefix and an id."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (cancel, reschedule, retry, purge):
        app.command()(command)


def cancel(
    prefix: Prefix = None,
    id: Id = None,
    *,
    of: Of = None,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    purge: Annotated[bool, typer.Option("--purge", help="One timer: remove its record too.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Cancel a scheduled timer, or all that pass a filter: no run of them starts afterwards."""
    wanted = _wanted(prefix=of, status=status, tag=tag, due_after=due_after, due_before=due_before)
    if not wanted:
        _do_one(lambda session, prefix, id: session.client.cancel(prefix, id, purge=purge), prefix, id, output)
    elif purge:
        raise InvalidInput.of("--purge", True, "only with PREFIX and ID; `timers purge` takes a filter")
    else:
        _do_all("cancel", prefix, wanted, dry_run=dry_run, yes=yes, output=output)


def reschedule(
    prefix: Prefix = None,
    id: Id = None,
    *,
    after: In = None,
    at: At = None,
    of: Of = None,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Move the due time of a scheduled timer, or of all that pass a filter."""
    due = due_of(after, at)
    wanted = _wanted(prefix=of, status=status, tag=tag, due_after=due_after, due_before=due_before)
    if wanted:
        _do_all("reschedule", prefix, wanted, dry_run=dry_run, yes=yes, output=output, **due)
    else:
        _do_one(lambda session, prefix, id: session.client.reschedule(prefix, id, **due), prefix, id, output)


def retry(
    prefix: Prefix = None,
    id: Id = None,
    *,
    of: Of = None,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Arm a failed, unhandled or cancelled timer again, now; or all that pass a filter."""
    wanted = _wanted(prefix=of, status=status, tag=tag, due_after=due_after, due_before=due_before)
    if wanted:
        _do_all("retry", prefix, wanted, dry_run=dry_run, yes=yes, output=output)
    else:
        _do_one(lambda session, prefix, id: session.client.retry(prefix, id), prefix, id, output)


def purge(
    prefix: Prefix = None,
    id: Id = None,
    *,
    of: Of = None,
    status: WithStatus = None,
    tag: WithTag = None,
    due_after: DueAfter = None,
    due_before: DueBefore = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Remove the record of a timer that is not running, or of all that pass a filter; a scheduled one never runs."""
    wanted = _wanted(prefix=of, status=status, tag=tag, due_after=due_after, due_before=due_before)
    if wanted:
        _do_all("purge", prefix, wanted, dry_run=dry_run, yes=yes, output=output)
    else:
        _do_one(lambda session, prefix, id: session.client.cancel(prefix, id, purge=True), prefix, id, output)


def due_of(after: str | None, at: str | None) -> dict[str, Any]:
    """The field that `--in` or `--at` stands for. Raises InvalidInput if both or neither are given."""
    if after is not None and at is None:
        return {"delay": after}
    if at is not None and after is None:
        return {"due_at": at}
    raise InvalidInput.of("delay", after, "exactly one of --in and --at")


def _wanted(**given: str | list[str] | None) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _do_one(one: One, prefix: str | None, id: str | None, output: Format) -> None:
    if prefix is None or id is None:
        raise InvalidInput.of("ID" if prefix else "PREFIX", None, "PREFIX and ID, or a filter such as --prefix")
    show_timer(run(lambda session: one(session, prefix, id)).to_json(), output)


def _do_all(
    action: Action,
    argument: str | None,
    wanted: Mapping[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    output: Format,
    **due: Any,
) -> None:
    """Count the timers, ask, then act until all are done. Exits with 1 if some were refused."""
    if argument is not None:
        raise InvalidInput.of("PREFIX", argument, "either PREFIX and ID, or a filter: --prefix instead")
    asked = Filter.parse(wanted)

    async def act(session: Session) -> Counts:
        chosen = asked.at(await session.store.now_ms())
        found = await session.client.act(action, chosen, dry_run=True, **due)
        if dry_run or not found.matched:
            return found
        if not yes:
            _ask(action, found.matched)
        return await _act(session, action, chosen, found.matched, due)

    came = run(act)
    counts = {"matched": came.matched, "done": came.done, "refused": dict(came.refused)}
    show_record({"action": action, "dry_run": dry_run, **counts}, output)
    if came.refused:
        raise typer.Exit(1)


async def _act(session: Session, action: Action, chosen: Filter, number: int, due: Mapping[str, Any]) -> Counts:
    """Act on all timers that pass, about `number` of them, and show the progress on a terminal."""
    with progress(action, number) as show:

        def go_on(counts: Counts) -> bool:
            show(counts.matched)
            return False

        counts = await session.client.act(action, chosen, stop=go_on, **due)
        show(counts.matched)
        return counts


def _ask(action: str, number: int) -> None:
    if not sys.stdin.isatty():
        raise Refused(f"{number} timers match; --yes makes {action} go on without a terminal to ask at")
    typer.confirm(f"{action} {number} timers?", abort=True, err=True)
