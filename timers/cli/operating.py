"""Owns the commands for operators: init, prefixes, pause, resume, pods, doctor, replay."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from timers.cli import completing
from timers.cli.output import Format, Output, cell, progress, show_record, show_records
from timers.cli.session import Session, run
from timers.cli.timers import Of
from timers.client.doctor import examine, unreachable
from timers.client.replay import Replayed, arm_again, preview
from timers.embedded import reachable_url
from timers.errors import InvalidInput, Unavailable
from timers.processor import Rate
from timers.settings import load_worker_settings
from timers.store.checkup import Check
from timers.store.connect import connect
from timers.store.filters import Filter
from timers.store.store import Store

PrefixArgument = Annotated[
    str, typer.Argument(help="Which prefix, exactly.", show_default=False, autocompletion=completing.prefixes)
]

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(help="List the prefixes and who runs them, or forget one.")
    group.callback(invoke_without_command=True)(prefixes)
    group.command()(forget)
    app.add_typer(group, name="prefixes")
    for command in (replay, init, pause, resume, pods, doctor):
        app.command()(command)


def init(
    shards: Annotated[str | None, typer.Option(metavar="N", help="Number of shards; default TIMERS_SHARDS.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Claim an empty db for the service. You can change the number of shards until the first timer is armed."""

    async def make(session: Session) -> Mapping[str, Any]:
        identity = session.store.identity
        await identity.make()
        return {"epoch": identity.epoch, "shards": identity.shards}

    show_record(run(make, TIMERS_SHARDS=shards), output)


def prefixes(context: typer.Context, of: Of = None, output: Output = Format.TABLE) -> None:
    """List the prefixes that have timers, were declared, or are paused, and who runs them."""
    if context.invoked_subcommand is not None:
        return
    found = [view.to_json() for view in run(lambda session: session.client.prefixes(of))]
    show_records([_row(view) for view in found] if output is Format.TABLE else found, output)


def _row(view: Mapping[str, Any]) -> Mapping[str, Any]:
    """A prefix as one row: the number of its pods, and a column for each count."""
    rest = {name: value for name, value in view.items() if name != "counts"}
    return {**rest, "pods": len(view["pods"]), **view["counts"]}


def forget(prefix: PrefixArgument) -> None:
    """Forget the declaration of a prefix, once no live pod has its processor."""
    run(lambda session: session.client.forget(prefix))
    typer.echo(f"timers: {prefix!r} is no longer declared", err=True)


def pause(prefix: PrefixArgument, output: Output = Format.TABLE) -> None:
    """Start no more timers of a prefix. Runs in progress continue."""
    run(lambda session: session.client.pause(prefix))
    show_record({"prefix": prefix, "paused": True}, output)


def resume(prefix: PrefixArgument, output: Output = Format.TABLE) -> None:
    """Start the timers of a paused prefix again."""
    run(lambda session: session.client.resume(prefix))
    show_record({"prefix": prefix, "paused": False}, output)


def pods(output: Output = Format.TABLE) -> None:
    """List the live pods."""
    show_records([pod.to_json() for pod in run(lambda session: session.client.pods())], output)


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Switch on missing notification flags; repair indexes and counts.")
    ] = False,
    acknowledge: Annotated[bool, typer.Option("--acknowledge", help="End the warnings about lost data.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Check the server, the data and the pods, and say what to do. Exits with 1 if a check fails."""
    checks = asyncio.run(_examined(fix=fix, acknowledge=acknowledge))
    if output is Format.TABLE:
        _show_checks(checks)
    else:
        show_records([check.to_json() for check in checks], output)
    if any(check.level == "fail" for check in checks):
        raise typer.Exit(1)


async def _examined(*, fix: bool, acknowledge: bool) -> Sequence[Check]:
    """Run the checks. This also works on a db that no other command would open."""
    settings = load_worker_settings()
    connections = connect(await reachable_url(settings.redis_url, settings.data_dir))
    try:
        store = Store(connections, shards=settings.shards)
        return await examine(store, fix=fix, acknowledge=acknowledge, progress=progress)
    except Unavailable as error:
        return [unreachable(error)]
    finally:
        await connections.close()


def _show_checks(checks: Sequence[Check]) -> None:
    """Print a line for each check. Below a check that is not fine, say what it means and how to mend it. Use colours
    only on a terminal."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        level = typer.style(f"{check.level:<4}", fg=_COLOURS[check.level], bold=check.level == "fail")
        typer.echo(f"{level}  {check.name:<{width}}  {cell(check.said)}")
        for heading, text in (("means", check.means), ("mend", check.mend)):
            if text:
                typer.echo(f"{'':<{width + 6}}  {heading + ':':<6} {text}")


def replay(
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Due then or later: -1h, or a time.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Due earlier: 0s is now.")],
    *,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="Only timers of this prefix; login-* …", autocompletion=completing.prefixes
        ),
    ] = None,
    completed: Annotated[bool, typer.Option("--completed", help="Also run completed timers once more.")] = False,
    rate: Annotated[str, typer.Option(metavar="RATE", help="How fast: 50/s, 100/m …")] = "100/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run, and when.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Run timers again that failed, became unhandled or were skipped, and were due in a window of time."""
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
