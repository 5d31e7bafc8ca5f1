"""Owns keeping pages of other sites out of an open API: a browser on this machine can reach it, and it asks for no
key."""

import ipaddress
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from timers.errors import Forbidden, shown

_SAFE_METHODS: Final = ("GET", "HEAD")
_NOBODYS: Final = (".localhost", ".internal", ".local")
"""Names that no registrar sells (RFC 6761, RFC 6762, ICANN for `.internal`)."""


def check_host(request: web.Request) -> None:
    """Raises Forbidden for a host name that somebody's DNS may have pointed at this machine (DNS rebinding). Addresses
    are safe. So are names without a dot and names with these endings, because nobody can register them."""
    given = request.headers.get("Host")
    if given is None or _cannot_be_registered(given):
        return
    raise Forbidden(
        f"this API is open only to this machine, and {shown(given)} may be anybody's name for it; use localhost, "
        "set TIMERS_API_KEYS, or TIMERS_INSECURE=1"
    )


def check_origin(request: web.Request) -> None:
    """Raises Forbidden if a page of another site asks for a change."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in _SAFE_METHODS or _parts(origin).netloc == request.host:
        return
    raise Forbidden("a page of another site may change nothing here; set TIMERS_API_KEYS and send a key")


@lru_cache(maxsize=256)  # the clients of one API use only a few names for it
def _cannot_be_registered(given: str) -> bool:
    host = _parts(f"//{given}").hostname or "."
    return "." not in host or host.endswith(_NOBODYS) or _is_address(host)


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
