"""Owns the commands on one timer only: create, get, fire."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from timers.api import strictjson
from timers.cli.acting import At, In, due_of
from timers.cli.output import Format, Output, show_lines, show_timer
from timers.cli.session import Session, run
from timers.core.explain import explain as tell
from timers.core.model import Timer
from timers.core.spec import NewTimer
from timers.errors import InvalidInput

Prefix = Annotated[str, typer.Argument(help="What kind of timer it is; finds the processor.", show_default=False)]
Id = Annotated[str, typer.Argument(help="Which one.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (create, get, fire):
        app.command()(command)


def create(
    prefix: Prefix,
    id: Annotated[str | None, typer.Argument(help="Which one; left out, one is made.")] = None,
    *,
    after: In = None,
    at: At = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="What the processor is given.")] = None,
    if_exists: Annotated[str, typer.Option(metavar="error|replace|keep", help="If it is there.")] = "error",
    output: Output = Format.TABLE,
) -> None:
    """Arm a timer."""
    given = {"prefix": prefix, "id": id, "payload": _json(payload), "if_exists": if_exists, **due_of(after, at)}
    new = NewTimer.parse(given)

    async def arm(session: Session) -> Timer:
        return (await session.client.arm(new)).timer

    _show(arm, output)


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
        timer = await session.client.get(prefix, id)
        return tell(timer, await session.store.now_ms())

    lines = run(story)
    show_lines(lines, output)


def fire(prefix: Prefix, id: Id, output: Output = Format.TABLE) -> None:
    """Make a scheduled timer due now."""
    _show(lambda session: session.client.fire(prefix, id), output)


def _show(act: Callable[[Session], Awaitable[Timer]], output: Format) -> None:
    show_timer(run(act).to_json(), output)


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return strictjson.parse(text.encode(errors="surrogateescape"))
    except InvalidInput as error:
        raise error.under("payload") from None
    except ValueError as error:
        raise InvalidInput.of("payload", text, f"JSON ({error})") from None
