"""Owns searching for timers the way people do: the newest first, and why they failed."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timers.core.durations import format_time
from timers.core.model import Status, Timer
from timers.errors import InvalidInput
from timers.store import codec, keys
from timers.store.filters import Filter
from timers.store.listing import LOOKS_AT_LEAST, Page
from timers.store.queries import Queries
from timers.store.scripts import ScriptCall
from timers.store.store import Store

PROGRESS_BYTES: Final = 256 * 1024
"""Bytes of errors read from one queue at a time."""


_SCORE: Final = re.compile(r"(-?(inf|[0-9]{1,17}(\.[0-9]{1,17})?(e[+-][0-9]{1,3})?))?")


FAILING_MS: Final = 300_000
"""Timers that have failed and been tried again for so long will hardly recover by themselves."""

GROUPED: Final = 200
"""How many of the newest timers of a prefix and status are read to find the groups."""

NO_ERROR: Final = "no error recorded"
GROUP_LIMIT_CHARACTERS: Final = 160

LOOKED_AT_CHARACTERS: Final = 4 * GROUP_LIMIT_CHARACTERS

_VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b0[0-9a-z]{21}\b|\b(?=[a-f]*\d)[0-9a-f]++\b", re.IGNORECASE)
"""A UUID, an id that the service made, or a word of hex digits with a number in it. Callers choose the text, so it
takes linear time (`++`)."""


def error_group(error: Mapping[str, Any] | None) -> str:
    """What errors of one kind have in common: their type and reason, with `#` for each number or hash."""
    if not error:
        return NO_ERROR
    said = f"{error.get('type', '')}: {error.get('reason', '')}"[:LOOKED_AT_CHARACTERS]
    return _VARYING.sub("#", " ".join(said.split()))[:GROUP_LIMIT_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Group:
    """Timers of a prefix and status with the same error: how many of those looked at, and the newest."""

    status: Status
    error: str
    number: int
    newest_id: str
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a timer ended, or since when and why it is retrying, without its payload. `error` is its `last_error`."""

    id: str
    at_ms: int
    error: Mapping[str, Any]


async def newest_first(store: Store, wanted: Filter, *, limit: int, cursor: str | None = None) -> Page:
    """The timers of one prefix and one status (not running), the last due or ended first. Raises Unavailable,
    InvalidInput for a foreign cursor, and ValueError for a filter without one prefix and one status, for which there is
    no index."""
    prefix, statuses = wanted.only_prefix, wanted.status or ()
    if prefix is None or len(statuses) != 1 or Status.RUNNING in statuses:
        raise ValueError("sorting by newest needs one prefix and one status")
    wants = wanted.at(store.clock.now_ms()).test()
    place, items, looked = _read_place(cursor), list[Timer](), 0
    while looked < LOOKS_AT_LEAST:
        found = await _before(store, prefix, statuses[0], place, limit)
        for score, timer_id, timer in found:
            place, looked = (score, timer_id), looked + 1
            if timer is not None and wants(timer):
                items.append(timer)
            if len(items) == limit:
                return Page(items, json.dumps(place))
        if len(found) < limit:
            return Page(items, None)
    return Page(items, json.dumps(place))


async def _before(
    store: Store, prefix: str, status: Status, place: tuple[str, str], most: int
) -> list[tuple[str, str, Timer | None]]:
    """The next timers over all shards, the newest first."""
    index = "due" if status is Status.SCHEDULED else codec.LETTERS[status]
    arguments: list[str | int] = [index, prefix, *place, most]
    calls = [ScriptCall("newest", keys.root(shard), arguments) for shard in range(store.shards)]
    found: list[tuple[str, str, Timer | None]] = []
    for _, listed in await store.run_all(calls):
        for timer_id, score, raw in zip(listed[::3], listed[1::3], listed[2::3], strict=True):
            name = timer_id.decode()
            found.append((score.decode(), name, codec.readable(prefix, name, raw) if raw else None))
    return sorted(found, key=lambda each: (float(each[0]), each[1]), reverse=True)[:most]


async def endings(store: Store, prefix: str, status: Status, most: int) -> list[Ending]:
    """The timers that ended this way, or began to fail, last: in a bounded number of bytes. Raises Unavailable."""
    arguments: list[str | int] = [codec.LETTERS[status], prefix, most, PROGRESS_BYTES]
    calls = [ScriptCall("failures", keys.root(shard), arguments) for shard in range(store.shards)]
    found = [
        Ending(timer_id.decode(), _ms(at), _error(progress))
        for _, listed in await store.run_all(calls)
        for timer_id, at, progress in zip(listed[::3], listed[1::3], listed[2::3], strict=True)
    ]
    return sorted(found, key=lambda ending: ending.at_ms, reverse=True)[:most]


async def groups(store: Store, prefix: str, status: Status) -> tuple[list[Group], int]:
    """The newest timers of a prefix and status by their errors, the largest group first, and how many were looked at.
    Raises Unavailable."""
    found = await endings(store, prefix, status, GROUPED)
    names = [error_group(ending.error) for ending in found]
    newest = dict(zip(reversed(names), reversed(found), strict=True))
    return [
        Group(status, name, number, newest[name].id, newest[name].at_ms)
        for name, number in Counter(names).most_common()
    ], len(found)


async def keep_failing(store: Store, *, for_ms: int = FAILING_MS) -> dict[str, str]:
    """For each prefix with a timer that has failed for this long and is tried again: how many do, since when, and the
    commonest error. Only the prefixes with most. Raises Unavailable."""
    until_ms = store.clock.now_ms() - for_ms
    told: dict[str, str] = {}
    for prefix, number, since_ms in await Queries(store).retrying():
        if since_ms <= until_ms:
            found, _ = await groups(store, prefix, Status.RETRYING)
            told[prefix] = f"{number} of {prefix}, the first since {format_time(since_ms)}" + (
                f", most of them by {found[0].error!r}" if found else ""
            )
    return told


def _ms(score: bytes) -> int:
    """A time from an index; 0 for anything that no script has written."""
    return int(float(score)) if math.isfinite(float(score)) else 0


def _error(progress: bytes) -> Mapping[str, Any]:
    """The last error in a record's progress; empty if it cannot be read."""
    try:
        error = json.loads(progress)["last_error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _read_place(cursor: str | None) -> tuple[str, str]:
    try:
        score, timer_id = json.loads(cursor) if cursor is not None else ("", "")
    except (ValueError, TypeError):
        score, timer_id = "?", ""
    if not isinstance(timer_id, str) or not _SCORE.fullmatch(str(score)):
        raise InvalidInput.of("cursor", cursor, "the cursor of an earlier page")
    return str(score), timer_id
