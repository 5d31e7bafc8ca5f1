"""Owns the calls about bare keys: reading the keys themselves and reporting them to the shards."""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError

from timers.core.durations import MAX_TIME_MS
from timers.core.fields import encode
from timers.core.spec import PAYLOAD_LIMIT_BYTES, encode_payload
from timers.errors import InvalidInput
from timers.logs import get_logger
from timers.store import keys, scripts
from timers.store.store import Identity, Store

SCAN_COUNT: Final = 1000
"""Keys that one SCAN call examines: about a millisecond of the server's time."""

PAGE_SIZE: Final = 500

GONE, NO_TTL = -2, -1
"""The deadlines of a missing key and of a key that never expires."""

ENCODED_LIMIT_BYTES: Final = 6 * PAYLOAD_LIMIT_BYTES + 2
"""How long the largest value may be as JSON, where a byte may be written as `\\u0000`, and all of it in quotes."""

WARNED_LIMIT: Final = 1000
"""Too large values that are remembered, so that each is told once."""

_log = get_logger("timers.bare-scanner")

Page = tuple[int, list[Identity]]
"""The cursor to continue with, and what was found. A cursor of 0 begins and ends."""


class Heard(NamedTuple):
    """Which expiry of a key a pod has heard: after the canary that expired at `since_ms`, by the server's time, the one
    of this number. All pods that heard this canary agree. A pod that has heard none since it subscribed counts from
    there, `alone`: this is its name then."""

    since_ms: int
    alone: str
    number: int
    again: bool = False
    """Whether a shard was told before, and answered that the timer runs."""

    @property
    def since(self) -> str:
        """What it is counted from, as scripts say it."""
        return f"{self.since_ms}@{self.alone}"


class KeyState(NamedTuple):
    """A key as a pod found it: the deadline that the shard knew before (None: the key is not known), the one now, and
    the value if it matters and is a string; and which expiry the pod had heard, if that is why it looked."""

    known_ms: int | None
    deadline_ms: int
    value: bytes | None = None
    heard: Heard | None = None


def spec_of(value: bytes) -> dict[str, Any]:
    """The spec of a key's timer. A JSON value is parsed, anything else becomes a string (undecodable bytes as U+FFFD).
    A value above the size limit of a payload, as it was SET, is dropped, as if the key had expired unseen."""
    for read in (json.loads, str) if len(value) <= PAYLOAD_LIMIT_BYTES else ():
        with contextlib.suppress(ValueError, RecursionError, InvalidInput):
            payload = read(value.decode(errors="replace"))
            encode_payload(payload, limit_bytes=ENCODED_LIMIT_BYTES)
            return {} if payload is None else {"payload": payload}
    return {}


class BareKeys:
    """The bare keys of one db. Methods raise Unavailable while Redis is down."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._redis = store.connections.commands
        self._denied = False

    async def scan(self, cursor: int) -> Page:
        """The next keys of the form `<prefix>:<id>`; none if the Redis user may not SCAN."""
        with scripts.reachable():
            try:
                cursor, names = await self._redis.scan(cursor, match=keys.BARE_MATCH, count=SCAN_COUNT)
            except NoPermissionError as error:
                if not self._denied:
                    _log.warning("bare keys are not adopted; only their events fire them", reason=str(error))
                self._denied = True
                return 0, []
        found = [keys.BARE.fullmatch(name) for name in names if isinstance(name, bytes)]
        return cursor, [(bare[1].decode(), bare[2].decode()) for bare in found if bare]

    async def scan_known(self, shard: int, cursor: int) -> Page:
        """The next keys that a shard knows."""
        ((cursor, found),) = await scripts.read(
            self._redis, lambda asked: asked.zscan(_index(shard), cursor, count=PAGE_SIZE), (0, [])
        )
        return cursor, [keys.identity_of(keys.text(member)) for member, _ in found if isinstance(member, bytes)]

    async def shards_with_keys(self) -> range:
        """The shards; none if no shard knows any key."""
        shards = range(self.store.shards)
        with scripts.reachable():
            return shards if await self._redis.exists(*map(_index, shards)) else range(0)

    async def known_until(self, until_ms: int) -> dict[Identity, int]:
        """Known keys with a deadline up to `until_ms`, with their deadlines: of each shard the first PAGE_SIZE, and up
        to the end of a page. Leaves out prefixes that the Redis user was refused a moment ago: nobody can deal with
        their keys, and a page full of them must not hold up the others."""
        known, number, waits = dict[Identity, int](), Counter[int](), self.store.refusals.waits
        shards: Sequence[int] = await self.shards_with_keys()
        start = 0
        while shards:
            pages = await self._pages(shards, until_ms, start)
            for shard, page in pages.items():
                some = {identity: ms for identity, ms in page.items() if not waits(identity[0])}
                number[shard] += len(some)
                known |= some
            shards = [shard for shard, page in pages.items() if len(page) == PAGE_SIZE and number[shard] < PAGE_SIZE]
            start += PAGE_SIZE
        return known

    async def _pages(self, shards: Sequence[int], until_ms: int, start: int) -> dict[int, dict[Identity, int]]:
        """By shard, known keys with a deadline up to `until_ms`, from a place in their order on."""
        answers = await self.store.of_shards(
            lambda asked, root: asked.zrangebyscore(f"{root}bare", 0, until_ms, start, PAGE_SIZE, withscores=True),
            [],
            shards=shards,
        )
        return {
            shard: {keys.identity_of(keys.text(member)): int(ms) for member, ms in page}
            for shard, (page,) in zip(shards, answers, strict=True)
        }

    async def meanwhile(self) -> list[Identity]:
        """The keys that were found during a run of their timer and are remembered until it ends."""
        names = [f"{keys.root(shard)}meanwhile" for shard in range(self.store.shards)]
        with scripts.reachable():
            if not await self._redis.exists(*names):
                return []
        found = await scripts.read(self._redis, lambda asked: [asked.hkeys(name) for name in names], [])
        return [keys.identity_of(keys.text(member)) for some in found for member in some]

    async def inspect(self, identities: Collection[Identity], lead_ms: int) -> tuple[dict[Identity, KeyState], int]:
        """Read keys, which makes Redis delete and announce those that are due. Reads the values of keys whose
        deadline is new to the shard or within `lead_ms`. Leaves out keys that the Redis user may not read. Also
        returns the time of the keys' servers afterwards, the latest of them: better a key counts as expired."""
        if not identities:
            return {}, 0
        by_shard = self.store.by_shard(identities)
        names = [":".join(identity) for identity in identities]
        by_node: defaultdict[object, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            by_node[self.store.connections.node_of(name)].append(place)
        with scripts.reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for shard, places in by_shard.items():
                    asked.zmscore(_index(shard), [names[place] for place in places])
                for places in by_node.values():
                    for place in places:
                        asked.pexpiretime(names[place])
                    asked.time()
                answers = iter(await asked.execute(raise_on_error=False))
            scores = [scripts.or_empty(next(answers), [None] * len(places)) for places in by_shard.values()]
            deadlines, now_ms = dict[int, Any](), 0
            for places in by_node.values():
                deadlines |= {place: next(answers) for place in places}
                seconds, micros = scripts.or_empty(next(answers), (0, 0))
                now_ms = max(now_ms, seconds * 1000 + micros // 1000)
            known = dict(zip(chain(*by_shard.values()), chain(*scores), strict=True))
            states = {
                identity: KeyState(
                    int(score) if 0 <= (score := known[place] or -1) < 2**53 else None, _deadline(deadlines[place])
                )
                for place, identity in enumerate(identities)
                if self._allowed(names[place], deadlines[place])
            }
        return await self._with_values(states, now_ms + lead_ms), now_ms

    def _allowed(self, name: str, answer: object) -> bool:
        """Whether the user may read the key. One prefix that it lacks must not hold up the others."""
        if isinstance(answer, NoPermissionError):
            self.store.refusals.denied(f"PEXPIRETIME {name}")
            return False
        if isinstance(answer, Exception):
            raise answer
        return True

    async def _with_values(self, states: dict[Identity, KeyState], until_ms: int) -> dict[Identity, KeyState]:
        """Read values, each between two equal deadlines: the value of a key that is SET meanwhile has another one."""
        wanted = [i for i, (known_ms, ms, *_) in states.items() if ms >= 0 and (ms != known_ms or ms <= until_ms)]
        while wanted:
            answers = await scripts.read(self._redis, partial(_ask_values, wanted), None, GONE)
            moved = []
            for identity, value, answer in zip(wanted, answers[::2], map(_deadline, answers[1::2]), strict=True):
                if answer == states[identity].deadline_ms:
                    states[identity] = states[identity]._replace(value=value)
                elif answer != GONE:
                    states[identity] = states[identity]._replace(deadline_ms=answer)
                    moved += [identity] if answer >= 0 else []
            wanted = moved
        return states

    async def report(self, what: str, states: Mapping[Identity, KeyState]) -> dict[Identity, str]:
        """Report keys to their shards. `adopted` copies keys into records; codes: adopted, moved, running,
        stale. Of a known key: `there`, `ending` (there until its deadline), `expired`, `deleted` or `lost-ttl`; codes:
        waits, due, cancelled, spare, forgotten, stale."""
        reports: dict[Identity, tuple[object, ...]] = {}
        for identity, (known_ms, deadline_ms, value, heard) in states.items():
            if value is not None and len(value) > PAYLOAD_LIMIT_BYTES:
                _warn(":".join(identity), deadline_ms, len(value))
            spec = "" if value is None else encode(spec_of(value))
            found = [deadline_ms if what == "adopted" else what, *((heard.number, heard.since) if heard else ())]
            reports[identity] = (known_ms or "", "/".join(map(str, found)), spec)
        return await self._run("adopt" if what == "adopted" else "resolve", reports)

    async def announce(self, heard: Mapping[Identity, Heard]) -> dict[Identity, str]:
        """Make the timers of expired keys due. Codes: due, known, running, look, refused."""
        said = {i: (one.number, "again" if one.again else "heard", one.since) for i, one in heard.items()}
        return await self._run("resolve", said)

    async def after_runs(self, gone: Mapping[Identity, bool]) -> dict[Identity, str]:
        """Adopt keys that were found during runs which have ended, and forget those that are gone before their
        deadline. Codes: adopted, running, forgotten, stale."""
        return await self._run("resolve", {i: (0, "gone" if is_gone else "left", "") for i, is_gone in gone.items()})

    async def take(self, deadlines: Mapping[Identity, int]) -> list[Identity]:
        """Delete keys that still have these deadlines. Returns the deleted keys."""
        replies = await self.store.run_all("bare/take", [(":".join(i), [ms]) for i, ms in deadlines.items()])
        return [identity for identity, (_, deleted) in zip(deadlines, replies, strict=True) if deleted]

    async def _run(self, script: str, reports: Mapping[Identity, tuple[object, ...]]) -> dict[Identity, str]:
        """Run a script with three words for each key. Returns the code for each."""
        lines = ["\n".join(map(str, (*identity, *what))) for identity, what in reports.items()]
        codes, _ = await self.store.run_lines(f"bare/{script}", list(reports), lines)
        return {identity: code.decode() for identity, (code,) in zip(reports, codes, strict=True)}


@lru_cache(WARNED_LIMIT)
def _warn(timer: str, _deadline_ms: int, size: int) -> None:
    """Tell once of a value that is too large: a key is read and reported several times."""
    _log.warning("a bare key's value is too large for a payload and was dropped", timer=timer, bytes=size)


def _deadline(answer: int) -> int:
    """What PEXPIRETIME says; a deadline that no timer can have is none."""
    return answer if answer <= MAX_TIME_MS else NO_TTL


def _ask_values(identities: Iterable[Identity], asked: Any) -> None:
    """Ask for the value of each key, and right after it for the deadline that the key has then."""
    for name in map(":".join, identities):
        asked.get(name)
        asked.pexpiretime(name)


def _index(shard: int) -> str:
    return f"{keys.root(shard)}bare"
