"""Owns searching for timers the way people do: the newest first, and why they ended."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timers.core.model import Status, Timer
from timers.errors import InvalidInput
from timers.store import codec, keys
from timers.store.filters import Filter
from timers.store.listing import LOOKS_AT_LEAST, Page
from timers.store.scripts import ScriptCall
from timers.store.store import Store

PROGRESS_BYTES: Final = 256 * 1024
"""Bytes of errors read from one queue at a time."""


_SCORE: Final = re.compile(r"(-?(inf|[0-9]{1,17}(\.[0-9]{1,17})?(e[+-][0-9]{1,3})?))?")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a timer ended, without its payload. `error` is like its `last_error`."""

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
    """The newest timers that ended this way and why, in a bounded number of bytes. Raises Unavailable."""
    arguments: list[str | int] = [codec.LETTERS[status], prefix, most, PROGRESS_BYTES]
    calls = [ScriptCall("failures", keys.root(shard), arguments) for shard in range(store.shards)]
    found = [
        Ending(timer_id.decode(), _ms(at), _error(progress))
        for _, listed in await store.run_all(calls)
        for timer_id, at, progress in zip(listed[::3], listed[1::3], listed[2::3], strict=True)
    ]
    return sorted(found, key=lambda ending: ending.at_ms, reverse=True)[:most]


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
