"""Owns the commands on a single timer: get, fire."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from timers.cli.completing import ids, prefixes
from timers.cli.output import Format, Output, show_lines, show_timer
from timers.cli.session import Session, run
from timers.client.fleet import read_story
from timers.core.model import Timer

Prefix = Annotated[
    str,
    typer.Argument(help="What kind of timer it is; finds the processor.", show_default=False, autocompletion=prefixes),
]
Id = Annotated[str, typer.Argument(help="Which one.", show_default=False, autocompletion=ids)]


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (get, fire):
        app.command()(command)


def get(
    prefix: Prefix,
    id: Id,
    explain: Annotated[bool, typer.Option("--explain", help="Tell its story: why it was late, did not run …")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show a timer."""
    if not explain:
        _show(lambda session: session.client.get(prefix, id), output)
        return

    async def story(session: Session) -> list[str]:
        return await read_story(session.store, await session.client.get(prefix, id))

    lines = run(story)
    show_lines(lines, output)


def fire(prefix: Prefix, id: Id, output: Output = Format.TABLE) -> None:
    """Make a scheduled timer due now."""
    _show(lambda session: session.client.fire(prefix, id), output)


def _show(act: Callable[[Session], Awaitable[Timer]], output: Format) -> None:
    show_timer(run(act).to_json(), output)
