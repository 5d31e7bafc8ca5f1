"""Owns keeping other sites' pages out of an open API: a browser on this machine reaches it, and no key is asked for."""

import ipaddress
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from timers.errors import Forbidden

_SAFE_METHODS: Final = ("GET", "HEAD")


def check_host(request: web.Request) -> None:
    """Raises Forbidden for a name that somebody's DNS may have pointed at this machine (DNS rebinding): only an address
    or `localhost` is surely meant."""
    host = _parts(f"//{request.host}").hostname or ""
    if host != "localhost" and not host.endswith(".localhost") and not _is_address(host):
        raise Forbidden(
            f"this API is open to this machine alone, and {host!r} may be anybody's name for it; use localhost, "
            "set TIMERS_API_KEYS, or TIMERS_INSECURE=1"
        )


def check_origin(request: web.Request) -> None:
    """Raises Forbidden for a change that a page of another site asks for."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in _SAFE_METHODS or _parts(origin).netloc == request.host:
        return
    raise Forbidden("a page of another site may change nothing here; set TIMERS_API_KEYS and send a key")


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
