"""Pods that a test makes up: their signs of life, and prefixes declared by pods that are gone."""

from typing import Any, Final

from redis.asyncio import Redis

from tests.waiting import patient
from timers.client import open_store
from timers.store import keys
from timers.store.membership import Member, Membership
from timers.store.servers import connect
from timers.store.store import Store

LONG_MS: Final = 3_600_000
"""No test lasts until such a pod counts as silent."""


async def announce(store: Store, pod: str, **said: Any) -> None:
    """Send a pod's sign of life. The pod is a worker unless `said` differs."""
    processors = frozenset(said.pop("processors", ()))
    member = Member(pod, **{"roles": ("worker",), "processors": processors, **said})
    await Membership(store, forget_after_ms=LONG_MS).beat(member)


async def sign_off(store: Store, pod: str) -> None:
    """Remove a pod, as seconds of silence do."""
    await Membership(store, forget_after_ms=LONG_MS).leave(pod)


async def declare_at(url: str, *prefixes: str) -> None:
    """As `declare`, for the db at a URL."""
    store = await open_store(connect(patient(url)))
    await declare(store, *prefixes)
    await store.connections.close()


async def declare(store: Store, *prefixes: str) -> None:
    """Declare these prefixes, for a pod that is away now."""
    await announce(store, "declared-before", processors=prefixes)
    await sign_off(store, "declared-before")


async def forbid_writes(redis: Redis) -> None:
    """Have the server refuse all writes, as one without its replicas, with signs of life that are old by now."""
    async with redis.pipeline(transaction=True) as asked:
        asked.zunionstore(f"{keys.PODS_ROOT}seen", {f"{keys.PODS_ROOT}seen": 0})
        asked.config_set("min-replicas-to-write", 1)
        await asked.execute()
