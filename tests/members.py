"""Pods that a test only claims there are: their signs of life, and prefixes declared by pods that are gone."""

from typing import Any, Final

from timers.client import open_store
from timers.store.connect import connect
from timers.store.membership import Member, Membership
from timers.store.store import Store

LONG_MS: Final = 3_600_000
"""No test lasts until such a pod counts as silent."""


async def announce(store: Store, pod: str, **said: Any) -> None:
    """A sign of life of a pod; a worker unless it says otherwise."""
    processors = frozenset(said.pop("processors", ()))
    member = Member(pod, **{"roles": ("worker",), "processors": processors, **said})
    await Membership(store, forget_after_ms=LONG_MS).beat(member)


async def sign_off(store: Store, pod: str) -> None:
    """The pod is gone, as after seconds of silence."""
    await Membership(store, forget_after_ms=LONG_MS).leave(pod)


async def declare_at(url: str, *prefixes: str) -> None:
    """As `declare`, in the db at a URL."""
    store = await open_store(connect(url))
    await declare(store, *prefixes)
    await store.connections.close()


async def declare(store: Store, *prefixes: str) -> None:
    """A pod with processors of these prefixes was there and is away."""
    await announce(store, "declared-before", processors=prefixes)
    await sign_off(store, "declared-before")
