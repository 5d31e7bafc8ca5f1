"""Owns which pages there are: everything of the dashboard, over one pod's parts."""

from collections.abc import Sequence

from aiohttp import web

from timers.dashboard.overview import OverviewPage
from timers.dashboard.site import Parts, SignIn


def all_pages(parts: Parts) -> Sequence[web.RouteDef]:
    """What to add to an application."""
    return (*SignIn(parts).routes(), *OverviewPage(parts).routes())
