"""Owns what callers show instead of an API key: the cookies of a browser, and signatures."""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from multidict import CIMultiDictProxy

from timers.errors import Unauthorized, Unavailable
from timers.store.callers import Callers
from timers.store.cooperative import CachedRead

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
        self._secret = CachedRead(callers.session_secret, SECRET_FRESH_SECONDS)

    async def key_id(self, request: web.Request, *, patience_seconds: float | None = None) -> str | None:
        """The id of the session's key, or None without a valid session. If Redis does not say within
        `patience_seconds` (None: ever) whether it was ended, it counts as not ended. Raises HTTP 400."""
        session = _given(request)
        if not await self._is_ours(session):
            return None
        try:
            async with asyncio.timeout(patience_seconds):
                has_ended = await self._callers.has_ended(session)
        except (Unavailable, TimeoutError):
            if patience_seconds is None:
                raise
            has_ended = False
        return None if has_ended else session.partition(".")[0]

    async def _is_ours(self, session: str) -> bool:
        """Whether a pod signed this session, and its time is not over."""
        signed, _, signature = session.rpartition(".")
        if signed.count(".") != 2 or _seconds_left(session) <= 0:
            return False
        return hmac.compare_digest(_signature(await self._secret.known(), signed), signature.encode())

    async def begin(self, request: web.Request, response: web.StreamResponse, key_id: str) -> None:
        """Sign the browser in with a key that it has just shown."""
        signed = f"{key_id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        value = f"{signed}.{_signature(await self._secret.known(), signed).decode()}"
        _set(request, response, COOKIE, value, SESSION_SECONDS)

    async def end(self, request: web.Request) -> None:
        """End the session. From now on its cookie opens nothing on any pod."""
        session = _given(request)
        if await self._is_ours(session):
            await self._callers.end_session(session, _seconds_left(session))


def forget_session(response: web.StreamResponse) -> None:
    """Let the browser forget its session's cookie."""
    response.del_cookie(COOKIE, path="/")


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
    """Set a cookie. A forged header of a proxy only makes it stricter."""
    secure = is_secure(request)
    response.set_cookie(name, value, max_age=seconds, path="/", httponly=True, samesite="Strict", secure=secure)


def is_secure(request: web.Request) -> bool:
    """Whether the browser uses TLS. A proxy that ends it says so in a header."""
    return request.secure or request.headers.get("X-Forwarded-Proto") == "https"


def _given(request: web.Request) -> str:
    """The session in the request's cookie, or an empty text. Raises HTTP 400."""
    given = request.cookies.get(COOKIE, "")
    try:
        given.encode()
    except UnicodeEncodeError:  # bytes that aiohttp could not decode
        raise web.HTTPBadRequest(text=f"the cookie {COOKIE} is not UTF-8; sign in again at /ui/sign-in") from None
    return given


def _seconds_left(session: str) -> int:
    """How long the session lasts; 0 or less if it is over or says no time."""
    end = session.split(".")[1]
    return int(end) - int(time.time()) if end.isascii() and end.isdecimal() and len(end) <= 12 else 0


def _signature(secret: bytes, signed: str) -> bytes:
    return hmac.new(secret, signed.encode(), hashlib.sha256).hexdigest().encode()


ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

TOLERANCE_SECONDS: Final = 300
REMEMBER_MS: Final = 3 * TOLERANCE_SECONDS * 1000
"""Longer than any signature is valid: from 5 minutes before its time to 5 minutes after, on pods whose clocks
differ."""

_VERSION: Final = "v1"
# An id has no full stop, because a full stop ends the id in the signed text; otherwise two ids could share one
# signature.
_SANE_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
_SANE_TIME: Final = re.compile(r"[0-9]{1,12}")


def _only(headers: CIMultiDictProxy[str], name: str) -> str:
    given = headers.getall(name, [])
    if len(given) != 1:
        raise Unauthorized(f"a signed request has the headers {ID}, {TIMESTAMP} and {SIGNATURE}, each once")
    return given[0]


class Proof:
    """A signature, checked while its body arrives: a hash for each key over the headers and what has arrived. Any
    key may have signed. `id` is the request's."""

    def __init__(self, headers: CIMultiDictProxy[str], keys: Iterable[bytes], now_seconds: float) -> None:
        """Raises Unauthorized if the headers cannot be a fresh signature."""
        self.id, timestamp, signatures = (_only(headers, name) for name in (ID, TIMESTAMP, SIGNATURE))
        if not _SANE_ID.fullmatch(self.id):
            raise Unauthorized(f"{ID}: expected 1 to 256 visible ASCII characters, none of them a full stop")
        if not _SANE_TIME.fullmatch(timestamp) or abs(now_seconds - int(timestamp)) > TOLERANCE_SECONDS:
            raise Unauthorized(f"{TIMESTAMP}: expected Unix seconds, at most {TOLERANCE_SECONDS} from now")
        signed = f"{self.id}.{timestamp}.".encode()
        self._given = [signature.encode("utf-8", "surrogateescape") for signature in signatures.split(" ")]
        self._hashes = [hmac.new(key, signed, hashlib.sha256) for key in keys]

    def update(self, part: bytes) -> None:
        """Hash the next part of the body."""
        for each in self._hashes:
            each.update(part)

    def holds(self) -> bool:
        """Whether one of the signatures was made with one of the keys over the headers and the body."""
        expected = [f"{_VERSION},".encode() + b64encode(each.digest()) for each in self._hashes]
        return any(hmac.compare_digest(one, other) for one in self._given for other in expected)
