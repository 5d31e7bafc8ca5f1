"""Owns moving a service to another db: on another server, in a cluster, or with another number of shards.

The source is closed to callers and claims, and what runs there ends. The records are copied exactly, and compared on
both sides. Then the source says where the service has moved, and only then the target begins. How far the move has come
lies in the two dbs, so whoever repeats it goes on from there.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, Self

from timers.client.fleet import shortened
from timers.errors import Refused
from timers.processor import DISTRIBUTION
from timers.store import moving
from timers.store.codec import STATUSES
from timers.store.identity import ARRIVING, COPYING, LEAVING, MOVED, Move
from timers.store.membership import Membership
from timers.store.moving import Digest, Part, Place
from timers.store.queries import running
from timers.store.store import Store

AT_ONCE: Final = 4
"""Parts of the records that are copied side by side: while one server works, this process and the other server do."""

COLLECTED: Final = 200
COLLECTED_SHARDS: Final = 16
"""So many records are collected for each shard of the target, up to so many shards, before they are sent."""

LOOK_SECONDS: Final = 0.25
"""How often to look whether all runs have ended."""

EARLIER_SECONDS: Final = 7.0
"""How long pods of another version are waited for: two of their signs of life, at which they learn of the move."""

TELL_SECONDS: Final = 2.0
COMPARISONS: Final = 3
"""A server may show a record twice while a reader makes it tidy up."""

SHOWN: Final = 5


class Mover:
    """One move, and what it did. `tell` is called with sentences about how far it is."""

    def __init__(
        self, source: Store, target: Store, places: tuple[str, str], *, tell: Callable[[str], None], wait_seconds: float
    ) -> None:
        """`places` says where source and target are, without credentials; what runs in the source may take
        `wait_seconds` to end."""
        self._source, self._target, (self._from, self._to) = source, target, places
        self._tell, self._wait_seconds = tell, wait_seconds
        self.was_done = False
        """Whether somebody had moved the service already."""
        self.timers: Mapping[str, int] = {}
        """How many timers there are now, by `<status letter> <prefix>`."""
        self.carried: Mapping[str, int] = {}
        """What else was carried over."""
        self.unreadable = self.lost_runs = 0
        """How many records could not be read, and how many runs were lost and are taken over there."""
        self.seconds: dict[str, float] = {}
        """How long each step took."""

    def to_json(self) -> dict[str, Any]:
        """As the command shows it."""
        return {
            "moved": True,
            "timers": sum(self.timers.values()),
            "by_prefix": by_prefix(self.timers),
            "carried": self.carried,
            "unreadable": self.unreadable,
            "lost_runs": self.lost_runs,
            "seconds": self.seconds,
        }

    async def check(self) -> None:
        """Raise Refused if there is nothing to move, or the target cannot take it."""
        source, target = self._source.identity, self._target.identity
        if not source.epoch:
            raise Refused(f"{self._from} has no timers: nothing was ever armed there")
        if source.epoch == target.epoch:
            raise Refused(
                f"{self._from} and {self._to} are the same db, or one is a copy of the other; empty the target"
            )
        here, there = source.moving, target.moving
        if here is not None and here.phase == ARRIVING:
            raise Refused(f"{here.error}; finish that move first")
        if here is None:
            await self._check_empty(there)
        elif here.is_over and there is None:
            if here.place != self._to:
                raise Refused(str(here.error))
        elif there is None or there.phase != ARRIVING or there.name != here.name:  # not the two ends of one move
            raise Refused(
                f"{self._from} is being moved to {here.place}, and {self._to} is not the place where that began, or "
                f"was emptied; finish that move, or end it with `timers copy --abort {self._from}`"
            )

    async def _check_empty(self, there: Move | None) -> None:
        if there is not None and there.is_over:
            raise Refused(f"{self._to} has been left: {there.error}; empty it, or choose another db")
        if self._target.identity.epoch and await moving.counted(self._target):
            part = " a part of another move's" if there is not None else ""
            raise Refused(f"{self._to} has{part} timers; empty it, or choose another db")

    async def run(self) -> Self:
        """Move, or go on with a move. Returns it when it is done. Raises Refused if that is not possible; the source
        was given back then, unless it says otherwise."""
        await self.check()
        here = self._source.identity.moving
        if here is None:
            await moving.forget_reached(self._target)
        if here is None or here.phase == LEAVING:
            await self._leave(here.name if here else secrets.token_hex(8))
        here = self._source.identity.moving
        if here is not None and not here.is_over:
            await self._copy(here.name)
        elif self._target.identity.moving is None:
            self.was_done = True
            return self
        await self._begin()
        return self

    async def _leave(self, name: str) -> None:
        """Close both dbs, and wait until nothing runs in the source any more."""
        await self._target.identity.make()
        await self._target.identity.move(ARRIVING, name, self._from)
        await moving.close(self._target, ARRIVING, self._from)
        try:
            await self._check_empty(self._target.identity.moving)
            await self._source.identity.move(LEAVING, name, self._to)
            async with self._step("waited for runs"):
                await self._until_nothing_runs()
        except BaseException:
            await asyncio.shield(asyncio.gather(give_back(self._source), give_back(self._target)))
            raise
        await self._source.identity.move(COPYING, name, self._to)

    async def _until_nothing_runs(self) -> None:
        """Claims have ended with the first look; what has a lease goes on, and what has none is a lost run, which the
        target takes over."""
        roster = await Membership(self._source).read()
        own = version(DISTRIBUTION)
        others = [pod.pod for pod in roster.workers if pod.version != own]
        if others:
            self._tell(f"waiting until pods of another version have noticed: {', '.join(others[:SHOWN])}")
        begun = told = time.monotonic()
        while True:
            still = await moving.close(self._source, LEAVING, self._to)
            waited = time.monotonic() - begun
            if not still and (not others or waited >= EARLIER_SECONDS):
                return
            if waited >= max(self._wait_seconds, EARLIER_SECONDS if others else 0):
                names = ", ".join((await running(self._source, range(self._source.shards)))[:SHOWN])
                raise Refused(
                    f"after {waited:.0f} s {still} timers still run ({names}); nothing was moved and the source goes "
                    "on. Wait longer (--wait), or end these runs"
                )
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                self._tell(f"waiting for {still} runs to end")
            await asyncio.sleep(LOOK_SECONDS)

    async def _copy(self, name: str) -> None:
        """Copy everything, and compare. The source stays closed if this fails: repeat the move, or abort it."""
        await moving.close(self._source, COPYING, self._to)
        await moving.close(self._target, ARRIVING, self._from)
        servers = ""
        while servers != (servers := await moving.servers(self._source, self._target)):
            async with self._step("copied"):
                await self._copy_records(servers)
            async with self._step("carried the rest"):
                self.carried = dict(await moving.carry(self._source, self._target))
        async with self._step("compared"):
            self.timers = await self._compared()
        self.lost_runs = sum(n for kind, n in self.timers.items() if kind.startswith("r "))
        await self._source.identity.move(MOVED, name, self._to)
        here = self._source.identity.moving
        if here is None or not here.is_over:
            raise Refused(f"{self._from} was reopened meanwhile, so nothing was moved; empty {self._to}")
        await moving.close(self._source, MOVED, self._to)

    async def _copy_records(self, servers: str) -> None:
        reached = await moving.reached(self._target, servers)
        parts = [part for part in moving.parts(self._source) if reached.get(part, part) is not None]
        total, done, self.unreadable = sum((await moving.counted(self._source)).values()), 0, 0
        began = told = time.monotonic()

        def count(number: int, every_seconds: float = TELL_SECONDS) -> None:
            nonlocal done, told
            done, now = done + number, time.monotonic()
            if now - told >= every_seconds:
                told = now
                self._tell(f"{done} of {total} timers copied, {done / max(now - began, 0.001):.0f}/s")

        if len(parts) < len(moving.parts(self._source)) or reached:
            self._tell("continuing where an earlier attempt stopped")
        waiting = iter(parts)

        async def work() -> None:
            for part in waiting:
                await self._copy_part(part, reached.get(part), count)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        count(0, 0)

    async def _copy_part(self, part: Part, place: Place | None, count: Callable[[int], None]) -> None:
        """Copy a part, and `count` its timers."""
        collected, by_shard = 0, dict[int, list[bytes]]()
        most = COLLECTED * min(self._target.shards, COLLECTED_SHARDS)
        async for page in moving.pages(self._source, part, place):
            for member, line in page.copies:
                shard = self._target.shard_of_member(member)
                by_shard.setdefault(shard, []).append(line)
            for member, reason, record in page.unreadable:
                self.unreadable += 1
                await moving.quarantine(self._target, member, reason, record)
            collected += len(page.copies)
            if collected >= most or page.next is None:
                codes = await moving.put(self._target, by_shard)
                if bad := sum(codes.values()) - codes["restored"] - codes["kept"]:
                    raise Refused(f"{bad} records were not taken: {dict(codes)}; see `timers doctor` of the source")
                await moving.reach(self._target, part, page.next)
                count(collected)
                collected, by_shard = 0, {}

    async def _compared(self) -> dict[str, int]:
        """How many timers there are by status and prefix. Raises Refused if the two dbs do not have the same."""
        differ = ""
        for _ in range(COMPARISONS):
            here, there = await asyncio.gather(self._digest(self._source), self._digest(self._target))
            numbers = {name: n for name, (n, _) in there.items()}
            counted = Counter[str]()
            for name, n in numbers.items():
                counted[name.replace("w ", "s ", 1) if name.startswith("w ") else name] += n
            if here != there:
                names = [name for name in here.keys() | there.keys() if here.get(name) != there.get(name)]
                differ = f"the records of {len(names)} statuses and prefixes differ: {shortened(sorted(names), SHOWN)}"
            elif counted != (found := await moving.counted(self._target)):
                names = [name for name in counted.keys() | found.keys() if counted[name] != found[name]]
                differ = f"the target's counts disagree with its records: {shortened(sorted(names), SHOWN)}"
            else:
                return dict(counted)
        raise Refused(
            f"{differ}. Nothing was moved; the source is still closed. Repeat the copy into an empty db, or reopen "
            f"the source with `timers copy --abort {self._from}`"
        )

    async def _digest(self, store: Store) -> Digest:
        sums: dict[str, tuple[int, int]] = {}
        waiting = iter(moving.parts(store))

        async def work() -> None:
            nonlocal sums
            for part in waiting:
                found = await moving.digest(store, part)
                sums = moving.added(sums, found)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return sums

    async def _begin(self) -> None:
        """Let the target begin: its timers fire from here on."""
        await moving.reopen(self._target)
        await moving.forget_reached(self._target)
        await self._target.identity.stay(armed=True)

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 1)


async def abort(source: Store) -> str:
    """Give the source of an unfinished move back: it goes on as before. Returns where it was being moved. Raises
    Refused if there is no such move."""
    here = source.identity.moving
    if here is None:
        raise Refused("the service is not being moved; nothing was done")
    if here.is_over:
        raise Refused(
            f"{here.error}; repeat the copy if it was not finished. To go back, copy it back into an empty db"
        )
    if here.phase == ARRIVING:
        raise Refused(f"{here.error}; abort the move there with `timers copy --abort {here.place}`, then empty this db")
    await give_back(source)
    return here.place


async def give_back(store: Store) -> None:
    """Let a db that was closed for a move go on as before."""
    identity = store.identity
    await identity.refresh()
    if identity.moving is not None:
        await moving.reopen(store)
        await identity.stay(armed=False)


def by_prefix(counted: Mapping[str, int]) -> Mapping[str, Mapping[str, int]]:
    """Counts by `<status letter> <prefix>`, by prefix and status."""
    numbers: dict[str, dict[str, int]] = {}
    for name, n in sorted(counted.items()):
        letter, _, prefix = name.partition(" ")
        numbers.setdefault(prefix, {})[STATUSES[letter].value] = n
    return numbers
