"""Owns what the server says of itself, for people: memory, load, persistence, role."""

from collections.abc import Mapping
from typing import Any

from timers.store.scripts import reachable
from timers.store.store import Store


async def server_facts(store: Store) -> Mapping[str, Any]:
    """What INFO says. Raises Unavailable."""
    with reachable():
        info: dict[str, Any] = await store.connections.commands.info()
    return info
