"""Owns carrying out rows of the ledger's inbox on Redis: what each asks for, as if it were done when the row was
written, and what the ledger keeps of the timer then."""

import asyncio
from collections.abc import Sequence
from typing import Final

from timers.client.client import TimerClient
from timers.client.copies import row_of_timer
from timers.client.planning import REASONS, Reason, armed, plan, tried
from timers.core.calls import Armed
from timers.core.durations import parse_time
from timers.core.model import Timer
from timers.core.spec import Request, TimerChange, own_due_ms, read_request
from timers.errors import Full, NotFound
from timers.ledger.facts import Lives
from timers.ledger.inbox import Taken
from timers.ledger.rows import Row, tombstone
from timers.store.codec import encode_act
from timers.store.following import INBOX
from timers.store.store import Arming

TOGETHER: Final = 50
"""Actions on existing timers that are under way at once."""

Result = Row | Reason | None
"""What a row comes to: the timer as it is then (None if it is gone), or why it cannot be done."""


async def carry_out(client: TimerClient, taken: Sequence[Taken], lives: Lives) -> list[Result]:
    """The result of each row, carried out in these lives of their shards; no two may be of the same timer. A row that
    was carried out before, by a pod that died before it could delete the row, is done already. What finds Redis full
    has that as its result. Raises any other Unavailable; any of the rows may be done then."""
    client = client._within(lives)
    read = [tried(_read, row) for row in taken]
    results: dict[int, Result] = {place: each for place, each in enumerate(read) if not isinstance(each, Request)}
    asked = [(place, taken[place], each) for place, each in enumerate(read) if isinstance(each, Request)]
    results |= await _arm(client, lives, [one for one in asked if one[2].new is not None])
    results |= await _act(client, [one for one in asked if one[2].new is None])
    return [results[place] for place in range(len(taken))]


def _read(row: Taken) -> Request:
    """What the row asks for. A delay counts from the row's time, and no record can hold a due time before 1970."""
    parse_time(row.at, "at")
    return read_request(row.prefix, row.id, row.action, row.body)


_Asked = Sequence[tuple[int, Taken, Request]]


async def _arm(client: TimerClient, lives: Lives, asked: _Asked) -> dict[int, Result]:
    if not asked:
        return {}
    store = await client._open()
    planned = {
        place: tried(_planned, row, each, store.clock.now_ms(), _ended(client, row)) for place, row, each in asked
    }
    armings = {
        place: each._replace(life=lives.get(store.shard_of(each.prefix, each.id), ""))
        for place, each in planned.items()
        if isinstance(each, Arming)
    }
    results: dict[int, Result] = {place: each for place, each in planned.items() if not isinstance(each, Arming)}
    refused = await client._declared.refusals({arming.prefix for arming in armings.values()})
    results |= {place: refused[each.prefix] for place, each in armings.items() if each.prefix in refused}
    served = {place: each for place, each in armings.items() if each.prefix not in refused}
    try:
        answers = await client._quotas.arm(list(served.values()), None)
    except Full as full:
        return results | dict.fromkeys(served, full)
    for (place, arming), answer in zip(served.items(), answers, strict=True):
        result = None if answer.code == "done" else tried(armed, answer, arming, None)
        results[place] = row_of_timer(store, result.timer) if isinstance(result, Armed) else result
    return results


def _planned(row: Taken, asked: Request, now_ms: float, ended: str) -> Arming:
    """Due as if it were armed when the row was written. The server counts the delay, so that no clock but its own
    matters."""
    if asked.new is None:
        raise ValueError("a create has a timer")
    arming = plan(asked.new, now_ms - row.age_ms, asked.traceparent)
    due = f"+{int(arming.due[1:]) - row.age_ms}" if arming.due[0] == "+" else arming.due
    cause = encode_act("replaced", f"{INBOX} {row.mark}")
    return arming._replace(due=due, cause=f"{cause}{ended}", durability="fast")  # the ledger has it


def _ended(client: TimerClient, row: Taken) -> str:
    """What cancels the timer in the step that arms it, if it is due by then: it must not start before the row that was
    committed with it, or after it, is carried out. The mark says that nothing is left of that row to do."""
    if row.ended_by is None:
        return ""
    mark, action = row.ended_by
    is_all = action == "cancel" and client._keeps_cancelled
    return " " + encode_act("cancelled", f"{INBOX} {mark}" if is_all else None)


async def _act(client: TimerClient, asked: _Asked) -> dict[int, Result]:
    results: dict[int, Result] = {}
    for start in range(0, len(asked), TOGETHER):
        some = asked[start : start + TOGETHER]
        store = await client._open()
        found = await store.get([(row.prefix, row.id) for _, row, _ in some])
        acts = [_act_on(client, timer, row, each) for timer, (_, row, each) in zip(found, some, strict=True)]
        done = await asyncio.gather(*acts)
        results |= {place: result for (place, *_), result in zip(some, done, strict=True)}
    return results


async def _act_on(client: TimerClient, found: Timer | None, row: Taken, asked: Request) -> Result:
    store, by = await client._open(), f"{INBOX} {row.mark}"
    if found is not None and any(entry.by == by for entry in found.history):
        return row_of_timer(store, found)
    try:
        timer = await _acted(client.acting(by), row, asked)
    except NotFound as error:
        return None if asked.action == "purge" else error
    except (*REASONS, Full) as error:
        return error
    if asked.action != "purge":
        return row_of_timer(store, timer)
    shard, now_ms = store.shard_of(row.prefix, row.id), round(store.clock.now_ms())
    return tombstone(row.prefix, row.id, shard, version=timer.version + 1, created=timer.created_ms, at_ms=now_ms)


async def _acted(client: TimerClient, row: Taken, asked: Request) -> Timer:
    if asked.change is not None:
        now_ms = (await client._open()).clock.now_ms() - row.age_ms
        return await client.change(row.prefix, row.id, _moved(asked.change, now_ms))
    if asked.action == "retry":
        return await client.retry(row.prefix, row.id)
    if asked.action == "fire":
        return await client.fire(row.prefix, row.id)
    return await client.cancel(row.prefix, row.id, purge=asked.action == "purge")


def _moved(change: TimerChange, now_ms: float) -> TimerChange:
    """The change with its due time counted from then."""
    due_ms = own_due_ms(change, now_ms)
    kept = change.model_dump(exclude_unset=True, exclude={"delay", "due_at"})
    return change if due_ms is None else TimerChange.parse({**kept, "due_at": due_ms})
