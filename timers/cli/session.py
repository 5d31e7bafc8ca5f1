"""Owns how a command reaches the timers: in the Redis of `--url` or the settings, or in the embedded server of a
running `timers dev`."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from timers.app import client_over, open_redis
from timers.client import TimerClient
from timers.embedded import reachable_url
from timers.settings import load_worker_settings
from timers.store.store import Store

T = TypeVar("T")

URL_NAME: Final = "TIMERS_REDIS_URL"


def _use_url(context: typer.Context, url: str | None) -> None:
    """Set the URL in the environment, where everything that reads settings finds it, in this process and in those it
    starts."""
    if url == "":  # the settings take an empty value for none, so another server would be used
        raise typer.BadParameter("it is empty; expected a URL such as redis://127.0.0.1:6379/5")
    if url is not None:
        os.environ[URL_NAME] = url
        os.environ.pop(f"{URL_NAME}_FILE", None)
        context.meta[URL_NAME] = "--url"


def _with_url(
    _url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help=f"The Redis to use; default {URL_NAME}.", callback=_use_url, expose_value=False
        ),
    ] = None,
) -> None:
    """A command that exists only to define its option."""


def add_url(command: Any) -> Any:
    """Add the option `--url` to a command and to its subcommands."""
    source = typer.Typer(add_completion=False)
    source.command()(_with_url)
    (option,) = typer.main.get_command(source).params
    return _add(option, command)


def _add(option: Any, command: Any) -> Any:
    command.params.append(option)
    for below in command.commands.values() if isinstance(command, TyperGroup) else ():
        _add(option, below)
    return command


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    store: Store
    client: TimerClient


def run(act: Callable[[Session], Awaitable[T]], **options: str | None) -> T:
    """Run `act` on the timers, then close the connections. `options` stand for settings (`TIMERS_SHARDS="4"`)."""
    return asyncio.run(_run(act, {name: value for name, value in options.items() if value is not None}))


async def _run(act: Callable[[Session], Awaitable[T]], options: Mapping[str, str]) -> T:
    settings = load_worker_settings(**options)
    store = await open_redis(await reachable_url(settings.redis_url, settings.data_dir), settings)
    async with client_over(store, settings) as client:
        return await act(Session(store, client))
