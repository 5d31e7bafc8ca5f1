"""The dashboard: pages for people, made on the server, with the same client and rights as the API.

`site` has the frame around every page (sign-in, errors, Redis away). `overview`, `many`, `timer` and `service` are the
pages themselves, listed here, and `render` turns them into HTML.
"""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from timers.api.auth import Auth
from timers.api.operations import Operation, answered_by, routes_of
from timers.client import TimerClient
from timers.dashboard.many import ManyPages
from timers.dashboard.overview import OverviewPage
from timers.dashboard.service import ServicePages
from timers.dashboard.site import LivePages, SignIn
from timers.dashboard.timer import TimerPages
from timers.store.store import Store

_KINDS: Final = (SignIn, LivePages, OverviewPage, ManyPages, TimerPages, ServicePages)

PAGES: Final[Sequence[Operation]] = [page for kind in _KINDS for page in answered_by(kind).values()]
"""Every page."""


def all_pages(store: Store, client: TimerClient, auth: Auth) -> Sequence[web.RouteDef]:
    """The routes to add to an application."""
    return [each for kind in _KINDS for each in routes_of(kind(store, client, auth))]
