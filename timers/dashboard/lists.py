"""Owns the pages of many timers: the list, with its conditions in the address, and the failures by prefix and error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from timers.api.operations import route
from timers.api.scope import visible_to
from timers.core.model import Status
from timers.dashboard.site import Parts, show
from timers.dashboard.wanted import Wanted
from timers.errors import InvalidInput
from timers.store.filters import Filter
from timers.store.listing import ORDER, Page, read_page
from timers.store.queries import Group, groups

PAGE: Final = 50
PREFIXES_A_PAGE: Final = 20
_FAILING: Final = (Status.FAILED, Status.UNHANDLED, Status.RETRYING)


@dataclass(frozen=True, slots=True)
class FailedPrefix:
    """A prefix with failed, unhandled or retrying timers: how many there are, and their groups, the largest first."""

    prefix: str
    counts: Mapping[Status, int]
    groups: Sequence[Group]
    looked_at: int


class ListPages:
    """`/ui/timers` and `/ui/failed`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes to add to an application."""
        return (route("timersPage", self.timers), route("failedPage", self.failed))

    async def timers(self, request: web.Request) -> web.Response:
        """Answers 200 with a page, or 422 with the form and what is wrong."""
        wanted, errors = _wanted(request)
        may_sort = (
            wanted.filter.only_prefix is not None
            and len(wanted.statuses) == 1
            and Status.RUNNING not in wanted.statuses
        )
        newest = request.query.get("sort") == "newest" and may_sort
        cursor = request.query.get("cursor")
        page = Page([], None)
        if not errors:
            page = await read_page(self._parts.store, wanted.filter, limit=PAGE, cursor=cursor, newest=newest)
        sorted_by = {"sort": "newest"} if newest else {}
        return show(
            request,
            "timers",
            status=422 if errors else 200,
            title="Timers",
            section="timers",
            now_ms=round(self._parts.store.clock.now_ms()),
            wanted=wanted,
            errors=errors,
            statuses=ORDER,
            timers=page.items,
            next=f"/ui/timers?{wanted.query(**sorted_by, cursor=page.next_cursor)}" if page.next_cursor else None,
            first=f"/ui/timers?{wanted.query(**sorted_by)}" if cursor else None,
            newest=newest,
            may_sort=may_sort,
        )

    async def failed(self, request: web.Request) -> web.Response:
        """Answers 200 with the prefixes, those with most failures first."""
        covers = Filter().seen_by(visible_to(request)).covering()
        counts = await self._parts.client.counts()
        ended = {
            prefix: {status: n for status in _FAILING if (n := by_status.get(status, 0))}
            for prefix, by_status in counts.items()
            if covers(prefix)
        }
        most = sorted((p for p, by_status in ended.items() if by_status), key=lambda p: (-sum(ended[p].values()), p))
        given = request.query.get("page", "1")
        at = max(1, int(given)) if given.isascii() and given.isdecimal() and len(given) < 6 else 1
        shown = most[(at - 1) * PREFIXES_A_PAGE : at * PREFIXES_A_PAGE]
        return show(
            request,
            "failed",
            title="Failed and retrying",
            section="failed",
            now_ms=round(self._parts.store.clock.now_ms()),
            prefixes=[await self._prefix(prefix, ended[prefix]) for prefix in shown],
            total=len(most),
            at=at,
            pages=-(-len(most) // PREFIXES_A_PAGE),
        )

    async def _prefix(self, prefix: str, counts: Mapping[Status, int]) -> FailedPrefix:
        found: list[Group] = []
        looked_at = 0
        for status in counts:
            some, looked = await groups(self._parts.store, prefix, status)
            found += some
            looked_at += looked
        return FailedPrefix(prefix, counts, sorted(found, key=lambda group: -group.number), looked_at)


def _wanted(request: web.Request) -> tuple[Wanted, Mapping[str, str]]:
    """What the address asks for, and what is wrong with each field."""
    pairs = list(request.query.items())
    try:
        return Wanted.parse(pairs, visible_to(request)), {}
    except InvalidInput as error:
        return Wanted(pairs, Filter()), {each.field: str(each) for each in error.errors}
