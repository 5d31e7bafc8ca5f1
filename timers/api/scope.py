"""Owns which prefixes a request may touch and how many timers it may leave there: whoever knows the key says it once,
every call that takes or shows prefixes asks. Nothing said means all."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from timers.errors import NotFound, shown
from timers.store.store import Quota

Visible = Callable[[str], bool]
"""Whether a prefix may be touched."""

_KEY: Final[web.RequestKey[Visible]] = web.RequestKey("visible", Callable)  # type: ignore[arg-type]  # only its name

_QUOTA: Final = web.RequestKey("quota", Quota)


def limit(request: web.Request, visible: Visible) -> None:
    """From here on the request touches only prefixes that are visible."""
    request[_KEY] = visible


def visible_to(request: web.Request) -> Visible | None:
    """What the request was limited to; None where it was not."""
    return request.get(_KEY)


def require_visible(request: web.Request, prefix: str) -> None:
    """Raises NotFound for a prefix that the request may not touch: it learns no more than that."""
    visible = visible_to(request)
    if visible is not None and not visible(prefix):
        raise nothing_of(prefix)


def nothing_of(prefix: str) -> NotFound:
    """What is said of a prefix that may not be touched."""
    return NotFound(f"there is nothing of the prefix {shown(prefix)}")


def limit_pending(request: web.Request, quota: Quota) -> None:
    """From here on the request arms only as many timers as the quota has room for."""
    request[_QUOTA] = quota


def quota_of(request: web.Request) -> Quota | None:
    """The quota of the request; None where there is none."""
    return request.get(_QUOTA)
