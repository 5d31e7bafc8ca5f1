"""A primary and its replicas, which a test may stop, let lag behind a slow link, and promote."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.servers import FORGETFUL, ServerHandle, free_port, start_server
from tests.waiting import eventually
from timers.embedded import Family


class Link:
    """The way from a primary's port to a replica, which passes on nothing while it is not `open`."""

    def __init__(self, port: int) -> None:
        self._port, self._ways = port, set[asyncio.Task[None]]()
        self.open = asyncio.Event()
        self.open.set()

    async def listen(self) -> int:
        """Start; returns the port for the replica."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def cut(self) -> None:
        """Lose what was not passed on, and pass on nothing more."""
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _accept(self, replica: asyncio.StreamReader, to_replica: asyncio.StreamWriter) -> None:
        try:
            primary, to_primary = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the primary is down
            to_replica.transport.abort()
            return
        for source, to in ((replica, to_primary), (primary, to_replica)):
            self._ways.add(asyncio.create_task(self._pass_on(source, to)))

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self.open.wait()
                to.write(data)
                await to.drain()
        finally:
            to.transport.abort()


class Replicated:
    """A primary with replicas, each behind its link."""

    def __init__(self, primary: ServerHandle, replicas: Sequence[ServerHandle], links: Sequence[Link]) -> None:
        self.primary, self.replicas, self.links = primary, replicas, links
        self._stopped = set[int]()

    def stop(self, place: int) -> None:
        """Let a replica take nothing, with its connection open."""
        os.kill(self.replicas[place].pid, signal.SIGSTOP)
        self._stopped.add(place)

    def go_on(self, place: int) -> None:
        """Let it go on."""
        os.kill(self.replicas[place].pid, signal.SIGCONT)
        self._stopped.discard(place)

    async def promote(self, place: int) -> str:
        """Kill the primary, and make this replica one. Returns its URL."""
        self.primary.kill()
        await self.links[place].cut()
        async with Redis.from_url(self.replicas[place].url) as redis:
            await redis.replicaof("NO", "ONE")
        return self.replicas[place].url

    async def close(self) -> None:
        """Stop all."""
        for place in list(self._stopped):
            self.go_on(place)
        await asyncio.gather(*(link.cut() for link in self.links))
        await asyncio.gather(*(server.stop() for server in (self.primary, *self.replicas)))


@asynccontextmanager
async def replicated(
    family: Family, folder: Path, replicas: int = 2, *, options: Sequence[str] = ()
) -> AsyncIterator[Replicated]:
    """A primary, with these options, whose replicas have all it has."""
    port, at_once = free_port(), (*FORGETFUL, "--repl-diskless-sync-delay", "0")
    primary = await start_server(family, folder / "primary", "--port", str(port), *at_once, *options)
    links = [Link(port) for _ in range(replicas)]
    given = [("--port", str(free_port()), "--replicaof", f"127.0.0.1 {await link.listen()}") for link in links]
    others = [start_server(family, folder / f"replica-{n}", *given[n], *at_once) for n in range(replicas)]
    servers = Replicated(primary, await asyncio.gather(*others), links)
    try:
        async with Redis.from_url(primary.url) as redis:

            async def all_there() -> bool:
                info: dict[str, Any] = await redis.info("replication")
                return all(info.get(f"slave{n}", {}).get("state") == "online" for n in range(replicas))

            await eventually(all_there, "the replicas have what the primary has")
        yield servers
    finally:
        await servers.close()
