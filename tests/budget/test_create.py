"""What one create costs in what no machine changes: calls of our functions, and values read from or written to JSON.

A bound is what was measured last. Lower it when less is used. Raise it only for something that is worth it, and say in
the commit what that is.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

import timers
from tests.api.harness import Api, running_api
from tests.conftest import SharedServers
from timers.processor import Context, processor
from timers.store.servers import connect

OURS: Final = str(Path(timers.__file__).parent)
CODECS: Final = {"to_json", "from_json", "encode", "raw_decode"}
"""The functions of pydantic and of `json` that every reading and writing of JSON goes through."""

WARM: Final = 20
"""Creates before the counted ones: they connect, read what is declared and fill caches."""

COUNTED: Final = 5
"""The cheapest of so many counts: the others may also have read again what is declared."""

PAYLOAD: Final = {"user": "u1", "plan": "free"}
PAYLOAD_JSON: Final = '{"user":"u1","plan":"free"}'


class Cost(NamedTuple):
    """Calls of functions of ours, with each time that a coroutine goes on, and passes over JSON."""

    calls: int
    json: int

    def stays_within(self, *, calls: int, json: int) -> None:
        """Fails if it is more."""
        assert self.calls <= calls, f"{self} has more calls than {calls}: shorten the path, or renew the bound"
        assert self.json <= json, f"{self} has more passes over JSON than {json}: remove one, or renew the bound"


@processor("note")
async def note(_timer: timers.Timer, _context: Context) -> None:
    """Do nothing."""


@asynccontextmanager
async def api_of(servers: SharedServers) -> AsyncIterator[Api]:
    url = (await servers.of("redis")).url
    connections = connect(url)
    await connections.commands.flushdb()
    await connections.close()
    async with running_api(url, [note]) as api:
        yield api


async def cost_of(create: Callable[[int], Awaitable[object]]) -> Cost:
    """The cost of one create, when it is called with a number that was not used before."""
    for number in range(WARM):
        await create(number)
    return min([await _cost_of(create(WARM + turn)) for turn in range(COUNTED)])


async def _cost_of(create: Awaitable[object]) -> Cost:
    calls = passes = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls, passes
        if event == "call":
            calls += frame.f_code.co_filename.startswith(OURS)
            passes += frame.f_code.co_name in CODECS and frame.f_globals["__name__"].startswith("json.")
        elif event == "c_call":
            passes += called.__name__ in CODECS and called.__module__ == "pydantic_core._pydantic_core"

    sys.setprofile(count)
    try:
        await create
    finally:
        sys.setprofile(None)
    return Cost(calls, passes)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions are no calls from Python 3.12 on")
class TestACreate:
    async def test_from_python(self, servers: SharedServers) -> None:
        async with api_of(servers) as api:
            cost = await cost_of(lambda n: api.client.create("note", f"user-{n}", delay="1h", payload=PAYLOAD))
        cost.stays_within(calls=62, json=3)

    async def test_over_http(self, servers: SharedServers) -> None:
        """The JSON of the request, of the check of its payload (twice), of the record and of the answer."""

        async def create(number: int) -> None:
            body = f'{{"prefix":"note","id":"user-{number}","delay":"1h","payload":{PAYLOAD_JSON}}}'
            headers = {"Content-Type": "application/json"}
            async with api.session.post(f"{api.server.url}/v1/timers", data=body, headers=headers) as answer:
                assert answer.status == 201

        async with api_of(servers) as api:
            cost = await cost_of(create)
        cost.stays_within(calls=123, json=5)
