"""Owns the commands for operators: init, prefixes, pause, resume, pods, doctor."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from timers.cli import completing
from timers.cli.output import Format, Output, cell, progress, show_record, show_records
from timers.cli.session import Session, run
from timers.client import reachable_url
from timers.client.doctor import examine, unreachable
from timers.errors import Unavailable
from timers.settings import load_worker_settings
from timers.store.checkup import Check
from timers.store.connect import connect
from timers.store.store import Store

PrefixArgument = Annotated[
    str, typer.Argument(help="Which prefix, exactly.", show_default=False, autocompletion=completing.prefixes)
]

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(help="List the prefixes and who runs them, or take a declaration back.")
    group.callback(invoke_without_command=True)(prefixes)
    group.command()(forget)
    app.add_typer(group, name="prefixes")
    for command in (init, pause, resume, pods, doctor):
        app.command()(command)


def init(
    shards: Annotated[str | None, typer.Option(metavar="N", help="Number of shards; else TIMERS_SHARDS.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Make an empty db ours. The number of shards can be changed until the first timer is armed."""

    async def make(session: Session) -> Mapping[str, Any]:
        identity = session.store.identity
        await identity.make()
        return {"epoch": identity.epoch, "shards": identity.shards}

    show_record(run(make, TIMERS_SHARDS=shards), output)


def prefixes(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List the prefixes that have timers, were declared, or are paused, and who runs them."""
    if context.invoked_subcommand is not None:
        return
    found = [view.to_json() for view in run(lambda session: session.client.prefixes())]
    show_records([_row(view) for view in found] if output is Format.TABLE else found, output)


def _row(view: Mapping[str, Any]) -> Mapping[str, Any]:
    """A prefix as one row: the number of its pods, and a column for each count."""
    rest = {name: value for name, value in view.items() if name != "counts"}
    return {**rest, "pods": len(view["pods"]), **view["counts"]}


def forget(prefix: PrefixArgument) -> None:
    """Take back the declaration of a prefix, once no live pod has its processor."""
    run(lambda session: session.client.forget(prefix))
    typer.echo(f"timers: {prefix!r} is no longer declared", err=True)


def pause(prefix: PrefixArgument, output: Output = Format.TABLE) -> None:
    """Start no more timers of a prefix; those that run go on."""
    run(lambda session: session.client.pause(prefix))
    show_record({"prefix": prefix, "paused": True}, output)


def resume(prefix: PrefixArgument, output: Output = Format.TABLE) -> None:
    """Start timers of a prefix again."""
    run(lambda session: session.client.resume(prefix))
    show_record({"prefix": prefix, "paused": False}, output)


def pods(output: Output = Format.TABLE) -> None:
    """List the pods that are alive."""
    show_records([pod.to_json() for pod in run(lambda session: session.client.pods())], output)


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Turn missing notification flags on; mend indexes and counts.")
    ] = False,
    acknowledge: Annotated[bool, typer.Option("--acknowledge", help="End the warnings of lost data.")] = False,
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
    connections = connect(await reachable_url(settings))
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
