"""Owns which pages there are, over one pod's parts, and the stream of server-sent events that tells an open page that
there is something new. The page then reads its live part again."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from timers.api.operations import Operation, answered_by, page_at, routes_of
from timers.api.stream import EventRoutes, write
from timers.client.feed import LOG_LIMIT, FeedListener
from timers.dashboard.many import ManyPages
from timers.dashboard.overview import OverviewPage
from timers.dashboard.service import ServicePages
from timers.dashboard.site import Parts, SignIn
from timers.dashboard.timer import TimerPages

LEAST_SECONDS: Final = 1.0
"""The shortest time between two messages to a page, however much happens."""

MOST_SECONDS: Final = 5.0
"""How long a page waits without a change before it is told anyway: pods come and go, and due timers become late."""


class LivePages(EventRoutes):
    """`/ui/live`."""

    def __init__(
        self, parts: Parts, *, least_seconds: float = LEAST_SECONDS, most_seconds: float = MOST_SECONDS
    ) -> None:
        super().__init__(parts.client, linger_seconds=0.0)
        self._least_seconds, self._most_seconds = least_seconds, most_seconds

    @page_at("GET live", "read", endless=True)
    async def live(self, request: web.Request) -> web.StreamResponse:
        """Answers 200 with events until one side closes."""
        return await self.stream(request)

    async def _pass_on(self, listener: FeedListener, response: web.StreamResponse) -> None:
        """Tell only that there are changes, not which."""
        while True:
            await write(response, b"data: new\n\n")
            await asyncio.sleep(self._least_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._most_seconds - self._least_seconds):
                    if await listener.next() is None:
                        return
            listener.waiting(LOG_LIMIT)


_KINDS: Final = (SignIn, LivePages, OverviewPage, ManyPages, TimerPages, ServicePages)

PAGES: Final[Sequence[Operation]] = [page for kind in _KINDS for page in answered_by(kind).values()]
"""Every page."""


def all_pages(parts: Parts) -> Sequence[web.RouteDef]:
    """The routes to add to an application."""
    return [each for kind in _KINDS for each in routes_of(kind(parts))]
