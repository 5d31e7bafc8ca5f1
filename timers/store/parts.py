"""Owns which server has which part of a db: of a cluster's nodes, those that have keys; of one server, all."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from timers.store import keys
from timers.store.scripts import reachable
from timers.store.servers.connections import Connections

MOVED_SECONDS: Final = 1.0
"""How often subscriptions are compared with the servers that there are. One that is no primary any more keeps its
subscribers, and says nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one server has of a db: its shards, and the channels that tell of them. It also announces those keys that
    expire on it, and no others."""

    node: Connections
    shards: frozenset[int]
    wakes: tuple[bytes, ...]
    events: tuple[bytes, ...]


def is_spread(connections: Connections) -> bool:
    """Whether the db may lie on several servers, and move between them."""
    return connections.wake == keys.OWN_WAKE


def parts(connections: Connections, shards: int) -> list[Part]:
    """A db of so many shards by server, as far as is known."""
    if not is_spread(connections):
        events = keys.events_channel(connections.db)
        return [Part(connections, frozenset(range(shards)), (connections.wake.encode(),), (events.encode(),))]
    roots = defaultdict[Connections, dict[str, int]](dict)
    for shard in range(shards):
        root = keys.root(shard)
        roots[connections.node_of(root)][root] = shard
    with_pods = connections.node_of(keys.PODS_ROOT)
    return [_part(node, roots[node], [keys.PODS_ROOT] if node is with_pods else []) for node in connections.nodes]


def _part(node: Connections, roots: Mapping[str, int], others: list[str]) -> Part:
    wakes, events = (
        tuple(f"{root}{end}".encode() for root in (*roots, *others)) for end in (keys.OWN_WAKE, keys.OWN_EVENTS)
    )
    return Part(node, frozenset(roots.values()), wakes, events)


async def current_parts(connections: Connections, shards: int) -> list[Part]:
    """As `parts`, after asking the servers. Raises Unavailable."""
    with reachable():
        await connections.refresh()
    return parts(connections, shards)
