"""Owns reaching the timers from a command: the configured Redis, or the embedded server of a running `timers dev`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from timers.app import client_over, open_redis
from timers.client import TimerClient, reachable_url
from timers.settings import load_worker_settings
from timers.store.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    store: Store
    client: TimerClient


def run(act: Callable[[Session], Awaitable[T]], **options: str | None) -> T:
    """Do something with the timers and close the connections. `options` stand for settings (`TIMERS_SHARDS="4"`)."""
    return asyncio.run(_run(act, {name: value for name, value in options.items() if value is not None}))


async def _run(act: Callable[[Session], Awaitable[T]], options: Mapping[str, str]) -> T:
    settings = load_worker_settings(**options)
    store = await open_redis(await reachable_url(settings), settings)
    async with client_over(store, settings) as client:
        return await act(Session(store, client))
