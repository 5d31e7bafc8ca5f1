"""A receiver of lifecycle hooks that can die, and what it must have heard once everything is told."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from aiohttp import web
from redis.asyncio import Redis

from tests.chaos.findings import Finding, Property
from tests.chaos.pods import until
from tests.chaos.processors import prefix_of
from timers import NotFound, Timer, TimerClient
from timers.core.hooks import letter_of

LOOPBACK: Final = "127.0.0.1"


class Receiver:
    """Remembers the versions of each timer in the order in which their calls first came. At one address, also after
    `die` and `live`."""

    def __init__(self) -> None:
        self._told: defaultdict[str, list[int]] = defaultdict(list)
        self._port = 0
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    async def __aenter__(self) -> Self:
        await self.live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def live(self) -> None:
        """Take calls."""
        self._runner = web.ServerRunner(web.Server(self._hear))
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def die(self) -> int:
        """Refuse calls, and cut those that are in progress. Returns how many versions were heard before."""
        if self._runner is not None:
            await self._runner.cleanup()
        return sum(map(len, self._told.values()))

    async def _hear(self, request: web.BaseRequest) -> web.Response:
        data: dict[str, Any] = json.loads(await request.read())["data"]
        told = self._told[f"{data['prefix']}/{data['id']}"]
        if data["version"] not in told:  # a call that was in progress is repeated
            told.append(data["version"])
        return web.Response()

    def untold(self, timers: Sequence[Timer]) -> Iterator[Finding]:
        """P14: each event of the timers' histories was told, in order, and nothing else."""
        for timer in timers:
            versions = range(timer.version - len(timer.history) + 1, timer.version + 1)
            entries = list(zip(versions, reversed(timer.history), strict=True))
            if any(version == 2 and entry.cause.startswith("bare-") for version, entry in entries):
                del entries[0]  # to come from a bare key is one change, though it has two entries
            due = [version for version, entry in entries if letter_of(entry)]
            name = f"{timer.prefix}/{timer.id}"
            if (told := self._told[name]) != due:
                yield Finding(Property.TOLD, name, f"its hook was told of versions {told}, its history has {due}")


async def told(redis: Redis, *, timeout_s: float) -> None:
    """Waits until every change has been told, up to the limit. What has not been is left to `Receiver.untold`."""

    async def all_told() -> bool:
        for shard in range(int(await redis.hget("timers:meta", "shards") or 1)):
            counted = await redis.hkeys(f"timers:{{{shard}}}:counts")
            if any(field[:1] in (b"s", b"r") for field in counted) or await redis.xlen(f"timers:{{{shard}}}:outbox"):
                return False
        return True

    with suppress(TimeoutError):
        await until(all_told, timeout_s=timeout_s, what="the end of all calls")


async def existing(client: TimerClient, ids: Sequence[str]) -> list[Timer]:
    """The timers of these ids that have a record."""
    found = []
    for timer_id in ids:
        try:
            found.append(await client.get(prefix_of(timer_id), timer_id))
        except NotFound:
            continue
    return found
