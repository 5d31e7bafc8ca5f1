"""Owns `timers replay`: it runs timers from a window of time again."""

from dataclasses import replace
from typing import Annotated

import typer

from timers.cli.completing import prefixes
from timers.cli.output import Format, Output, progress, show_records
from timers.cli.session import Session, run
from timers.client.replay import Replayed, arm_again, preview
from timers.errors import InvalidInput
from timers.processor import Rate
from timers.store.filters import Filter


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(replay)


def replay(
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Due then or later; -1h, or a time.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Due earlier; 0s is now.")],
    *,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Only timers of this prefix; login-* …", autocompletion=prefixes),
    ] = None,
    completed: Annotated[bool, typer.Option("--completed", help="Run also what completed once more.")] = False,
    rate: Annotated[str, typer.Option(metavar="RATE", help="How fast: 50/s, 100/m …")] = "100/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run, and when.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Run again what failed, went unhandled or was skipped and was due in a window of time."""
    window = _window(prefix, since, until)
    pace = Rate.parse(rate)

    async def act(session: Session) -> list[Replayed]:
        fixed = window.at(await session.store.now_ms())
        if (fixed.due_after or 0) >= (fixed.due_before or 0):
            raise InvalidInput.of("to", until, "a time after --from")
        planned = await preview(session.store, fixed, pace, completed=completed)
        if dry_run:
            return planned
        with progress("replay", len(planned)) as show:
            return await arm_again(session.store, planned, show)

    found = run(act)
    show_records([each.to_json() for each in found], output)
    armed = sum(each.result == "armed" for each in found)
    told = f"{len(found)} would run" if dry_run else f"{armed} of {len(found)} armed"
    typer.echo(f"timers: {told}, {rate}", err=True)


def _window(prefix: str | None, since: str, until: str) -> Filter:
    try:
        return Filter.parse({"prefix": prefix, "due_after": since, "due_before": until})
    except InvalidInput as error:
        names = {"due_after": "from", "due_before": "to"}
        raise InvalidInput([replace(each, field=names.get(each.field, each.field)) for each in error.errors]) from None
