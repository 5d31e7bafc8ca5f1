"""Owns the pages of many timers: the list, the failures by prefix and error, and the action on all that match.

An action shows the number and asks for words to type, then does a slice a request until all are done. The browser keeps
the progress. So any pod can continue, no request takes long, and closing the page stops it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from timers.api.auth import acting, nothing_of, visible_to
from timers.api.operations import page_at
from timers.client.actions import TAKES, BulkAction, Counts, check_action
from timers.core.answers import ActionAnswer
from timers.core.fields import decode_text
from timers.core.model import Status, Timer
from timers.dashboard.site import Pages, paged, pairs_of
from timers.dashboard.timer import due_of
from timers.errors import InvalidInput
from timers.store.filters import Filter, Visible
from timers.store.keys import identity_of
from timers.store.listing import ORDER, Page, read_page
from timers.store.queries import Group, error_group, groups
from timers.store.store import Store

PAGE: Final = 50
PREFIXES_A_PAGE: Final = 20
SLICE: Final = 200
SLICE_SECONDS: Final = 1.0
NAMES: Final = ("prefix", "tag", "due_after", "due_before", "q", "error")
"""Conditions that come once. `status` may come several times."""

FAILING: Final = (Status.FAILED, Status.UNHANDLED, Status.RETRYING)
_PROGRESS: Final = TypeAdapter(ActionAnswer)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions as given, and the filter made from them."""

    given: Sequence[tuple[str, str]]
    filter: Filter

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]], visible: Visible | None) -> "Wanted":
        """Read the conditions from the parameters of an address or the fields of a form. Empty and unknown ones count
        as not given. Raises InvalidInput."""
        given = [(name, value.strip()) for name, value in pairs if value.strip() and name in (*NAMES, "status")]
        one = dict(given)
        statuses = [value for name, value in given if name == "status" and value in list(Status)]
        fields = {name: one.get(name) for name in Filter.model_fields}
        found = Filter.parse({**fields, "status": statuses or None}).seen_by(visible)
        return cls(given, _with_words(found, one.get("q"), one.get("error")))

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses asked for, or none if any will do."""
        return self.filter.status or ()

    @property
    def values(self) -> Mapping[str, str]:
        return {name: dict(self.given).get(name, "") for name in NAMES}

    def query(self, **more: str) -> str:
        """The conditions as the query of an address."""
        return urlencode([*self.given, *more.items()])


def _with_words(found: Filter, words: str | None, error: str | None) -> Filter:
    if words is None and error is None:
        return found

    def passes(timer: Timer) -> bool:
        return (words is None or words in timer.key) and (error is None or error_group(timer.last_error) == error)

    return found.where(passes)


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """What to do to which timers: those chosen one by one, or all that pass the conditions. `wanted` has the statuses
    to look at: those asked for, as far as the action takes them."""

    action: str
    wanted: Wanted
    chosen: Sequence[str]
    when: str
    changes: str

    @classmethod
    def parse(cls, request: web.Request, pairs: Sequence[tuple[str, str]]) -> "BulkRequest":
        one, chosen = dict(pairs), [value for name, value in pairs if name == "timer"]
        action = check_action(one.get("action"))
        wanted = Wanted.parse([] if chosen else pairs, visible_to(request))
        if not chosen and not wanted.given:
            raise InvalidInput.of(
                "filter", "", "at least one condition, because no action may cover all timers at once"
            )
        if action == "reschedule" and not one.get("when", "").strip():
            raise InvalidInput.of("when", "", "their new due time: 1h, or 2026-11-22T20:00:00Z")
        takes = tuple(s for s in TAKES[action] if not wanted.statuses or s in wanted.statuses)
        wanted = replace(wanted, filter=wanted.filter.model_copy(update={"status": takes}))
        when = one.get("when", "").strip() if action == "reschedule" else ""
        return cls(action, wanted, chosen, when, one.get("changes", "").strip() if action == "change" else "")

    def asked(self, cursor: str | None = None) -> BulkAction:
        """The action to carry out from a cursor on. Raises InvalidInput."""
        due = due_of(self.when) if self.when else {}
        changes = decode_text(self.changes, "changes") if self.action == "change" else None
        given = {"action": self.action, "filter": self.wanted.filter, "changes": changes, "cursor": cursor, **due}
        return BulkAction.parse(given)


async def failures_of(store: Store, prefix: str, counts: Mapping[Status, int]) -> Mapping[str, Any]:
    """How many timers of a prefix fail, by those of its counts that say so, and their groups, the largest first."""
    failing = {status: counts[status] for status in FAILING if counts.get(status)}
    found: list[Group] = []
    looked_at = 0
    for status in failing:
        some, looked = await groups(store, prefix, status)
        found += some
        looked_at += looked
    ordered = sorted(found, key=lambda group: -group.number)
    return {"prefix": prefix, "counts": failing, "groups": ordered, "looked_at": looked_at}


class ManyPages(Pages):
    @page_at("GET timers", "read")
    async def timers(self, request: web.Request) -> web.Response:
        """Answers 200 with a page, or 422 with the form and what is wrong."""
        wanted, errors = _wanted(request)
        has_one_status = len(wanted.statuses) == 1 and Status.RUNNING not in wanted.statuses
        may_sort = has_one_status and wanted.filter.only_prefix is not None
        newest = request.query.get("sort") == "newest" and may_sort
        cursor = request.query.get("cursor")
        page = Page([], None)
        if not errors:
            page = await read_page(self._store, wanted.filter, limit=PAGE, cursor=cursor, newest=newest)
        sorted_by = {"sort": "newest"} if newest else {}
        return self._show(
            request,
            "timers",
            status=422 if errors else 200,
            wanted=wanted,
            errors=errors,
            statuses=ORDER,
            timers=page.items,
            next=f"/ui/timers?{wanted.query(**sorted_by, cursor=page.next_cursor)}" if page.next_cursor else None,
            first=f"/ui/timers?{wanted.query(**sorted_by)}" if cursor else None,
            newest=newest,
            may_sort=may_sort,
        )

    @page_at("GET failed", "read")
    async def failed(self, request: web.Request) -> web.Response:
        """Answers 200 with the prefixes, those with most failures first."""
        covers = Filter().seen_by(visible_to(request)).covering()
        counts = {prefix: of for prefix, of in (await self._client.counts()).items() if covers(prefix)}
        failing = {prefix: sum(of.get(status, 0) for status in FAILING) for prefix, of in counts.items()}
        most = sorted((prefix for prefix, n in failing.items() if n), key=lambda prefix: (-failing[prefix], prefix))
        shown, place = paged(request, most, PREFIXES_A_PAGE)
        return self._show(
            request,
            "failed",
            prefixes=[await failures_of(self._store, prefix, counts[prefix]) for prefix in shown],
            **place,
        )

    @page_at("GET bulk", "write")
    async def bulk_page(self, request: web.Request) -> web.Response:
        """Answers 200 with the number of timers and the words to type."""
        return await self._asked(request, BulkRequest.parse(request, list(request.query.items())))

    @page_at("POST bulk", "write")
    async def bulk(self, request: web.Request) -> web.Response:
        """Answers 200 with the progress, or with the words to type if they are missing."""
        pairs = await pairs_of(request)
        bulk, form = BulkRequest.parse(request, pairs), dict(pairs)
        number = form.get("number", "")
        if form.get("words", "").strip() != f"{bulk.action} {number}" or not number:
            return await self._asked(request, bulk, "The text does not match." if "words" in form else "")
        progress = _read_progress(form["progress"]) if "progress" in form else Counts()
        try:
            asked = bulk.asked(progress.next_cursor)
        except InvalidInput as error:
            if bulk.action != "change":
                raise
            return await self._asked(request, bulk, str(error))
        await self._slice(request, bulk, asked, progress)
        return self._shown(request, bulk, number, progress=progress)

    async def _asked(self, request: web.Request, bulk: BulkRequest, wrong: str = "") -> web.Response:
        number, is_exact = await self._count(bulk)
        words, status = number if is_exact else "all", 422 if wrong else 200
        fields = {"count": number, "is_exact": is_exact, "wrong": wrong}
        return self._shown(request, bulk, str(words), status=status, progress=None, **fields)

    def _shown(self, request: web.Request, bulk: BulkRequest, number: str, **values: Any) -> web.Response:
        hidden = [("action", bulk.action), ("when", bulk.when), *(("timer", member) for member in bulk.chosen)]
        return self._show(request, "bulk", bulk=bulk, number=number, hidden=[*hidden, *bulk.wanted.given], **values)

    async def _count(self, bulk: BulkRequest) -> tuple[int, bool]:
        """The number of timers, and whether the count is exact."""
        if bulk.chosen:
            return len(bulk.chosen), True
        if not bulk.wanted.statuses:
            return 0, True
        found = bulk.wanted.filter
        if {name for name, _ in bulk.wanted.given} <= {"prefix", "status"}:
            counts = await self._client.counts(own=True)
            covers, statuses = found.covering(), found.statuses
            return sum(
                of.get(status, 0) for prefix, of in counts.items() if covers(prefix) for status in statuses
            ), True
        page = await read_page(self._store, found, limit=1000)
        return len(page.items), page.next_cursor is None

    async def _slice(self, request: web.Request, bulk: BulkRequest, asked: BulkAction, progress: Counts) -> None:
        """Do as much as fits into one request, and add it to the progress."""
        until = time.monotonic() + SLICE_SECONDS
        if bulk.chosen:
            chosen, visible = [identity_of(member) for member in bulk.chosen], visible_to(request)
            seen = [each for each in chosen if visible is None or visible(each[0])]
            asked = asked.on(seen)
            for prefix, timer_id in set(chosen).difference(seen):
                progress.matched += 1
                progress.refuse(prefix, timer_id, nothing_of(prefix))
        if bulk.chosen or bulk.wanted.statuses:
            counts = await acting(self._client, request).act(
                asked, stop=lambda counts: counts.matched >= SLICE or time.monotonic() > until
            )
            progress.add(counts)


def _wanted(request: web.Request) -> tuple[Wanted, Mapping[str, str]]:
    """What the address asks for, and what is wrong with each field."""
    pairs = list(request.query.items())
    try:
        return Wanted.parse(pairs, visible_to(request)), {}
    except InvalidInput as error:
        return Wanted(pairs, Filter()), {each.field: str(each) for each in error.errors}


def _read_progress(text: str) -> Counts:
    """Read the progress from a form's field. Raises InvalidInput."""
    try:
        given = _PROGRESS.validate_json(text)
    except ValidationError:
        raise InvalidInput.of("progress", text, "the progress from the previous page") from None
    counts = Counts(given["matched"], given["done"], next_cursor=given["next_cursor"], examples=given["examples"])
    counts.refused.update(given["refused"])
    return counts
