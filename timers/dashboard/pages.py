"""Owns which pages there are: the whole dashboard, over one pod's parts."""

from collections.abc import Sequence

from aiohttp import web

from timers.dashboard.live import LivePages
from timers.dashboard.many import ManyPages
from timers.dashboard.overview import OverviewPage
from timers.dashboard.service import ServicePages
from timers.dashboard.site import Parts, SignIn
from timers.dashboard.timer import TimerPages

_PAGES = (SignIn, LivePages, OverviewPage, ManyPages, TimerPages, ServicePages)


def all_pages(parts: Parts) -> Sequence[web.RouteDef]:
    """The routes to add to an application. Paths without braces come before paths with them."""
    return [each for pages in _PAGES for each in pages(parts).routes()]
