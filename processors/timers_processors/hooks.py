"""Owns the calls of lifecycle hooks: whom a pod's settings name, and that a timer's changes are told in their order."""

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Final

from yarl import URL

from timers import Context, Done, Fail, NotFound, Processor, Retry, Timer, processor
from timers.settings import Settings, load_worker_settings
from timers_processors.addresses import Lookup
from timers_processors.calling import Call, Caller
from timers_processors.targets import Targets
from timers_processors.webhook import CALL_SECONDS, RETRY, WebHooks, as_json

SOON_SECONDS: Final = 0.1
"""After which a call looks again for the one before it, or after that one's next try."""


def processors() -> Iterator[Processor]:
    """One for each URL of TIMERS_HOOKS."""
    return made_for(load_worker_settings())


def made_for(
    settings: Settings, targets: Targets | None = None, lookup: Lookup = socket.getaddrinfo
) -> Iterator[Processor]:
    """The processors of a pod with these settings. They share their connections."""
    hooks = WebHooks(settings, targets or Targets(), lookup)
    urls = {hook.prefix: url for hook, (_, url) in zip(settings.asked, settings.hooks, strict=True)}
    for prefix, url in urls.items():
        yield _hook(hooks, prefix, URL(url.get_secret_value()))


def _hook(hooks: WebHooks, prefix: str, url: URL) -> Processor:
    @processor(prefix, retry=RETRY, timeout=CALL_SECONDS + 5, lifespan=hooks.opened)
    async def hook(timer: Timer, context: Context[Caller]) -> Done:
        if not isinstance(timer.payload, Mapping) or "body" not in timer.payload:
            raise Fail("payload: the service makes these timers by itself")
        await in_turn(timer, context)
        return await hooks.send(
            Call("POST", url, *as_json(timer.payload["body"])), timer.payload.get("prefix", prefix), context
        )

    return hook


async def in_turn(timer: Timer, context: Context[Caller]) -> None:
    """Raises a snooze as long as the call before has not ended, well or not."""
    before = timer.payload.get("after")
    try:
        earlier = None if before is None else await context.timers.get(timer.prefix, before)
    except NotFound:
        return
    if earlier is not None and not earlier.status.finished:
        later = earlier.due_ms / 1000 - time.time() + SOON_SECONDS
        raise Retry(f"the call before it has not ended: {before}", after=max(later, SOON_SECONDS), snooze=True)
