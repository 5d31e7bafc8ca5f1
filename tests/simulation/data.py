"""Owns a small Redis in memory: keys, types, expiry and the commands that the service uses, without a network.

It exists because a fake server takes a millisecond a script, and a thousand worlds need a hundred thousand of them. A
command is given as bytes and answers as RESP 2 does: int, bytes, None, list or a `Refused`. `test_data.py` compares it
with a real server.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

Reply = Any
"""int, bytes, None, list of replies, or Refused."""


class Refused(Exception):
    """An error as a server words it."""


WRONG_TYPE: Final = Refused("WRONGTYPE Operation against a key holding the wrong kind of value")
_INFINITY: Final = float("inf")


class SortedSet:
    """Members by score; members of one score by name."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.order)

    def put(self, member: bytes, score: float) -> bool:
        """Whether it is new."""
        old = self.scores.get(member)
        if old == score:
            return False
        if old is not None:
            del self.order[bisect_left(self.order, (old, member))]
        self.scores[member] = score
        insort(self.order, (score, member))
        return old is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def within(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        """Those between two scores as ZRANGEBYSCORE writes them."""
        return self.order[self._place(low, after=low[:1] == b"(") : self._place(high, after=high[:1] != b"(")]

    def _place(self, bound: bytes, *, after: bool) -> int:
        score = float(bound.removeprefix(b"("))
        return bisect_right(self.order, score, key=_score) if after else bisect_left(self.order, score, key=_score)


class Hash(dict[bytes, bytes]):
    """A hash, whose fields keep the order in which they came."""


class Set(dict[bytes, None]):
    """A set, whose members keep the order in which they came."""


class Stream(list[tuple[bytes, list[bytes]]]):
    """Entries with their ids."""


def _score(entry: tuple[float, bytes]) -> float:
    return entry[0]


def number(value: float) -> bytes:
    """A score as the server writes it."""
    return b"%d" % value if value.is_integer() else b"inf" if value == _INFINITY else b"%.17g" % value


def _pairs(entries: Iterable[tuple[float, bytes]], *, scores: bool) -> list[bytes]:
    if not scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, number(score))]


class Keys:
    """One db. `now_us` asks its clock, in µs; `published` is told of each message and answers how many hear it.

    As in Redis, an expired key is announced when something finds it, and it is expired from the millisecond after its
    end on."""

    def __init__(self, now_us: Callable[[], int], published: Callable[[bytes, bytes], int]) -> None:
        self._now_us, self._published = now_us, published
        self._values: dict[bytes, Any] = {}
        self.ends: dict[bytes, int] = {}
        """By key with a TTL: the ms in which it ends."""
        self.process, self.uptime_seconds = "simulated", 100
        """What tells this server's process from others, and how long it has run."""
        self._entries = 0
        self._commands: dict[bytes, Callable[..., Reply]] = {
            name.removeprefix("do_").upper().replace("_", " ").encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def run(self, name: bytes, *arguments: bytes) -> Reply:
        """Run one command. Returns its error rather than raising it."""
        command = self._commands.get(name) or self._commands.get(name.upper())
        if command is None:
            return Refused(f"ERR unknown command '{name.decode()}'")
        try:
            return command(*arguments)
        except Refused as refused:
            return refused

    @property
    def now_ms(self) -> int:
        return self._now_us() // 1000

    def expire(self, key: bytes) -> None:
        """Delete a key if its time is over, and announce it."""
        if key in self.ends and self.now_ms > self.ends[key]:
            self._drop(key)
            self._published(b"__keyevent@0__:expired", key)

    def wipe(self) -> None:
        """Lose everything."""
        self._values.clear()
        self.ends.clear()

    def peek(self, key: bytes) -> Any:
        """The value as it lies there; None for none. Expires nothing."""
        return self._values.get(key)

    def _drop(self, key: bytes) -> bool:
        self.ends.pop(key, None)
        return self._values.pop(key, None) is not None

    def _find(self, key: bytes, kind: type) -> Any:
        if key in self.ends:
            self.expire(key)
        value = self._values.get(key)
        if value is not None and type(value) is not kind:
            raise WRONG_TYPE
        return value

    def _make(self, key: bytes, kind: type) -> Any:
        found = self._find(key, kind)
        if found is None:
            found = self._values[key] = kind()
        return found

    def _without_empty(self, key: bytes, value: Any) -> None:
        if not value:
            self._drop(key)

    # Keys.

    def do_time(self) -> Reply:
        seconds, micros = divmod(self._now_us(), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    def do_info(self, *_sections: bytes) -> Reply:
        said = f"# Server\r\nrun_id:{self.process}\r\nuptime_in_seconds:{self.uptime_seconds}\r\n"
        return said.encode()

    def do_config_get(self, *_names: bytes) -> Reply:
        return [b"notify-keyspace-events", b"xE"]

    def do_publish(self, channel: bytes, message: bytes) -> Reply:
        return self._published(channel, message)

    def do_exists(self, *keys: bytes) -> Reply:
        for key in keys:
            self.expire(key)
        return sum(key in self._values for key in keys)

    def do_del(self, *keys: bytes) -> Reply:
        for key in keys:
            self.expire(key)
        return sum(self._drop(key) for key in keys)

    def do_rename(self, key: bytes, new: bytes) -> Reply:
        value, end = self._values.get(key), self.ends.get(key)
        self._drop(key)
        self._drop(new)
        self._values[new] = value
        if end is not None:
            self.ends[new] = end
        return b"OK"

    def do_pexpire(self, key: bytes, ms: bytes) -> Reply:
        self.expire(key)
        if key not in self._values:
            return 0
        self.ends[key] = self.now_ms + int(ms)
        return 1

    def do_pexpiretime(self, key: bytes) -> Reply:
        self.expire(key)
        return self.ends.get(key, -1 if key in self._values else -2)

    def do_pttl(self, key: bytes) -> Reply:
        end = self.do_pexpiretime(key)
        return end if end < 0 else end - self.now_ms

    def do_scan(self, _cursor: bytes, *options: bytes) -> Reply:
        for key in list(self.ends):
            self.expire(key)
        pattern = options[options.index(b"MATCH") + 1].decode() if b"MATCH" in options else "*"
        pattern = pattern.replace("[^", "[!")  # as Python writes it
        return [b"0", [key for key in self._values if fnmatchcase(key.decode(), pattern)]]

    # Strings.

    def do_get(self, key: bytes) -> Reply:
        return self._find(key, bytes)

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        self.expire(key)
        if b"NX" in options and key in self._values:
            return None
        self._drop(key)
        self._values[key] = value
        if b"PX" in options:
            self.ends[key] = self.now_ms + int(options[options.index(b"PX") + 1])
        elif b"PXAT" in options:
            self.ends[key] = int(options[options.index(b"PXAT") + 1])
        return b"OK"

    def do_getdel(self, key: bytes) -> Reply:
        value = self.do_get(key)
        self._drop(key)
        return value

    def do_incrby(self, key: bytes, by: bytes) -> Reply:
        value = int(self._find(key, bytes) or 0) + int(by)
        self._values[key] = b"%d" % value
        return value

    # Hashes.

    def do_hget(self, key: bytes, field: bytes) -> Reply:
        found = self._find(key, Hash)
        return None if found is None else found.get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Reply:
        return [self.do_hget(key, field) for field in fields]

    def do_hgetall(self, key: bytes) -> Reply:
        found: Hash | None = self._find(key, Hash)
        return [part for field in (found or {}).items() for part in field]

    def do_hkeys(self, key: bytes) -> Reply:
        return list(self._find(key, Hash) or ())

    def do_hlen(self, key: bytes) -> Reply:
        return len(self._find(key, Hash) or ())

    def do_hexists(self, key: bytes, field: bytes) -> Reply:
        return int(field in (self._find(key, Hash) or ()))

    def do_hset(self, key: bytes, *parts: bytes) -> Reply:
        found = self._make(key, Hash)
        before = len(found)
        found.update(zip(parts[::2], parts[1::2], strict=True))
        return len(found) - before

    def do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> Reply:
        return 0 if self.do_hexists(key, field) else self.do_hset(key, field, value)

    def do_hincrby(self, key: bytes, field: bytes, by: bytes) -> Reply:
        value = int(self.do_hget(key, field) or 0) + int(by)
        self.do_hset(key, field, b"%d" % value)
        return value

    def do_hdel(self, key: bytes, *fields: bytes) -> Reply:
        found = self._find(key, Hash)
        if found is None:
            return 0
        gone = sum(found.pop(field, None) is not None for field in fields)
        self._without_empty(key, found)
        return gone

    def do_hscan(self, key: bytes, _cursor: bytes, *_options: bytes) -> Reply:
        return [b"0", self.do_hgetall(key)]

    # Sets.

    def do_sadd(self, key: bytes, *members: bytes) -> Reply:
        found = self._make(key, Set)
        before = len(found)
        found.update(dict.fromkeys(members))
        return len(found) - before

    def do_srem(self, key: bytes, *members: bytes) -> Reply:
        found = self._find(key, Set)
        if found is None:
            return 0
        before = len(found)
        for member in members:
            found.pop(member, None)
        gone = before - len(found)
        self._without_empty(key, found)
        return gone

    def do_sismember(self, key: bytes, member: bytes) -> Reply:
        return int(member in (self._find(key, Set) or ()))

    def do_smembers(self, key: bytes) -> Reply:
        return list(self._find(key, Set) or ())

    # Sorted sets.

    def do_zadd(self, key: bytes, *given: bytes) -> Reply:
        lowers = given[0] == b"LT"
        parts = given[1:] if lowers else given
        found = self._make(key, SortedSet)
        added = 0
        for score, member in zip(map(float, parts[::2]), parts[1::2], strict=True):
            if not lowers or score < found.scores.get(member, _INFINITY):
                added += found.put(member, score)
        return added

    def do_zrem(self, key: bytes, *members: bytes) -> Reply:
        found = self._find(key, SortedSet)
        if found is None:
            return 0
        gone = sum(found.remove(member) for member in members)
        self._without_empty(key, found)
        return gone

    def do_zscore(self, key: bytes, member: bytes) -> Reply:
        found = self._find(key, SortedSet)
        score = None if found is None else found.scores.get(member)
        return None if score is None else number(score)

    def do_zmscore(self, key: bytes, *members: bytes) -> Reply:
        return [self.do_zscore(key, member) for member in members]

    def do_zcard(self, key: bytes) -> Reply:
        return len(self._find(key, SortedSet) or ())

    def do_zcount(self, key: bytes, low: bytes, high: bytes) -> Reply:
        found = self._find(key, SortedSet)
        return 0 if found is None else len(found.within(low, high))

    def do_zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        if found is None:
            return []
        order = found.order[::-1] if b"REV" in options else found.order
        first, last = (int(place) + (len(order) if int(place) < 0 else 0) for place in (start, stop))
        return _pairs(order[max(first, 0) : last + 1], scores=b"WITHSCORES" in options)

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        return [] if found is None else _limited(found.within(low, high), options)

    def do_zrevrangebyscore(self, key: bytes, high: bytes, low: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        return [] if found is None else _limited(found.within(low, high)[::-1], options)

    def do_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> Reply:
        found = self._find(key, SortedSet)
        return 0 if found is None else self.do_zrem(key, *(member for _, member in found.within(low, high)))

    def do_zscan(self, key: bytes, _cursor: bytes, *_options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        return [b"0", [] if found is None else _pairs(found.order, scores=True)]

    # Streams.

    def do_xadd(self, key: bytes, _id: bytes, *fields: bytes) -> Reply:
        self._entries += 1
        name = b"%d-%d" % (self.now_ms, self._entries)
        self._make(key, Stream).append((name, list(fields)))
        return name

    def do_xlen(self, key: bytes) -> Reply:
        return len(self._find(key, Stream) or ())

    def do_xrange(self, key: bytes, _low: bytes, _high: bytes, *options: bytes) -> Reply:
        most = int(options[1]) if options else None
        return [list(entry) for entry in (self._find(key, Stream) or [])[:most]]

    def do_xdel(self, key: bytes, *names: bytes) -> Reply:
        found = self._find(key, Stream)
        if found is None:
            return 0
        before = len(found)
        found[:] = [entry for entry in found if entry[0] not in names]
        return before - len(found)


def _limited(entries: Sequence[tuple[float, bytes]], options: Sequence[bytes]) -> Reply:
    if b"LIMIT" in options:
        place = options.index(b"LIMIT")
        start, most = int(options[place + 1]), int(options[place + 2])
        entries = entries[start : start + most] if most >= 0 else entries[start:]
    return _pairs(entries, scores=b"WITHSCORES" in options)
