"""Owns acting on many timers: it shows the number, asks for words to type, then does a slice a request until all are
done.

The browser keeps the progress. So any pod can continue, no request takes long, and closing the page stops it.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from timers.api.operations import route
from timers.api.scope import require_visible, visible_to
from timers.client.actions import AT_ONCE, TAKES, check_action
from timers.core.model import Status, Timer
from timers.dashboard.site import Parts, pairs_of, show
from timers.dashboard.timer import due_of
from timers.dashboard.wanted import Wanted
from timers.errors import InvalidInput, NotFound, Refused
from timers.store.filters import Filter
from timers.store.keys import identity_of
from timers.store.listing import read_page

SLICE: Final = 200
SLICE_SECONDS: Final = 1.0
REFUSED_SHOWN: Final = 20


@dataclass(slots=True)
class BulkProgress:
    """The progress of an action. `cursor` is None before it begins and at its end."""

    since_ms: int = 0
    done: int = 0
    left_alone: int = 0
    refused: list[str] = field(default_factory=list)
    refused_number: int = 0
    cursor: str | None = None
    ended: bool = False

    @classmethod
    def read(cls, text: str) -> "BulkProgress":
        """Read the progress from a form's field. Raises InvalidInput."""
        try:
            given = json.loads(text)
            numbers = [int(given[name]) for name in ("since_ms", "done", "left_alone", "refused_number")]
            refused = [str(said) for said in given["refused"]][:REFUSED_SHOWN]
        except (ValueError, KeyError, TypeError):
            raise InvalidInput.of("progress", text, "the progress from the previous page") from None
        return cls(numbers[0], numbers[1], numbers[2], refused, numbers[3], given.get("cursor"))

    def to_text(self) -> str:
        """The progress as a form's field."""
        names = ("since_ms", "done", "left_alone", "refused", "refused_number", "cursor")
        return json.dumps({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Order:
    """What to do to which timers: those chosen one by one, or all that pass the conditions."""

    action: str
    wanted: Wanted
    chosen: Sequence[str]
    when: str

    @classmethod
    def parse(cls, request: web.Request, pairs: Sequence[tuple[str, str]]) -> "Order":
        """Read the order from an address or a form. Raises InvalidInput."""
        one, chosen = dict(pairs), [value for name, value in pairs if name == "timer"]
        action = check_action(one.get("action"))
        wanted = Wanted.parse([] if chosen else pairs, visible_to(request))
        if not chosen and wanted.is_everything:
            raise InvalidInput.of(
                "filter", "", "at least one condition, because no action may cover all timers at once"
            )
        if action == "reschedule" and not one.get("when", "").strip():
            raise InvalidInput.of("when", "", "their new due time: 1h, or 2026-11-22T20:00:00Z")
        return cls(action, wanted, chosen, one.get("when", "").strip() if action == "reschedule" else "")

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses to look at: those asked for, as far as the action takes them."""
        return [s for s in TAKES[self.action] if not self.wanted.statuses or s in self.wanted.statuses]

    @property
    def filter(self) -> Filter:
        """The conditions with these statuses."""
        return self.wanted.filter.model_copy(update={"status": tuple(self.statuses)})


class BulkPages:
    """`/ui/bulk`."""

    def __init__(self, parts: Parts, *, slice_limit: int = SLICE, slice_seconds: float = SLICE_SECONDS) -> None:
        self._parts, self._client = parts, parts.client
        self._slice_limit, self._slice_seconds = slice_limit, slice_seconds

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes to add to an application."""
        return (route("bulkPage", self.page), route("bulk", self.go_on))

    async def page(self, request: web.Request) -> web.Response:
        """Answers 200 with the number of timers and the words to type."""
        return await self._asked(request, Order.parse(request, list(request.query.items())))

    async def go_on(self, request: web.Request) -> web.Response:
        """Answers 200 with the progress, or with the words to type if they are missing."""
        pairs = await pairs_of(request)
        order, form = Order.parse(request, pairs), dict(pairs)
        number = form.get("number", "")
        if form.get("words", "").strip() != f"{order.action} {number}" or not number:
            return await self._asked(request, order, wrong="words" in form)
        progress = BulkProgress.read(form["progress"]) if "progress" in form else await self._begun()
        await self._slice(request, order, progress)
        return self._shown(request, "bulk_going", order, number, progress=progress)

    async def _asked(self, request: web.Request, order: Order, *, wrong: bool = False) -> web.Response:
        number, is_exact = await self._count(order)
        words = number if is_exact else "all"
        return self._shown(
            request,
            "bulk",
            order,
            str(words),
            count=number,
            is_exact=is_exact,
            wrong=wrong,
            status=422 if wrong else 200,
        )

    def _shown(self, request: web.Request, template: str, order: Order, number: str, **values: Any) -> web.Response:
        hidden = [("action", order.action), ("when", order.when), *(("timer", member) for member in order.chosen)]
        return show(
            request,
            template,
            title=f"{order.action.capitalize()} timers",
            section="timers",
            order=order,
            number=number,
            hidden=[*hidden, *order.wanted.given],
            **values,
        )

    async def _begun(self) -> BulkProgress:
        return BulkProgress(since_ms=await self._parts.store.now_ms())

    async def _count(self, order: Order) -> tuple[int, bool]:
        """The number of timers, and whether the count is exact."""
        if order.chosen:
            return len(order.chosen), True
        if not order.statuses:
            return 0, True
        found = order.filter
        if order.wanted.counts_alone:
            counts = await self._client.counts()
            numbers = [n for prefix, of in counts.items() for status, n in of.items() if found.covers(prefix, status)]
            return sum(numbers), True
        page = await read_page(self._parts.store, found, limit=1000)
        return len(page.items), page.next_cursor is None

    async def _slice(self, request: web.Request, order: Order, progress: BulkProgress) -> None:
        """Do as much as fits into one request."""
        until = time.monotonic() + self._slice_seconds
        while not progress.ended:
            timers = await self._next(request, order, progress)
            fresh = [timer for timer in timers if timer.updated_ms <= progress.since_ms]
            progress.left_alone += len(timers) - len(fresh)
            await self._act_on(order, fresh, progress)
            if time.monotonic() > until:
                return

    async def _next(self, request: web.Request, order: Order, progress: BulkProgress) -> list[Timer]:
        """The next timers to act on. Moves the progress past them."""
        if order.chosen:
            at = int(progress.cursor or 0)
            end = at + self._slice_limit
            progress.cursor, progress.ended = str(end), end >= len(order.chosen)
            return await self._read(request, order.chosen[at:end], progress)
        if not order.statuses:
            progress.ended = True
            return []
        wanted = order.filter.at(progress.since_ms)
        page = await read_page(self._parts.store, wanted, limit=self._slice_limit, cursor=progress.cursor)
        progress.cursor, progress.ended = page.next_cursor, page.next_cursor is None
        return page.items

    async def _read(self, request: web.Request, members: Sequence[str], progress: BulkProgress) -> list[Timer]:
        found: list[Timer] = []
        for member in members:
            prefix, timer_id = identity_of(member)
            try:
                require_visible(request, prefix)
                found.append(await self._client.get(prefix, timer_id))
            except NotFound:
                _refuse(progress, f"{member}: it does not exist")
        return found

    async def _act_on(self, order: Order, timers: Sequence[Timer], progress: BulkProgress) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(timer: Timer) -> None:
            async with room:
                try:
                    await self._act(order, timer)
                except Refused as error:
                    _refuse(progress, str(error))
                else:
                    progress.done += 1

        await asyncio.gather(*map(one, timers))

    def _act(self, order: Order, timer: Timer) -> Awaitable[Timer]:
        prefix, timer_id, version = timer.prefix, timer.id, timer.version
        if order.action == "retry":
            return self._client.retry(prefix, timer_id)
        if order.action == "reschedule":
            return self._client.reschedule(prefix, timer_id, version=version, **due_of(order.when))
        return self._client.cancel(prefix, timer_id, version=version, purge=order.action == "purge")


def _refuse(progress: BulkProgress, said: str) -> None:
    progress.refused_number += 1
    if len(progress.refused) < REFUSED_SHOWN:
        progress.refused.append(said[:300])
