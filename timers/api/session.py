"""Owns sign-in: the cookie that stands for an API key in a browser, and the one that makes a browser read-only.

A session is `<key id>.<end, Unix seconds>.<HMAC-SHA256 of both>`, signed with a secret that all pods share through
Redis. It proves only that the browser showed the key. Each request looks up the key's rights and prefixes, and whether
it was revoked.
"""

import hashlib
import hmac
import time
from typing import Final

from aiohttp import web

from timers.errors import Unavailable
from timers.store.callers import Callers

COOKIE: Final = "timers_session"
READ_ONLY_COOKIE: Final = "timers_read_only"
SESSION_SECONDS: Final = 12 * 3600
READ_ONLY_SECONDS: Final = 365 * 24 * 3600
SECRET_FRESH_SECONDS: Final = 30.0
"""How long the secret read from Redis counts. A db that was emptied has a new secret."""


class Sessions:
    """Makes and reads the cookies. Methods raise Unavailable while Redis is down, if the secret has never been read."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._secret = b""
        self._read_at = float("-inf")

    async def key_id(self, request: web.Request) -> str | None:
        """The id of the session's key, or None without a valid session."""
        key_id, _, rest = request.cookies.get(COOKIE, "").partition(".")
        end, _, signature = rest.partition(".")
        if not signature or not end.isdecimal() or len(end) > 12 or int(end) < time.time():
            return None
        expected = _signature(await self._current(), key_id, end)
        return key_id if hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) else None

    async def begin(self, request: web.Request, response: web.StreamResponse, key_id: str) -> None:
        """Sign the browser in with a key that it has just shown."""
        end = str(int(time.time()) + SESSION_SECONDS)
        value = f"{key_id}.{end}.{_signature(await self._current(), key_id, end)}"
        _set(request, response, COOKIE, value, SESSION_SECONDS)

    def end(self, response: web.StreamResponse) -> None:
        """Sign the browser out."""
        response.del_cookie(COOKIE, path="/")

    async def _current(self) -> bytes:
        if time.monotonic() - self._read_at > SECRET_FRESH_SECONDS:
            try:
                self._secret, self._read_at = await self._callers.session_secret(), time.monotonic()
            except Unavailable:
                if not self._secret:
                    raise
        return self._secret


def is_read_only(request: web.Request) -> bool:
    """Whether the browser has asked to be read-only."""
    return READ_ONLY_COOKIE in request.cookies


def set_read_only(request: web.Request, response: web.StreamResponse, *, wanted: bool) -> None:
    """Make the browser read-only, or let it do again what its key may do."""
    if wanted:
        _set(request, response, READ_ONLY_COOKIE, "1", READ_ONLY_SECONDS)
    else:
        response.del_cookie(READ_ONLY_COOKIE, path="/")


def _set(request: web.Request, response: web.StreamResponse, name: str, value: str, seconds: int) -> None:
    """Set a cookie. A proxy that ends TLS says so in a header. A forged header only makes the cookie stricter."""
    is_secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    response.set_cookie(name, value, max_age=seconds, path="/", httponly=True, samesite="Strict", secure=is_secure)


def _signature(secret: bytes, key_id: str, end: str) -> str:
    return hmac.new(secret, f"{key_id}.{end}".encode(), hashlib.sha256).hexdigest()
