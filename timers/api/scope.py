"""Owns which prefixes a request may touch: whoever knows the key says it once, every call that takes or shows prefixes
asks. Nothing said means all."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from timers.errors import NotFound, shown

Visible = Callable[[str], bool]
"""Whether a prefix may be touched."""

_KEY: Final[web.RequestKey[Visible]] = web.RequestKey("visible", Callable)  # type: ignore[arg-type]  # only its name


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
        raise NotFound(f"there is nothing of the prefix {shown(prefix)}")
