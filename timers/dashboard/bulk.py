"""Owns acting on many timers: it shows the number, asks for words to type, then does a slice a request until all are
done.

The browser keeps the progress. So any pod can continue, no request takes long, and closing the page stops it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from timers.api.operations import route
from timers.api.scope import acting, nothing_of, visible_to
from timers.client.actions import TAKES, BulkAction, Counts, check_action
from timers.core.answers import ActionAnswer
from timers.core.model import Status
from timers.core.strict import decode
from timers.dashboard.site import Parts, pairs_of, show
from timers.dashboard.timer import due_of
from timers.dashboard.wanted import Wanted
from timers.errors import FieldError, InvalidInput, shown
from timers.store.filters import Filter
from timers.store.keys import identity_of
from timers.store.listing import read_page

SLICE: Final = 200
SLICE_SECONDS: Final = 1.0
_PROGRESS: Final = TypeAdapter(ActionAnswer)


def read_progress(text: str) -> Counts:
    """Read the progress from a form's field. Raises InvalidInput."""
    try:
        given = _PROGRESS.validate_json(text)
    except ValidationError:
        raise InvalidInput.of("progress", text, "the progress from the previous page") from None
    counts = Counts(given["matched"], given["done"], next_cursor=given["next_cursor"], examples=given["examples"])
    counts.refused.update(given["refused"])
    return counts


@dataclass(frozen=True, slots=True)
class Order:
    """What to do to which timers: those chosen one by one, or all that pass the conditions."""

    action: str
    wanted: Wanted
    chosen: Sequence[str]
    when: str
    changes: str

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
        when = one.get("when", "").strip() if action == "reschedule" else ""
        return cls(action, wanted, chosen, when, one.get("changes", "").strip() if action == "change" else "")

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses to look at: those asked for, as far as the action takes them."""
        return [s for s in TAKES[self.action] if not self.wanted.statuses or s in self.wanted.statuses]

    @property
    def filter(self) -> Filter:
        """The conditions with these statuses."""
        return self.wanted.filter.model_copy(update={"status": tuple(self.statuses)})

    def asked(self, cursor: str | None = None) -> BulkAction:
        """The action to carry out from a cursor on. Raises InvalidInput."""
        due = due_of(self.when) if self.when else {}
        try:
            changes = decode(self.changes.encode("utf-8", "replace")) if self.action == "change" else None
        except ValueError as error:
            raise InvalidInput([FieldError("changes", shown(self.changes), f"JSON ({error})")]) from None
        given = {"action": self.action, "filter": self.filter, "changes": changes, "cursor": cursor, **due}
        return BulkAction.parse(given)


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
            return await self._asked(request, order, "The text does not match." if "words" in form else "")
        progress = read_progress(form["progress"]) if "progress" in form else Counts()
        try:
            asked = order.asked(progress.next_cursor)
        except InvalidInput as error:
            if order.action != "change":
                raise
            return await self._asked(request, order, str(error))
        await self._slice(request, order, asked, progress)
        return self._shown(request, "bulk_going", order, number, progress=progress)

    async def _asked(self, request: web.Request, order: Order, wrong: str = "") -> web.Response:
        number, is_exact = await self._count(order)
        words, status = number if is_exact else "all", 422 if wrong else 200
        told = {"count": number, "is_exact": is_exact, "wrong": wrong}
        return self._shown(request, "bulk", order, str(words), status=status, **told)

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

    async def _count(self, order: Order) -> tuple[int, bool]:
        """The number of timers, and whether the count is exact."""
        if order.chosen:
            return len(order.chosen), True
        if not order.statuses:
            return 0, True
        found = order.filter
        if order.wanted.counts_alone:
            counts = await self._client.counts(own=True)
            covers, statuses = found.covering(), found.statuses
            return sum(
                of.get(status, 0) for prefix, of in counts.items() if covers(prefix) for status in statuses
            ), True
        page = await read_page(self._parts.store, found, limit=1000)
        return len(page.items), page.next_cursor is None

    async def _slice(self, request: web.Request, order: Order, asked: BulkAction, progress: Counts) -> None:
        """Do as much as fits into one request, and add it to the progress."""
        until = time.monotonic() + self._slice_seconds
        if order.chosen:
            chosen, visible = [identity_of(member) for member in order.chosen], visible_to(request)
            asked = asked.on([each for each in chosen if visible is None or visible(each[0])])
            for prefix, timer_id in set(chosen).difference(asked.chosen or ()):
                progress.matched += 1
                progress.refuse(prefix, timer_id, nothing_of(prefix))
        if order.chosen or order.statuses:
            counts = await acting(self._client, request).act(
                asked, stop=lambda counts: counts.matched >= self._slice_limit or time.monotonic() > until
            )
            progress.add(counts)
