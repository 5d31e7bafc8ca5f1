"""Owns the calls to the scripts: typed arguments in, typed answers out, one method for each script. Knows no policy."""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from redis.asyncio import Redis

from timers.core.clock import ServerClock
from timers.core.decide import Transition
from timers.core.fields import encode
from timers.core.model import NO_PROGRESS, Lease, Progress, Timer
from timers.core.shapes import Durability
from timers.errors import RedisRights, Unavailable
from timers.store import codec, keys, scripts
from timers.store.identity import DbIdentity, is_newer
from timers.store.refusals import Refusals
from timers.store.servers.connections import Connections, Scripts
from timers.store.servers.durability import WAITS, Write, Written

TOUCH_LIMIT: Final = 500
"""Trigger keys touched, and queues or leases checked, in one call: a few milliseconds, and few enough events for a
fast subscriber not to be cut off."""

ARM_LIMIT: Final = 125
"""Timers armed by one script call, so that it does not hold the server up."""

CALL_BYTES: Final = 1 << 20
"""What one script call is given of records, or one record that is larger: a timer may have a payload of 64 KiB, and a
full batch of them would hold the server up for a tenth of a second. More calls take no more round trips."""

FOUNDING_TRIES: Final = 5
"""The first try founds shards in which no timer was ever made; more are for a db that is emptied meanwhile."""

KEEPS_CHANGING: Final = "the db keeps being emptied or given another epoch"

Identity = tuple[str, str]
"""(prefix, id)."""

Queue = tuple[int, str]
"""(shard, prefix)."""


class Arming(NamedTuple):
    """One timer to arm. `due` is `@<epoch ms>` or `+<ms from now>`, counted by the server. `created_ms` is not 0 if
    the ledger has it already, with that creation; `known` if the ledger has another of that name. With a `life` it is
    only armed in that one of its shard. An empty `durability` is `fast`, but nobody wants to hear of it. `body` has the
    spec and the progress as the record keeps them, a line each, if somebody has encoded them already."""

    prefix: str
    id: str
    due: str
    spec: Mapping[str, Any]
    progress: Progress = NO_PROGRESS
    if_exists: str = "error"
    cause: str = "replaced"
    created_ms: int = 0
    durability: Durability | Literal[""] = ""
    known: bool = False
    life: str = ""
    body: str = ""


class Reply(NamedTuple):
    """A script's code for one timer, and the timer that is there now (None if there is none). With the codes `rights`
    and `newer` the error that says what the Redis user may not do, or which format the record has; with `away` the one
    that kept it from being armed."""

    code: str
    timer: Timer | None
    refused: Unavailable | None = None

    def with_durability(self, reached: Durability | Literal[""]) -> "Reply":
        """Says of a timer that was armed how durable it is."""
        if self.timer is None or self.timer.durability == reached or self.code not in ("created", "replaced"):
            return self
        return self._replace(timer=self.timer._replace(durability=reached))


@dataclass(frozen=True, slots=True)
class Claimed:
    """Timers to run; `unreadable` timers with the reason, which are leased too but must be ended without a run; what
    was quarantined (member → reason); and the queues that have more due, without those that the Redis user may not
    claim from."""

    timers: list[Timer]
    unreadable: list[tuple[Timer, str]]
    quarantined: dict[str, str]
    more: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Touched:
    """When to poll again (None: nothing planned); the queues with due timers, newest first, with the earliest due time
    of each; the rank to continue at (0: all were checked); whether leases have expired. Excludes blocked queues."""

    now_ms: int
    next_ms: int | None
    due: dict[str, int]
    next_rank: int = 0
    lost: bool = False


class Settlement(NamedTuple):
    """The end of a run: the timer as it was claimed (its token is the proof) and what follows. `timings` say how long
    claiming, waiting and running took: `<ms or nothing>+<ms>+<ms>`, or `-`."""

    timer: Timer
    transition: Transition
    timings: str = "-"


class Store:
    """The timers of one db. Methods raise Unavailable while Redis is down. A batch belongs to one shard."""

    def __init__(
        self, connections: Connections, *, shards: int | None = None, clock: ServerClock | None = None
    ) -> None:
        """`shards` is the number that this process insists on; None accepts the db's."""
        self.connections = connections
        self.clock = clock or ServerClock()
        self._wake = connections.wake
        self._is_spread = connections.is_spread
        self._clocks: dict[Connections, ServerClock] = {}
        self.called: Callable[[str, float], None] = lambda _script, _seconds: None
        """Called after each script call with its name and the seconds it took."""
        self.confirmed: Callable[[str, bool, int], None] = lambda _durability, _reached, _timers: None
        """Called after writes that waited for more than Redis, with what for, whether it came in time, and how many
        timers they wrote."""
        self.identity = DbIdentity(connections, self.clock, shards)
        self.refusals = Refusals(connections.user)

    @property
    def shards(self) -> int:
        """The number of shards of the db."""
        return self.identity.shards

    def shard_of(self, prefix: str, timer_id: str) -> int:
        """The shard that holds the timer: CRC-32 of `prefix:id` modulo the number of shards."""
        shards = self.identity.shards
        return zlib.crc32(f"{prefix}:{timer_id}".encode()) % shards if shards > 1 else 0

    def shard_of_member(self, member: bytes) -> int:
        """As `shard_of`, of `prefix:id`."""
        return zlib.crc32(member) % self.identity.shards

    def clock_of(self, where: int | str) -> ServerClock:
        """The clock of the server that has a shard or another root. `clock` is that of the server with the meta."""
        if not self._is_spread:
            return self.clock
        node_of = self.connections.node_of
        node = node_of(where if isinstance(where, str) else keys.root(where))
        if node is node_of(keys.META):
            return self.clock
        if node not in self._clocks:
            self._clocks[node] = self.clock.like()
        return self._clocks[node]

    async def now_ms(self) -> int:
        """Ask the server for its time."""
        sent = time.monotonic()
        with scripts.reachable(alone=True):
            seconds, micros = await self.connections.commands.time()
        self.clock.observe(server_ms := seconds * 1000 + micros // 1000, sent, time.monotonic())
        return server_ms

    async def arm(self, armings: Sequence[Arming], *, edit_lock_ms: int = 0, room: int | None = None) -> list[Reply]:
        """Arm timers of any shards and one durability in one round trip; replies in order. Codes: created, replaced,
        kept, exists, running, locked, newer, rights; lost, if it is `known` and Redis may have just lost it, and in
        another `life`; full, once `room` for timers that are not scheduled already is used up. Those that wait for disk
        or replicas say whether that was reached."""
        lines, level = list(map(_arming, armings)), (armings[0].durability if armings else "") or "fast"
        if len(armings) == 1 and room is None and level not in WAITS and self.identity.epoch:  # in half the CPU
            arguments = (self.identity.stamp, self.identity.writes, edit_lock_ms, "", lines[0])
            answer = await self.run("arm", self.shard_of(*armings[0][:2]), arguments)
            if answer[0] != b"foreign":
                return [self._armed(armings[0], *answer)]

        def head(places: Sequence[int]) -> Sequence[scripts.Argument]:
            return edit_lock_ms, "" if room is None else sum(place < room for place in places)

        answers, missed = await self.run_lines("arm", [a[:2] for a in armings], lines, head, level=level)
        replies = [self._armed(a, *said) for a, said in zip(armings, answers, strict=True)]
        if level not in WAITS:
            return replies
        reached = [place not in missed for place in range(len(armings))]
        for in_time, timers in Counter(reached).items():
            self.confirmed(level, in_time, timers)
        return [
            reply.with_durability(level if in_time else "fast") for reply, in_time in zip(replies, reached, strict=True)
        ]

    async def run_lines(
        self,
        name: str,
        identities: Sequence[Identity],
        lines: Sequence[str | bytes],
        head: Callable[[Sequence[int]], Sequence[scripts.Argument]] = lambda _places: (),
        *,
        most: int = ARM_LIMIT,
        level: Durability = "fast",
        expected: str = "",
    ) -> tuple[list[tuple[Any, ...]], Set[int]]:
        """Run a script that makes timers, with a line for each, on all their shards in one round trip. Returns what it
        says of each, and the places of those that are not as durable as the level says. Founds shards that do not carry
        the db's epoch; but if a life is `expected`, the one in which the lines were made, it raises Unavailable for
        those in another. `head` makes the arguments that come before a batch of at most `most` lines."""
        if identities and not self.identity.epoch:
            await self.identity.make()
        answers, missed = dict[int, tuple[Any, ...]](), set[int]()
        for _ in range(FOUNDING_TRIES):
            stamp, form = expected or self.identity.stamp, self.identity.writes
            batches = [
                (shard, batch)
                for shard, places in self.by_shard(identities, answers).items()
                for batch in _batches(places, lines, most)
            ]
            calls = [
                (keys.root(shard), [stamp, form, *head(places), *(lines[place] for place in places)])
                for shard, places in batches
            ]
            foreign: set[int] = set()
            with _after(answers):
                written = await self.run_durably(level, name, calls)
            for (shard, places), (reply, in_time) in zip(batches, written, strict=True):
                if reply[1] == b"foreign":
                    foreign.add(shard)
                    continue
                said = scripts.grouped(reply[1:], (len(reply) - 1) // len(places))
                answers.update(zip(places, said, strict=True))
                missed.update(() if in_time else places)
            if len(answers) == len(identities):
                return [answers[place] for place in range(len(identities))], missed
            if expected:
                raise Unavailable("Redis has lost data meanwhile")
            with _after(answers):
                await self.identity.found(foreign)
        raise Unavailable(KEEPS_CHANGING)

    async def get(self, identities: Sequence[Identity]) -> list[Timer | None]:
        """The timers of any shards, with their leases; None for those that do not exist."""
        found: dict[Identity, Timer | None] = {}
        shards = self.by_shard(identities)
        calls = [
            (keys.root(shard), [part for place in places for part in identities[place]])
            for shard, places in shards.items()
        ]
        for places, reply in zip(shards.values(), await self.run_all("get", calls), strict=True):
            for place, parts in zip(places, scripts.grouped(reply[1:], 3), strict=True):
                found[identities[place]] = _read(identities[place], int(reply[0]), *parts)
        return [found[identity] for identity in identities]

    async def get_one(self, prefix: str, timer_id: str) -> Timer | None:
        """A timer with its lease; None if it does not exist. Raises NewerFormat."""
        shard = self.shard_of(prefix, timer_id)
        calls = [(keys.root(shard), [prefix, timer_id])]
        ((now_ms, raw, held, left_ms),) = await self.run_all("get", calls, self.connections.scripts)
        timer = _read((prefix, timer_id), int(now_ms), raw, held, left_ms)
        if timer is None and raw is not None and is_newer(raw):
            raise self.refusals.met_newer(f"{prefix}:{timer_id}", raw)
        return timer

    async def cancel(
        self,
        prefix: str,
        timer_id: str,
        *,
        edit_lock_ms: int = 0,
        version: int | None = None,
        purge: bool = False,
        keep: bool = True,
        cause: str = "cancelled",
        life: str = "",
    ) -> Reply:
        """Cancel a timer; without `keep` no record stays; with a `life` only in that one of its shard. Codes:
        cancelled, purged, missing, newer, running, locked, version, finished, lost."""
        record = "purge" if purge else "" if keep else "forget"
        arguments = (edit_lock_ms, prefix, timer_id, _expected(version, life), record, cause)
        return await self._one("cancel", prefix, timer_id, arguments)

    async def reschedule(
        self,
        prefix: str,
        timer_id: str,
        *,
        due: str = "",
        spec: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        edit_lock_ms: int = 0,
        version: int | None = None,
        cause: str = "changed",
        life: str = "",
    ) -> Reply:
        """Change what is given; with a `life` only in that one of its shard. Codes: changed, missing, newer, running,
        locked, version, finished, lost."""
        new = "" if spec is None else encode(spec)
        begun = "-" if progress is None else codec.encode_progress(progress)
        arguments = (edit_lock_ms, prefix, timer_id, _expected(version, life), due, new, begun, cause)
        return await self._one("reschedule", prefix, timer_id, arguments)

    async def rearm(
        self,
        prefix: str,
        timer_id: str,
        *,
        cause: str,
        due: str = "+0",
        version: int | None = None,
        completed: bool = False,
        full: bool = False,
        progress: Progress | None = None,
        life: str = "",
    ) -> Reply:
        """Arm a failed, unhandled or cancelled timer again; with `completed` also a completed one; none if a quota is
        `full`; with a `life` only in that one of its shard. Codes: changed, missing, newer, version, running,
        scheduled, completed, full, rights, lost."""
        which, room = "completed" if completed else "", "full" if full else ""
        begun = "-" if progress is None else codec.encode_progress(progress)
        arguments = (prefix, timer_id, due, _expected(version, life), which, cause, room, begun)
        return await self._one("rearm", prefix, timer_id, arguments)

    async def claim(
        self,
        shard: int,
        wanted: Sequence[tuple[str, int]],
        *,
        pod: str,
        lease_ms: int,
        cause: str,
        in_order: bool = False,
        processors: Mapping[str, str] = {},
    ) -> Claimed:
        """Claim due timers of some queues, each given as (prefix, most to take), earliest first; with `in_order` also
        behind a backlog. The history names each queue's processor."""
        arguments: list[scripts.Argument] = [pod, lease_ms, cause, "in order" if in_order else ""]
        arguments += [f"{prefix} {processors.get(prefix, '-')} {most}" for prefix, most in wanted]
        more, claimed, bad, denied, newer = await self.run("claim", shard, arguments)
        refused = dict(scripts.grouped(denied, 2))
        for command in refused.values():
            self.refusals.denied(command.decode())
        left = {prefix.decode() for prefix in set(more).difference(refused)}
        return replace(self._claimed(claimed, bad, newer, pod, lease_ms), more=left)

    async def block(self, shard: int, block_ms: Mapping[str, int]) -> None:
        """Start nothing of these queues for so long. Nobody polls them meanwhile. 0 lets a queue go on, and its
        shard's pods poll at once."""
        await self.run_all("block", [(keys.root(shard), each) for each in block_ms.items()])

    async def pause(self, prefix: str, *, paused: bool) -> bool:
        """Pause a queue in all shards, or resume it. True if that changed anything."""
        if not self.identity.armed:
            await self.identity.make()
            await self.identity.found(range(self.shards))
        told = await self.run_everywhere("pause", [prefix, "pause" if paused else "resume"])
        return any(changed for _now, changed in told)

    async def abandon(
        self, shard: int, prefix: str, runs: Sequence[str], *, before_ms: int, most: int, pod: str
    ) -> list[str]:
        """End an unserved queue's timers as `unhandled`: at most `most` due before `before_ms`, and those of `runs`
        whose lease expired before it. Returns their ids."""
        ended, is_cut = list[str](), True
        while is_cut:
            left = most - len(ended)
            ids, is_cut = await self.run("abandon", shard, [prefix, before_ms, max(left, 0), pod, *runs])
            ended += [keys.text(timer_id) for timer_id in ids]
        return ended

    async def rescue(
        self, shard: int, orphans: Sequence[Identity], *, pod: str, lease_ms: int, processors: Mapping[str, str] = {}
    ) -> Claimed:
        """Take over runs whose lease has expired, about a megabyte of records; leave out those whose lease has not. The
        history names each queue's processor."""
        named = [part for prefix, timer_id in orphans for part in (prefix, timer_id, processors.get(prefix, "-"))]
        rescued, bad, newer = await self.run("rescue", shard, [pod, lease_ms, *named])
        return self._claimed(rescued, bad, newer, pod, lease_ms)

    async def extend(
        self, shard: int, timers: Sequence[Timer], *, pod: str, lease_ms: int, via: Scripts | None = None
    ) -> list[Timer]:
        """Extend leases. Returns the timers whose lease went to a newer token."""
        lost, left = list[Timer](), timers
        while left:  # a call stops after a megabyte of records
            named = [part for timer in left for part in (timer.prefix, timer.id, timer.token)]
            indexes, seen = await self.run("extend", shard, [pod, lease_ms, *named], via=via)
            lost += [left[int(index)] for index in indexes]
            left = left[int(seen) :]
        return lost

    async def settle(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        *,
        pod: str,
        retention_ms: int,
        keeps_failed: bool = True,
        durability: Durability = "fast",
    ) -> list[str]:
        """End runs, in one round trip. A retention of 0 removes completed timers at once, `keeps_failed` False failed
        ones. Codes in order: settled, already, fenced, missing."""
        removes, form = ("" if retention_ms else "cx") + ("" if keeps_failed else "fu"), self.identity.writes
        ends = [
            codec.encode_end(timer, after, pod=pod, timings=timings, form=form) for timer, after, timings in settlements
        ]
        batches = list(_batches(range(len(ends)), ends, len(ends)))
        if durability not in WAITS and len(batches) == 1:
            return [code.decode() for code in await self.run("settle", shard, [removes, *ends])]
        calls: list[scripts.Call] = [
            (keys.root(shard), [removes, *(ends[place] for place in batch)]) for batch in batches
        ]
        written = await self.run_durably(durability, "settle", calls)
        if durability in WAITS:
            for batch, (_, reached) in zip(batches, written, strict=True):
                self.confirmed(durability, reached, len(batch))
        return [code.decode() for (_now, *codes), _ in written for code in codes]

    async def touch(self, shard: int, rank: int = 0, *, joins: bool = False) -> Touched:
        """Touch what has become due so that its events come now, and learn when to poll again. Checks some queues
        from `rank` on, newest due first. A pod that joins asks for queues at a limit too: see touch.lua."""
        asked = [TOUCH_LIMIT, rank, *(["joins"] if joins else ())]
        next_poll, queues, next_rank, lost = await self.run("touch", shard, asked)
        due = {keys.text(prefix): int(due_ms) for prefix, due_ms in scripts.grouped(queues, 2)}
        next_ms = int(next_poll) if next_poll else None
        return Touched(round(self.clock_of(shard).now_ms()), next_ms, due, int(next_rank), bool(lost))

    async def has_runs(self, shards: Sequence[int]) -> bool:
        """Whether timers of any of these shards are running."""
        with scripts.reachable():
            return bool(await self.connections.commands.exists(*(f"{keys.root(shard)}leases" for shard in shards)))

    async def orphans(self, shard: int, rank: int = 0) -> tuple[list[Identity], int]:
        """Runs with expired leases from `rank` on, except in paused queues, and the rank to continue at (0: none)."""
        members, next_rank = await self.run("orphans", shard, [TOUCH_LIMIT, rank])
        return [keys.identity_of(keys.text(member)) for member in members], int(next_rank)

    def _claimed(
        self, parts: Sequence[bytes], bad: Sequence[bytes], newer: Sequence[bytes], pod: str, lease_ms: int
    ) -> Claimed:
        lease = Lease(pod, round(self.clock.now_ms()) + lease_ms)
        claimed = Claimed([], [], {keys.text(member): reason.decode() for member, reason in scripts.grouped(bad, 2)})
        for member, raw in scripts.grouped(newer, 2):
            self.refusals.met_newer(keys.text(member), raw)
        for prefix, timer_id, raw in scripts.grouped(parts, 3):
            try:
                claimed.timers.append(codec.decode(prefix.decode(), timer_id.decode(), raw, lease))
            except codec.CorruptRecord as corrupt:
                if corrupt.timer is not None:  # the script has written the head
                    claimed.unreadable.append((corrupt.timer, str(corrupt)))
        return claimed

    def by_shard(self, identities: Iterable[Identity], without: Container[int] = ()) -> dict[int, list[int]]:
        """Positions of the identities by shard, except those in `without`."""
        by_shard: dict[int, list[int]] = {}
        for place, (prefix, timer_id) in enumerate(identities):
            if place not in without:
                by_shard.setdefault(self.shard_of(prefix, timer_id), []).append(place)
        return by_shard

    async def _one(self, name: str, prefix: str, timer_id: str, arguments: Sequence[scripts.Argument]) -> Reply:
        return self._answer(prefix, timer_id, *await self.run(name, self.shard_of(prefix, timer_id), arguments))

    def _armed(self, arming: Arming, code: bytes, words: bytes) -> Reply:
        """For a new timer the script returns only the due time and the creation; everything else is known."""
        if code != b"created":
            return self._answer(arming.prefix, arming.id, code, words).with_durability(arming.durability)
        due, _, created = words.partition(b" ")
        prefix, timer_id, _, spec, progress = arming[:5]
        timer = codec.new_record(
            prefix, timer_id, int(due), int(created), spec=spec, progress=progress, durability=arming.durability
        )
        return Reply("created", timer)

    def _answer(self, prefix: str, timer_id: str, code: bytes, record: bytes | None) -> Reply:
        if code == b"rights" and record:
            return Reply("rights", None, self.refusals.denied(record.decode()))
        if code == b"newer" and record:
            return Reply("newer", None, self.refusals.met_newer(f"{prefix}:{timer_id}", record))
        return Reply(code.decode(), codec.readable(prefix, timer_id, record) if record else None)

    async def run(
        self,
        name: str,
        where: int | str,
        arguments: Sequence[scripts.Argument],
        *,
        via: Scripts | None = None,
    ) -> list[Any]:
        """Run a script on a shard or on the root of other keys. Every answer begins with the server's time, which sets
        the clock and is removed."""
        root, sent = where if isinstance(where, str) else keys.root(where), time.monotonic()
        try:
            reply: list[Any] = await scripts.run(via or self.connections.scripts, name, root, arguments, self._wake)
        except RedisRights as error:
            raise self._refused(error) from error
        self._heard(name, sent, [((root, ()), reply)])
        return reply[1:]

    async def of_shards(
        self, ask: Callable[[Any, str], object], *empty: object, shards: Iterable[int] | None = None
    ) -> list[list[Any]]:
        """By shard, what `ask` reads, given a pipeline and a shard's root, of all shards or of some in one round trip.
        `empty` is what its commands in turn answer for missing keys."""
        roots = list(map(keys.root, range(self.shards) if shards is None else shards))
        redis = self.connections.commands
        answers = await scripts.read(redis, lambda asked: [ask(asked, root) for root in roots], *empty)
        each = len(answers) // max(len(roots), 1)
        return [answers[each * place : each * (place + 1)] for place in range(len(roots))]

    async def run_all(self, name: str, calls: Sequence[scripts.Call], via: Scripts | None = None) -> list[Any]:
        """Run a script several times in one round trip, over `via` if given. Each answer still begins with the server's
        time. If one fails, those before it were made, and later ones may have been."""
        return [reply for reply, _ in await self._run_all(name, calls, via or self.connections.commands)]

    async def run_everywhere(self, name: str, arguments: Sequence[scripts.Argument]) -> list[Any]:
        """As `run_all`, once on each shard with the same arguments."""
        return await self.run_all(name, [(keys.root(shard), arguments) for shard in range(self.shards)])

    async def run_durably(self, level: Durability, name: str, calls: Sequence[scripts.Call]) -> list[Written]:
        """As `run_all`, and of each call whether the server's disk or replicas, as far as the level says, had it in
        time."""
        via = self.connections.durable(level) if level in WAITS else self.connections.scripts
        return await self._run_all(name, calls, via)

    async def _run_all(self, name: str, calls: Sequence[scripts.Call], via: Redis | Scripts | Write) -> list[Written]:
        if not calls:
            return []
        sent = time.monotonic()
        written = await scripts.run_all(via, name, calls, self._wake)
        if error := next((answer for answer, _ in written if isinstance(answer, BaseException)), None):
            raise self._refused(error) if isinstance(error, RedisRights) else error
        self._heard(name, sent, zip(calls, (reply for reply, _ in written), strict=True))
        return written

    def _heard(self, name: str, sent: float, replies: Iterable[tuple[scripts.Call, Sequence[Any]]]) -> None:
        answered = time.monotonic()
        for (root, _), reply in replies:
            clock = self.clock_of(root) if self._is_spread else self.clock
            clock.observe(int(reply[0]), sent, answered)
        self.called(name, answered - sent)

    def _refused(self, error: RedisRights) -> RedisRights:
        return self.refusals.denied(error.command) if error.command else error


@contextmanager
def _after(answers: Sized) -> Iterator[None]:
    """What goes wrong within was not the first step of the call if there are answers already: something was done."""
    try:
        yield
    except Unavailable as error:
        error.nothing_done = error.nothing_done and not answers
        raise


def _batches(places: Sequence[int], lines: Sequence[str | bytes], most: int) -> Iterator[list[int]]:
    """The places of some lines in the batches of which each is one call: at most `most` lines and CALL_BYTES."""
    batch, size = list[int](), 0
    for place in places:
        if batch and (len(batch) == most or size + len(lines[place]) > CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += len(lines[place])
    if batch:
        yield batch


def _expected(version: int | None, life: str) -> str:
    return ("" if version is None else str(version)) + (f"@{life}" if life else "")


def _read(identity: Identity, now_ms: int, raw: bytes | None, held: bytes, left_ms: int) -> Timer | None:
    if raw is None:
        return None
    lease = Lease(held.decode(errors="replace").partition(" ")[0], now_ms + left_ms) if held else None
    return codec.readable(*identity, raw, lease)


def _arming(a: Arming) -> str:
    """A line, and the record's body. One argument for each timer, because redis-py spends more on an argument than on
    its length."""
    due = f"{a.due}/{a.created_ms}" if a.created_ms or a.known else a.due
    due = f"{due}@{a.life}" if a.life else due
    body = a.body or f"{encode(a.spec)}\n{codec.encode_progress(a.progress)}"
    return f"{a.prefix} {a.id} {a.if_exists} {due} {a.cause}\n{body}"
