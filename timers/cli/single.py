"""Owns the commands on one timer: create, get, cancel, reschedule, retry, fire."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from timers.api import strictjson
from timers.cli.output import Format, Output, show_lines, show_timer
from timers.cli.session import Session, run
from timers.core.explain import explain as tell
from timers.core.model import Timer
from timers.core.spec import NewTimer, TimerChange
from timers.errors import InvalidInput

Prefix = Annotated[str, typer.Argument(help="What kind of timer it is; finds the processor.", show_default=False)]
Id = Annotated[str, typer.Argument(help="Which one.", show_default=False)]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Due after 90s, 15m, 24h, 7d, P1M …")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due at 2026-11-21T20:00:00Z, or epoch ms.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (create, get, cancel, reschedule, retry, fire):
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
    given = {"prefix": prefix, "id": id, "payload": _json(payload), "if_exists": if_exists, **_due(after, at)}
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


def cancel(
    prefix: Prefix,
    id: Id,
    purge: Annotated[bool, typer.Option("--purge", help="Remove its record too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Cancel a scheduled timer: no run of it starts afterwards."""
    _show(lambda session: session.client.cancel(prefix, id, purge=purge), output)


def reschedule(prefix: Prefix, id: Id, after: In = None, at: At = None, output: Output = Format.TABLE) -> None:
    """Move the due time of a scheduled timer."""
    change = TimerChange.parse(_due(after, at))
    _show(lambda session: session.client.change(prefix, id, change), output)


def retry(prefix: Prefix, id: Id, output: Output = Format.TABLE) -> None:
    """Arm a failed, unhandled or cancelled timer again, now."""
    _show(lambda session: session.client.retry(prefix, id), output)


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


def _due(after: str | None, at: str | None) -> dict[str, str]:
    if after is not None and at is None:
        return {"delay": after}
    if at is not None and after is None:
        return {"due_at": at}
    raise InvalidInput.of("delay", after, "exactly one of --in and --at")
