"""Makes the calls of the web hook tests."""

from base64 import b64encode
from typing import Any

from aiohttp import web

from tests.unit.samples import a_timer, run
from tests.webhooks.receivers import Received, opened, receiving, settings
from timers import Done, Fail, Processor, Retry, Timer
from timers.settings import Settings
from timers_processors.webhook import connections, processors


def secret(letter: str) -> str:
    return "whsec_" + b64encode(letter.encode() * 24).decode()


def hook(given: Settings | None = None, **options: Any) -> Processor:
    given = given or settings()
    return next(iter(processors(given, connections(given, **options))))


def asking(payload: Any, **changes: Any) -> Timer:
    return a_timer(prefix="webhook", spec={"payload": payload}, **changes)


async def sent(payload: dict[str, Any], given: Settings | None = None, **changes: Any) -> Received:
    """Run the processor with this payload and the receiver's URL, and return what the receiver got."""
    processor = hook(given)
    async with receiving() as receiver, opened(processor) as state:
        await run(processor, asking({"url": receiver.url, **payload}, **changes), state)
    (received,) = receiver.received
    return received


async def outcome(*answers: web.Response, given: Settings | None = None) -> Done | Exception:
    processor = hook(given)
    async with receiving(*answers) as receiver, opened(processor) as state:
        return await result(processor, asking({"url": receiver.url}), state)


async def result(processor: Processor, timer: Timer, state: Any) -> Done | Exception:
    try:
        done = await run(processor, timer, state)
    except (Fail, Retry) as error:
        return error
    assert isinstance(done, Done)
    return done
