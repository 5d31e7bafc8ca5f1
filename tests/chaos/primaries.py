"""Servers with replicas: a primary behind Sentinels, or the primaries of a cluster. One is killed, stopped or replaced,
or gives slots to another."""

import asyncio
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Literal, Self

from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind, Witness
from tests.clusters import Cluster, Node, move_at_once, move_key_by_key
from tests.sentinels import Sentinels
from tests.waiting import eventually
from timers.embedded import Family
from timers.store import keys
from timers.store.servers.slots import slot_of

How = Literal["kill", "pause", "planned"]
HOWS: Final[tuple[How, ...]] = ("kill", "pause", "planned")

_SILENT: Final = ("--notify-keyspace-events", "")
"""Only what the pods set announces expired keys, also on a replica that becomes the primary."""


_MEANT: Final = (FaultKind.PARTITION, FaultKind.DISCONNECT, FaultKind.LOSS)
"""Replicas follow with a delay: what the next primary has not read by then is lost."""

_MOVED_AT_ONCE: Final = 3


class Primaries(ABC):
    """Use as `async with await ….start(...) as server:`. `url` is for the pods; `pid` is the process of a primary."""

    url: str
    name: str
    pid: int
    believed_s = 0.0
    """For how long pods may take the word of a lost primary that wakes."""

    async def fail(self, witness: Witness, how: How, rng: random.Random) -> None:
        """Lose a primary, and with it every connection; the fault is over when there is another. Some time later the
        old one comes back, which still takes itself for the primary if it was stopped."""
        faults = [witness.fault_on(kind, EVERY_POD) for kind in _MEANT]
        old, new = await self._replace(how, rng)
        self.pid = new.pid
        await asyncio.sleep(self.believed_s)
        for fault in faults:
            witness.fault_off(fault, f"{how} of {old.name}, {new.name} in its place")
        await asyncio.sleep(rng.uniform(0, 3))
        await self._heal()

    @abstractmethod
    async def _replace(self, how: How, rng: random.Random) -> tuple[Node, Node]:
        """Lose a primary. Returns it and the one that has taken its place."""

    @abstractmethod
    async def _heal(self) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()


def _lose(primary: Node, how: How) -> None:
    (primary.down if how == "kill" else primary.hang)()


class Watched(Primaries):
    """A primary with two replicas behind three Sentinels."""

    def __init__(self, sentinels: Sentinels, primary: Node, family: Family) -> None:
        self._sentinels, self.pid = sentinels, primary.pid
        self.url, self.name = sentinels.url, f"{family} behind Sentinels"

    @classmethod
    async def start(cls, family: Family, directory: Path, options: tuple[str, ...] = ()) -> Self:
        """Starts all with their data in `directory`."""
        sentinels = await Sentinels.start(family, directory / "sentinels", *_SILENT, *options)
        return cls(sentinels, await sentinels.primary(), family)

    async def _replace(self, how: How, rng: random.Random) -> tuple[Node, Node]:
        old = await self._sentinels.primary()
        if how == "planned":
            return old, await self._sentinels.fail_over()
        _lose(old, how)
        return old, await eventually(lambda: self._other_than(old), "another primary")

    async def _other_than(self, old: Node) -> Node | None:
        now = await self._sentinels.primary()
        return now if now is not old and (await now.ask("ROLE"))[0] == "master" else None

    async def _heal(self) -> None:
        await self._sentinels.heal()

    def _stop(self) -> None:
        self._sentinels.stop()


class Sharded(Primaries):
    """A cluster of three primaries with a replica each."""

    believed_s = 1.0

    def __init__(self, cluster: Cluster, family: Family) -> None:
        self._cluster, self.pid = cluster, cluster.nodes[0].pid
        self._moves = (move_key_by_key, move_at_once) if family == "valkey" else (move_key_by_key,)
        self.url, self.name = cluster.url, f"{family} cluster"

    @classmethod
    async def start(cls, family: Family, directory: Path, options: tuple[str, ...] = ()) -> Self:
        """Starts all with their data in `directory`."""
        return cls(await Cluster.start(family, directory / "cluster", *_SILENT, *options), family)

    async def reshard(self, witness: Witness, shards: int, rng: random.Random) -> None:
        """Give the slots of some shards, and perhaps those of the db's own keys, to other primaries."""
        for key in rng.sample([keys.META, keys.PODS_ROOT, *map(keys.root, range(shards))], _MOVED_AT_ONCE):
            source = await self._cluster.owner(key)
            target = rng.choice([node for node in await self._cluster.primaries() if node is not source])
            fault = witness.fault_on(FaultKind.PARTITION, EVERY_POD)
            await rng.choice(self._moves)(slot_of(key), source, target)
            moved = await self._cluster.owner(key) is target
            witness.fault_off(fault, f"the slot of {key}: {source.name} to {target.name}" if moved else "")
        await self._heal()

    async def _replace(self, how: How, rng: random.Random) -> tuple[Node, Node]:
        old = rng.choice(await self._cluster.primaries())
        if how == "planned":
            return old, await self._cluster.fail_over(old)
        successor = await self._cluster.replica_of(old)
        _lose(old, how)

        async def has_taken_over() -> bool:
            return bool((await successor.ask("ROLE"))[0] == "master")

        await eventually(has_taken_over, "another primary")
        return old, successor

    async def _heal(self) -> None:
        await self._cluster.heal()

    def _stop(self) -> None:
        self._cluster.stop()
