"""What tests of one server run on with `--on`: a cluster of three primaries, or a primary behind three Sentinels."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final, Literal, get_args

from redis.asyncio import Redis

from tests.clusters import Cluster
from tests.sentinels import Sentinels
from tests.servers import ServerHandle
from tests.waiting import patient
from timers.store.servers import connect
from timers.store.servers.cluster import ClusterRedis

Topology = Literal["server", "sentinels", "cluster"]
TOPOLOGIES: Final[tuple[Topology, ...]] = get_args(Topology)
ONE_SERVER: Final = TOPOLOGIES[0]

Place = ServerHandle | Sentinels | Cluster
"""Its `url` is for pods and callers."""


def servers_of(place: Place) -> list[str]:
    """The URLs of all its servers, of replicas too."""
    return [place.url] if isinstance(place, ServerHandle) else [node.url for node in place.nodes]


async def empty(place: Place) -> None:
    """Delete all keys."""
    if isinstance(place, ServerHandle):
        async with Redis.from_url(place.url) as redis:
            await redis.flushall()
    else:
        await place.empty()


@asynccontextmanager
async def commands(url: str) -> AsyncIterator[Redis]:
    """A client of its own that returns bytes. Behind Sentinels it leads to the primary, in a cluster to the primary of
    a command's key."""
    connections = connect(patient(url))
    try:
        yield connections.commands
    finally:
        await connections.close()


_OF_A_DB: Final = ("FLUSHDB", "FLUSHALL", "KEYS", "CONFIG SET", "CLIENT KILL", "SCRIPT FLUSH")


def reach_all_primaries() -> None:
    """Have commands that concern a db as a whole reach all of a cluster, as tests of one server expect. The service
    never sends them."""
    sent = ClusterRedis.execute_command

    async def execute_command(self: ClusterRedis, *args: Any, **options: Any) -> Any:
        if args[0] not in _OF_A_DB:
            return await sent(self, *args, **options)
        await self._slots.look()
        reached: list[Any] = [node.commands for node in self._slots.primaries]
        answers = [await redis.execute_command(*args, **options) for redis in reached]
        return [*chain(*answers)] if args[0] == "KEYS" else answers[0]

    ClusterRedis.execute_command = execute_command  # type: ignore[method-assign]
