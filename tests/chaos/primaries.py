"""The server of a run behind Sentinels: a primary with two replicas, which is killed, stopped or replaced."""

import asyncio
import random
from pathlib import Path
from typing import Final, Literal, Self

from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind, Witness
from tests.clusters import Node
from tests.sentinels import Sentinels
from tests.waiting import eventually
from timers.embedded import Family

How = Literal["kill", "pause", "planned"]
HOWS: Final[tuple[How, ...]] = ("kill", "pause", "planned")

_SILENT: Final = ("--notify-keyspace-events", "")
"""Only what the pods set announces expired keys, also on a replica that becomes the primary."""


_MEANT: Final = (FaultKind.PARTITION, FaultKind.DISCONNECT, FaultKind.LOSS)
"""Replicas follow with a delay: what the next primary has not read by then is lost."""


class Primaries:
    """Use as `async with await Primaries.start(...) as server:`. `url` names the Sentinels."""

    def __init__(self, sentinels: Sentinels, primary: Node, family: Family) -> None:
        self._sentinels, self._primary = sentinels, primary
        self.url, self.name = sentinels.url, f"{family} behind Sentinels"

    @classmethod
    async def start(cls, family: Family, directory: Path, options: tuple[str, ...] = ()) -> Self:
        """Starts all with their data in `directory`."""
        sentinels = await Sentinels.start(family, directory / "sentinels", *_SILENT, *options)
        return cls(sentinels, await sentinels.primary(), family)

    @property
    def pid(self) -> int:
        """The process of the newest known primary."""
        return self._primary.pid

    async def fail(self, witness: Witness, how: How, rng: random.Random) -> None:
        """Lose the primary, and with it every connection; the fault is over when there is another. Some time later the
        old one comes back, which still takes itself for the primary if it was stopped."""
        old = await self._sentinels.primary()
        faults = [witness.fault_on(kind, EVERY_POD) for kind in _MEANT]
        if how == "planned":
            self._primary = await self._sentinels.fail_over()
        else:
            (old.down if how == "kill" else old.hang)()
            self._primary = await eventually(lambda: self._other_than(old), "another primary")
        for fault in faults:
            witness.fault_off(fault, f"{how} of {old.name}, {self._primary.name} in its place")
        await asyncio.sleep(rng.uniform(0, 3))
        await self._sentinels.heal()

    async def _other_than(self, old: Node) -> Node | None:
        now = await self._sentinels.primary()
        return now if now is not old and (await now.ask("ROLE"))[0] == "master" else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sentinels.stop()
