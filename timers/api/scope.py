"""Owns which prefixes a request may touch and how many timers it may leave there. `auth` sets the caller once, and
every call that takes or shows prefixes looks here."""

from typing import Final

from aiohttp import web

from timers.access import Caller, Scope
from timers.client import TimerClient
from timers.errors import NotFound, shown
from timers.store.callers import Quota
from timers.store.filters import Visible

_CALLER: Final = web.RequestKey("caller", Caller)


def limit(request: web.Request, caller: Caller) -> None:
    """From now on the request touches only the caller's prefixes, and arms only as many timers as the caller may
    have."""
    request[_CALLER] = caller


def caller_of(request: web.Request) -> Caller | None:
    """The caller, or None if the request was not asked for one."""
    return request.get(_CALLER)


def acting(client: TimerClient, request: web.Request) -> TimerClient:
    """The client, so that changes are made in the name of the request's key and within its quota."""
    caller = request[_CALLER]
    within = (
        None if caller.most_prefixes is None else Quota(caller.pending, caller.scope.patterns, caller.most_prefixes)
    )
    return client.acting(caller.name or None, within)


def scope_of(request: web.Request) -> Scope:
    """The prefixes of the caller."""
    return request[_CALLER].scope


def visible_to(request: web.Request) -> Visible | None:
    """The prefixes that the request may see, or None if it may see all."""
    scope = scope_of(request)
    return None if scope.is_everything else scope.covers


def require_visible(request: web.Request, prefix: str) -> None:
    """Raises NotFound for a prefix that the request may not touch, and tells no more than that."""
    if not request[_CALLER].scope.covers(prefix):
        raise nothing_of(prefix)


def nothing_of(prefix: str) -> NotFound:
    """The error for a prefix that the request may not touch."""
    return NotFound(f"there is nothing of the prefix {shown(prefix)}")
