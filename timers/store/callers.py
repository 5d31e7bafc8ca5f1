"""Owns what Redis remembers about API callers: keys and revocations, signed requests already seen, rates, and quotas.

A caller with a quota books places, counts what is scheduled or runs, arms within what is left, and ends its booking.
Earlier bookings count with all their places: either their timers are counted or their booking is seen, so the last
place is taken once. A booking whose caller died expires.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice, product
from typing import Any, Final
from weakref import WeakValueDictionary

from redis.exceptions import ResponseError

from timers.core.policies import Rate
from timers.errors import Unavailable
from timers.store import keys
from timers.store.cooperative import Turn
from timers.store.following import FIRST_SHARD, stages
from timers.store.scripts import Argument, batched, grouped, reachable, read
from timers.store.store import Arming, Reply, Store
from timers.store.upkeep import index_prefixes

REVOKED: Final = "revoked"
"""Replaces an entry. It stays, so that a key from the settings can be revoked as well."""


async def _answer(asked: Awaitable[Any], key: str = keys.API_KEYS) -> Any:
    """The answer to a command. A foreign value in the place of one of these keys makes them unavailable: nobody may get
    in because the list of keys is gone."""
    try:
        with reachable(alone=True):
            return await asked
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        text = f"another program has written to {key} or a key beside it; `timers doctor` names it"
        raise Unavailable(text) from error


class Callers:
    """The keys and calls of one db. Methods raise Unavailable while Redis is down."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    @property
    def are_apart(self) -> bool:
        """Whether their server may be away while others are not, as on a cluster."""
        return self._store.connections.is_spread

    async def entries(self) -> Mapping[str, str]:
        """What is kept for each key id: its entry, or that it is revoked."""
        kept = await _answer(self._redis.hgetall(keys.API_KEYS))
        entries = {key_id.decode(errors="replace"): entry.decode(errors="replace") for key_id, entry in kept.items()}
        if any(entry != REVOKED for entry in entries.values()):
            self._store.identity.closed = True
        return entries

    async def closed(self) -> bool:
        """Whether a key was ever kept here, even if the keys themselves are gone."""
        identity = self._store.identity
        if not identity.closed:
            identity.closed = bool(await _answer(self._redis.hexists(keys.META, "closed"), keys.META))
        return identity.closed

    async def are_lost(self) -> bool:
        """Whether Redis has lost its data, or is new, and nobody has given back yet what the ledger has of the keys.
        False if that cannot be told."""
        with suppress(Unavailable, ResponseError):
            return (await stages(self._store, [FIRST_SHARD]))[FIRST_SHARD].is_new
        return False

    async def keep(self, key_id: str, entry: str) -> None:
        """Keep a new key. From now on the API refuses callers without a key. Raises Moving."""
        await self._store.identity.check_stays()
        self._store.identity.closed = True
        await _answer(self._redis.hset(keys.META, "closed", 1))
        await _answer(self._redis.hset(keys.API_KEYS, key_id, entry))

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key, wherever it is kept. False if Redis did not have it; an open API then stays open. Raises
        Moving."""
        await self._store.identity.check_stays()
        return not await _answer(self._redis.hset(keys.API_KEYS, key_id, REVOKED))

    async def session_secret(self) -> bytes:
        """The secret that signs dashboard sessions, the same on every pod. Whoever asks first creates it."""
        name = f"{keys.ACCESS_ROOT}session"
        kept = await _answer(self._redis.get(name))
        if kept is None:
            await _answer(self._redis.set(name, secrets.token_hex(32), nx=True))
            kept = await _answer(self._redis.get(name))
        if not kept:
            raise Unavailable("Redis does not keep the session secret")
        return bytes(kept)

    async def end_session(self, session: str, seconds: int) -> None:
        """Remember for this long that the session was ended."""
        await _answer(self._redis.set(_ended(session), 1, ex=max(1, seconds)))

    async def has_ended(self, session: str) -> bool:
        """Whether somebody ended the session before its time."""
        return bool(await _answer(self._redis.exists(_ended(session))))

    async def first_time(self, request_id: str, remember_ms: int) -> bool:
        """Whether no pod has seen this signed request before. From now on it counts as seen."""
        name = f"{keys.ACCESS_ROOT}seen:{hashlib.sha256(request_id.encode()).hexdigest()}"
        return bool(await _answer(self._redis.set(name, "1", nx=True, px=remember_ms)))

    async def wait_ms(self, key_id: str, rate: Rate) -> int:
        """How long the key's next call must wait; 0 if this call may pass, which then counts."""
        asked: list[Argument] = ["-", 0, 0, rate.interval_us, rate.burst, 1, f"rate:{key_id}"]
        passed, wait_ms, _ = await self._store.run("reserve", keys.ACCESS_ROOT, asked)
        return 0 if passed else int(wait_ms)


def _ended(session: str) -> str:
    return f"{keys.ACCESS_ROOT}ended:{hashlib.sha256(session.encode()).hexdigest()}"


BOOKED_MS: Final = 10_000
"""How long a booking lasts if nobody ends it: longer than a caller may wait for its turn and then for an answer."""

TURN_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.01
ROUNDS: Final = 5
"""Rounds of a batch: a timer without a place in its shard may get one that another shard did not use."""

COUNT_BATCH: Final = 500
"""Prefixes that one command looks at: a millisecond of the server's time at most."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How many timers may be scheduled at once under some prefixes (None: any number), and how many of these prefixes
    may have timers. `name*` stands for every prefix that begins with `name`. A running timer counts as scheduled,
    because a retry or a repeat makes it that again."""

    most: int | None
    prefixes: tuple[str, ...]
    most_prefixes: int


class Quotas:
    """Arms timers of one db within a quota, or without one. Methods raise Unavailable while Redis is down; places in
    doubt are free again after BOOKED_MS."""

    def __init__(self, store: Store, *, edit_lock_ms: int = 0) -> None:
        self._store, self._edit_lock_ms = store, edit_lock_ms
        self._redis = store.connections.commands
        self._turns = WeakValueDictionary[Quota, asyncio.Lock]()

    def arm(self, armings: Sequence[Arming], quota: Quota | None, turn: Turn | None = None) -> Awaitable[list[Reply]]:
        """As `Store.arm`, without a quota when it is their `turn`, with two more codes: `full` if there is no place,
        `prefixes` if the prefix would be one too many. The bound on prefixes is checked before arming, so simultaneous
        callers may each pass it by what they add."""
        if quota is None:
            arm = partial(self._store.arm, armings, edit_lock_ms=self._edit_lock_ms)
            return arm() if turn is None else turn.then(arm)
        return self._arm_within(quota, armings)

    async def _arm_within(self, quota: Quota, armings: Sequence[Arming]) -> list[Reply]:
        answers: dict[int, Reply] = {}
        async with self._turn(quota):
            for _ in range(ROUNDS):
                left = [place for place in range(len(armings)) if answers.get(place, _NO_PLACE).code == "full"]
                came, room = await self._arm([armings[place] for place in left], quota)
                answers |= dict(zip(left, came, strict=True))
                if room == 0 or not any(answer.code == "full" for answer in came):
                    break
        return [answers[place] for place in range(len(armings))]

    async def _arm(self, armings: Sequence[Arming], quota: Quota) -> tuple[list[Reply], int]:
        """One round; also returns how many places there were."""
        async with self._booked(len(armings), quota) as (room, known):
            allowed = _within(armings, known, quota)
            some = [arming for arming in armings if arming.prefix in allowed]
            answers = iter(await self._store.arm(some, edit_lock_ms=self._edit_lock_ms, room=room))
        return [next(answers) if arming.prefix in allowed else _ONE_TOO_MANY for arming in armings], room

    async def rearm(
        self,
        prefix: str,
        timer_id: str,
        quota: Quota | None,
        *,
        cause: str,
        version: int | None = None,
        life: str = "",
    ) -> Reply:
        """As `Store.rearm`, with one more code: `full` if there is no place."""
        rearm = partial(self._store.rearm, prefix, timer_id, cause=cause, version=version, life=life)
        if quota is None or quota.most is None:  # its prefix has timers already
            return await rearm()
        async with self._turn(quota), self._booked(1, quota) as (room, _):
            return await rearm(full=room == 0)

    def _turn(self, quota: Quota) -> asyncio.Lock:
        """What callers of one quota wait for. Keys come and go, so it is kept only while somebody has it."""
        return self._turns.setdefault(quota, asyncio.Lock())

    @asynccontextmanager
    async def _booked(self, wanted: int, quota: Quota) -> AsyncIterator[tuple[int, set[str]]]:
        """Book places, and end the booking when they are taken. Yields the room, and the prefixes with timers. While
        earlier bookings could take what this one wants, it waits for them."""
        patterns, booking, until = " ".join(quota.prefixes), b"", time.monotonic() + TURN_SECONDS
        while True:
            booking, ahead = await self._store.run("book", keys.ACCESS_ROOT, [booking, BOOKED_MS, wanted, patterns])
            scheduled, known = await self._counted(quota)
            room = wanted if quota.most is None else min(max(quota.most - scheduled - ahead, 0), wanted)
            if room == wanted or ahead == 0 or time.monotonic() > until:
                break
            await asyncio.sleep(LOOK_SECONDS)
        yield room, known
        with reachable():
            await self._redis.zrem(f"{keys.ACCESS_ROOT}bookings", booking)

    async def _counted(self, quota: Quota) -> tuple[int, set[str]]:
        """How many timers are scheduled or run under the quota's prefixes, and which prefixes have timers at all."""
        patterns = [name for name in quota.prefixes if name.endswith("*")]
        known = await self._with_timers(patterns)
        letters = dict.fromkeys(known, _PENDING) | dict.fromkeys({*quota.prefixes}.difference(patterns), _ALL)
        prefixes, scheduled = sorted(letters), 0
        # A prefix's counts are read together, because a timer that starts leaves one of them for another.
        some = list(batched(prefixes, COUNT_BATCH))
        fields = [[f"{letter} {name}" for name in names for letter in letters[name]] for names in some]
        answers = await self._store.of_shards(
            lambda asked, root: [asked.hmget(f"{root}counts", of_some) for of_some in fields], []
        )
        for names, answer in zip(cycle(some), chain(*answers), strict=False):
            numbers = map(keys.number, answer)
            for name in names:
                of_prefix = list(islice(numbers, len(letters[name])))
                scheduled += sum(of_prefix[: len(_PENDING)])
                if any(of_prefix):
                    known.add(name)
        return scheduled, known

    async def _with_timers(self, patterns: Sequence[str]) -> set[str]:
        """The prefixes that have timers and match one of the patterns. Looks at no others."""
        found = set[str]()
        sources = product(range(self._store.shards), (pattern[:-1] for pattern in patterns))
        places = {(shard, beginning): b"[" + beginning.encode() for shard, beginning in sources}

        def ask(asked: Any) -> None:
            for (shard, beginning), place in places.items():
                index, end = f"{keys.root(shard)}prefixes", f"({beginning}{keys.WHOLE}"
                asked.zscore(index, keys.WHOLE).zrange(index, place, end, bylex=True, offset=0, num=COUNT_BATCH)

        while places:
            answers = await read(self._redis, ask, None, [])
            for source, (whole, names) in zip(list(places), grouped(answers, 2), strict=True):
                found.update(keys.text(name) for name in names)
                if whole is None:
                    await index_prefixes(self._store, source[0])
                elif len(names) == COUNT_BATCH:
                    places[source] = b"(" + names[-1]
                else:
                    del places[source]
        return found


_PENDING: Final = "sr"
_ALL: Final = "srcfux"
"""Letters of a prefix's counts: of timers that are scheduled or run, and of all."""

_NO_PLACE: Final = Reply("full", None)
_ONE_TOO_MANY: Final = Reply("prefixes", None)


def _within(armings: Sequence[Arming], known: set[str], quota: Quota) -> set[str]:
    """The prefixes that have timers, and those of these timers that may still be added."""
    new = [prefix for prefix in dict.fromkeys(arming.prefix for arming in armings) if prefix not in known]
    return known | set(new[: max(quota.most_prefixes - len(known), 0)])
