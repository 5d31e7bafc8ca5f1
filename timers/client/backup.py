"""Owns the export of a db as lines of JSON, and its import into another.

The first line is the header, the last the footer with the numbers of the others, so a file that was cut is noticed. In
between are API keys, declarations and pauses, and after them the timers: a prefix is paused before its timers come.
A timer's line has its whole record. Its numbers and texts are those of the record (store/PROTOCOL.md).
"""

import base64
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar

from timers.core.durations import format_time, parse_time
from timers.core.fields import check_id, check_prefix, covers, decode, encode
from timers.core.model import IMPORTED, Status
from timers.core.shapes import HISTORY_LIMIT
from timers.errors import RedisRights, Refused, Unavailable
from timers.store import codec, keys
from timers.store.callers import Callers
from timers.store.codec import RecordParts, taken_apart
from timers.store.following import Stage, stages
from timers.store.membership import Declaration
from timers.store.queries import totals
from timers.store.restoring import (
    Restored,
    put_declaration,
    put_key,
    put_pause,
    read_declarations,
    read_pauses,
    read_records,
    restore,
)
from timers.store.scripts import reachable
from timers.store.servers.connections import Connections
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.ledger.database import Database

FORMAT: Final = 1
"""Of the export. A reader refuses a newer one."""

BATCH: Final = 1000
BATCH_BYTES: Final = 4 * 2**20
"""Timers put back in one round trip: five script calls, fewer timers if they are large."""

NUMBERS_END: Final = 2**53
"""No number of a record is that large."""

T = TypeVar("T")

IfExists = Literal["keep", "replace", "newer"]

_LETTERS: Final = {status.value: letter for status, letter in codec.LETTERS.items() if status is not Status.RETRYING}
_NUMBERS: Final = RecordParts._fields[1:8]
_MOVED: Final = ("first_due", "slot", "anchor")
"""Times in the progress, which are moved with the due time."""
_COUNTED: Final = ("keys", "declarations", "pauses", "timers")
"""What the footer counts, and an import compares."""
_KINDS: Final[Mapping[type, str]] = {dict: "a JSON object", list: "a list", str: "a text", int: "a whole number"}
_ENTRY: Final = re.compile(r"\d{1,13} [a-z] \d+ \S+ \S+ \S+ \S[^\x00-\x1f]*")
_KEY_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")


class ExportPage(NamedTuple):
    """Some lines of an export; how many timers have been looked at, and how many written, so far; and the names of
    those of this page that cannot be read."""

    lines: Sequence[str]
    seen: int = 0
    written: int = 0
    unreadable: Sequence[str] = ()


async def number_of_timers(store: Store) -> int:
    """About how many timers an export has to look at, by the counts."""
    return sum(n for status, n in (await totals(store)).items() if status is not Status.RETRYING)


async def export(store: Store, *, prefix: str | None = None, since_ms: int | None = None) -> AsyncIterator[ExportPage]:
    """The lines of an export: of all timers with their keys, declarations and pauses, or of the prefixes that `prefix`
    stands for, without keys. With `since_ms` only timers that have changed since. Raises Unavailable; then there is no
    footer."""
    for node in store.connections.nodes:
        await _check_in_sync(node)
    wanted = "*" if prefix is None else prefix
    header = {
        "type": "header",
        "format": FORMAT,
        "service": version_of("redis-timers"),
        "time": format_time(await store.now_ms()),
        "epoch": store.identity.epoch,
        "shards": store.shards,
        "prefix": prefix,
        "since": since_ms and format_time(since_ms),
        "timers": await number_of_timers(store),
    }
    yield ExportPage([encode(header)])
    before = await stages(store, range(store.shards))
    rest = await _kept_lines(store, wanted)
    yield ExportPage([encode(line) for line in rest])
    numbers, seen = Counter(f"{line['type']}s" for line in rest), 0
    async for records in read_records(store, "*" if prefix is None else f"{prefix}:*"):
        lines, unreadable = [], []
        for member, raw in records:
            try:
                line = line_of(member, raw, since_ms)
            except ValueError:
                unreadable.append(member)
                continue
            if line is not None:
                lines.append(line)
        seen += len(records)
        numbers.update(timers=len(lines), unreadable=len(unreadable))
        yield ExportPage(lines, seen, numbers["timers"], unreadable)
    after = await stages(store, range(store.shards))
    if not all(_is_same(stage, after[shard]) for shard, stage in before.items()):
        raise Unavailable("Redis was restarted, lost data or moved shards during the export: repeat it")
    footer = {"type": "footer", **{name: numbers[name] for name in (*_COUNTED, "unreadable")}}
    yield ExportPage([encode(footer)], seen, numbers["timers"])


async def _check_in_sync(node: Connections) -> None:
    """Raise Unavailable for a replica that has lost its master, or has not yet got its data: it may lack timers."""
    try:
        with reachable(alone=True):
            said: Mapping[str, Any] = await node.commands.info("replication")
    except RedisRights:
        return
    if said.get("master_link_status", "up") != "up":
        master = f"{said['master_host']}:{said['master_port']}"
        raise Unavailable(
            f"{node.address} is a replica that is not in sync with its master {master}, and may lack timers: export "
            "from the master, or when they are in sync"
        )


def _is_same(before: Stage, after: Stage) -> bool:
    """Whether a shard still has what it had; a scan would not say what it has missed. Its first timer may have come, or
    a newer format."""
    return before.server == after.server and after.carried.startswith(before.carried)


async def _kept_lines(store: Store, wanted: str) -> Sequence[Mapping[str, Any]]:
    entries = await Callers(store).entries() if wanted == "*" else {}
    declared, pauses = await read_declarations(store), await read_pauses(store)
    return [
        *({"type": "key", "id": key_id, "entry": entry} for key_id, entry in entries.items()),
        *(
            {"type": "declaration", "prefix": prefix, "declared_ms": said.at_ms, "pod": said.pod}
            for prefix, said in declared.items()
            if covers(wanted, prefix)
        ),
        *(
            {"type": "pause", "prefix": prefix, "since_ms": since_ms}
            for prefix, since_ms in pauses.items()
            if covers(wanted, prefix)
        ),
    ]


def line_of(member: str, raw: bytes, since_ms: int | None = None) -> str | None:
    """The line of a record; None if it has not changed since. Raises ValueError if it cannot be read."""
    parts, (prefix, timer_id) = taken_apart(raw), keys.identity_of(member)
    check_prefix(prefix)
    check_id(timer_id)
    if since_ms is not None and _changed_ms(parts) < since_ms:
        return None
    line: dict[str, Any] = {"type": "timer", "prefix": prefix, "id": timer_id}
    line["status"] = codec.STATUSES[parts.status].value
    line |= {name: getattr(parts, name) for name in _NUMBERS}
    try:
        whole = line | _body(parts)
        if _parts(whole) == parts._replace(status=parts.status.replace("w", "s")):
            return encode(whole)
    except ValueError:
        pass  # it has what no JSON gives back as it is
    return encode(line | {"record": base64.b64encode(raw).decode()})


def _body(parts: RecordParts) -> dict[str, Any]:
    """What follows the head, as JSON. Raises ValueError if the same record could not be made of it again."""
    body = {"spec": decode(parts.spec), "history": [entry.decode() for entry in parts.history]}
    return body | {"progress": decode(parts.progress)} if parts.progress else body


def _changed_ms(parts: RecordParts) -> int:
    at = parts.history[-1].partition(b" ")[0] if parts.history else b""
    return int(at) if keys.is_number(at, keys.TIME_DIGITS) else parts.created_ms


_SAID: Final = {
    "unreadable": "its record cannot be read",
    "newer": "the timer that is there has a record of a newer format",
    "rights": "the Redis user may not touch the timer's trigger",
}
"""What a code means that leaves a timer out."""


class Import:
    """The import of one export, and what it did, or would do. Call `take` for each line after the header, then `end`.
    Raises Unavailable: an import that is repeated goes on where this one came to."""

    def __init__(
        self,
        store: Store,
        header: bytes | None,
        *,
        tell: Callable[[int, str], None],
        if_exists: IfExists = "newer",
        rebased_at_ms: int | None = None,
        dry_run: bool = False,
        ledger: "Database | None" = None,
    ) -> None:
        """`tell` is called with the number of each bad line, and what is wrong with it. With `rebased_at_ms`, due times
        are as far from it as they were from the export; an import that is repeated needs the same. Raises Refused if
        the header is none; it is empty if the file is, and None if it is too long."""
        self._ledger = None if dry_run else ledger
        self._store, self._tell, self._if_exists, self._dry_run = store, tell, if_exists, dry_run
        said = _header(header)
        exported_ms = parse_time(said["time"], "time")
        self.expected: int = said["timers"]
        """About how many timers there are."""
        self._moved_ms = 0 if rebased_at_ms is None else rebased_at_ms - exported_ms
        self._cause = f"{IMPORTED} the export of {format_time(exported_ms)}, epoch {said['epoch'] or '-'}"
        self._waiting: list[tuple[int, Restored]] = []
        self._bytes = 0
        self._number = 1
        self._footer: Mapping[str, Any] | None = None
        self.by_result = defaultdict[str, Counter[str]](Counter)
        """How many lines of each kind, and what became of them."""
        self.bad = 0
        self.trouble: str | None = None
        """What is wrong with the whole."""

    async def take(self, line: bytes | None) -> None:
        """Take the next line; None for one that is too long."""
        self._number += 1
        if line is not None and not line.strip():
            return
        try:
            await self._put(_object(line))
        except ValueError as error:
            self._refuse(self._number, str(error))
        if len(self._waiting) >= BATCH or self._bytes >= BATCH_BYTES:
            await self._put_timers()

    async def end(self) -> Self:
        """This import, once it is known what has become of all lines."""
        await self._put_timers()
        if self._footer is None:
            self.trouble = "the footer is missing, so the export was cut: what it had is imported, the rest is lost"
        else:
            numbers = {kind: found.total() for kind, found in self.by_result.items()}
            lost = [name for name in _COUNTED if numbers.get(name, 0) != self._footer.get(name)]
            if lost and not self.bad:
                self.trouble = f"there are other numbers of {', '.join(lost)} than the footer says"
        return self

    def to_json(self) -> dict[str, Any]:
        return {**{kind: dict(found) for kind, found in self.by_result.items()}, "bad_lines": self.bad}

    def _refuse(self, number: int, why: str) -> None:
        self.bad += 1
        self._tell(number, why)

    async def _put(self, line: Mapping[str, Any]) -> None:
        if self._footer is not None:
            raise ValueError("it comes after the footer")
        kind = line.get("type")
        how: dict[str, Any] = {"if_exists": self._if_exists, "dry_run": self._dry_run}
        if kind == "timer":
            record = record_of(line, self._moved_ms)
            self._waiting.append((self._number, record))
            self._bytes += len(record.record)
            return
        if kind == "footer":
            self._footer = line
            return
        if kind == "key":
            key_id, entry = _text(line, "id"), _text(line, "entry")
            if not _KEY_ID.fullmatch(key_id):
                raise ValueError("it has no id of a key")
            is_put = await put_key(self._store, key_id, entry, **how)
        elif kind == "declaration":
            said = Declaration(_number(line, "declared_ms"), _text(line, "pod"))
            is_put = await put_declaration(self._store, check_prefix(line.get("prefix")), said, dry_run=self._dry_run)
        elif kind == "pause":
            since_ms = None if line.get("since_ms") is None else _number(line, "since_ms")
            is_put = await put_pause(self._store, check_prefix(line.get("prefix")), since_ms, **how)
        else:
            raise ValueError(f"it has no known type: {str(kind)[:50]!r}")
        self.by_result[f"{kind}s"]["restored" if is_put else "kept"] += 1

    async def _put_timers(self) -> None:
        batch, self._waiting, self._bytes = self._waiting, [], 0
        if not batch:
            return
        if self._ledger is not None:
            from timers.ledger.many import execute  # noqa: PLC0415 (what it needs is an extra)
            from timers.ledger.rows import FORGET_REMOVED  # noqa: PLC0415

            # A removal is newer than what was exported before it, so the ledger would have the timers removed again.
            names = [(record.prefix, record.id) for _, record in batch]
            await self._ledger.do(partial(execute, statement=FORGET_REMOVED, rows=names))
        codes = await restore(
            self._store,
            [record for _, record in batch],
            if_exists=self._if_exists,
            cause=self._cause,
            dry_run=self._dry_run,
        )
        for (number, _), code in zip(batch, codes, strict=True):
            self.by_result["timers"][code] += 1
            if code in _SAID:
                self._refuse(number, _SAID[code])


def _header(line: bytes | None) -> Mapping[str, Any]:
    if line == b"":
        raise Refused("there is nothing to import: the file or what is piped in is empty")
    try:
        return _checked_header(_object(line))
    except ValueError as error:
        raise Refused(f"line 1 is not the header of an export: {error}") from None


def _checked_header(said: Mapping[str, Any]) -> Mapping[str, Any]:
    if said.get("type") != "header":
        raise ValueError("its type is another")
    if _number(said, "format") > FORMAT:
        written = f"format {said['format']}, by version {str(said.get('service'))[:50]}"
        raise Refused(f"the export has {written}; this version reads formats up to {FORMAT}")
    parse_time(_text(said, "time"), "time")
    _number(said, "timers")
    _text(said, "epoch")
    return said


def _object(line: bytes | None) -> Mapping[str, Any]:
    if line is None:
        raise ValueError("it is too long")
    return _value({"the line": decode(line)}, "the line", dict)


def _value(line: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = line.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name} is not {_KINDS[kind]}")  # noqa: TRY004 (what is wrong with a line)
    return value


def _text(line: Mapping[str, Any], name: str) -> str:
    return _value(line, name, str)


def _number(line: Mapping[str, Any], name: str) -> int:
    value = _value(line, name, int)
    if isinstance(value, bool) or not 0 <= value < NUMBERS_END:
        raise ValueError(f"{name} is not from 0 to 2^53")
    return value


def record_of(line: Mapping[str, Any], moved_ms: int = 0) -> Restored:
    """The record of a timer's line. One that ran is scheduled. Raises ValueError."""
    prefix, timer_id = check_prefix(line.get("prefix")), check_id(line.get("id"))
    parts = _parts(line)
    if parts.status == "r":
        parts = parts._replace(status="s")
    if moved_ms and parts.status in "sw":
        parts = _moved(parts, moved_ms)
    return Restored.of(prefix, timer_id, parts)


def _parts(line: Mapping[str, Any]) -> RecordParts:
    if "record" in line:
        return taken_apart(base64.b64decode(_text(line, "record"), validate=True))
    status, numbers = _LETTERS.get(str(line.get("status"))), {name: _number(line, name) for name in _NUMBERS}
    if status is None:
        raise ValueError("it has no known status")
    spec, history = encode(_value(line, "spec", dict)).encode(), _value(line, "history", list)
    progress = encode(_value(line, "progress", dict)).encode() if "progress" in line else b""
    if len(history) >= HISTORY_LIMIT or not all(isinstance(each, str) and _ENTRY.fullmatch(each) for each in history):
        raise ValueError("history is not one")
    entries = tuple(entry.encode() for entry in history)
    parts = RecordParts(status, **numbers, spec=spec, progress=progress, history=entries)
    if max(parts.created_ms, parts.due_ms) >= codec.LATEST_MS or not (parts.version and parts.occurrence):
        raise ValueError("a number in it is impossible")
    return parts


def _moved(parts: RecordParts, by_ms: int) -> RecordParts:
    """The same timer, with all that is planned moved."""
    progress = parts.progress
    with suppress(ValueError, AttributeError, TypeError):  # what cannot be read stays
        told = decode(progress)
        progress = encode({name: value + by_ms if name in _MOVED else value for name, value in told.items()}).encode()
    due_ms = min(max(parts.due_ms + by_ms, 0), codec.LATEST_MS - 1)
    return parts._replace(due_ms=due_ms, progress=progress)
