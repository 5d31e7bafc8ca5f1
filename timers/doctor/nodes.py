"""Owns putting together what was found on each server of a db."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from timers.doctor.checks import Check, is_full
from timers.errors import Unavailable
from timers.store.servers.connect import Connections
from timers.store.store import Store

_AWAY: Final = "the timers of its shards wait, and lists, totals and quotas with them"

Examine = Callable[[Store], Awaitable[Sequence[Check]]]
"""Checks one server, given as a store that reaches no other."""


async def on_nodes(store: Store, examine: Examine) -> list[Check]:
    """The checks of all servers: what is fine everywhere as one, any other with its server's address. On a single
    server as they are."""
    nodes = store.connections.nodes
    if len(nodes) == 1:
        return [*await examine(store if nodes[0] is store.connections else Store(nodes[0]))]
    found = await asyncio.gather(*(_examined(node, examine) for node in nodes))
    by_name: dict[str, list[Check]] = {}
    for node, checks in zip(nodes, found, strict=True):
        for check in checks:
            by_name.setdefault(check.name, []).append(replace(check, said=f"{node.address}: {check.said}"))
    return [check for checks in by_name.values() for check in _together(checks)]


async def _examined(node: Connections, examine: Examine) -> Sequence[Check]:
    try:
        return await examine(Store(node))
    except Unavailable as error:
        repair = "start it, or let a replica take over: `redis-cli CLUSTER FAILOVER TAKEOVER` on that"
        return [Check("server", "fail", str(error), _AWAY, repair)]


def _together(checks: Sequence[Check]) -> Sequence[Check]:
    wrong = [check for check in checks if check.level != "ok"]
    return wrong or [replace(checks[0], said="; ".join(check.said for check in checks))]


async def any_full(connections: Connections) -> bool:
    """Whether a server of the db has reached `maxmemory` and takes no new timers."""
    return any(await asyncio.gather(*(is_full(node.commands) for node in connections.nodes)))


async def reaches_some(connections: Connections) -> bool:
    """Whether some of several servers answer."""
    nodes = connections.nodes
    if len(nodes) == 1:
        return False
    found = await asyncio.gather(*(node.commands.ping() for node in nodes), return_exceptions=True)
    return any(answer is True for answer in found)
