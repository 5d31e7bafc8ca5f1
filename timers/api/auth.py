"""Owns who gets in and how far: from a request to a caller, from a caller to the calls and prefixes it may use."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from aiohttp import web
from structlog.contextvars import bound_contextvars

from timers.access import ANYBODY, Caller, KeyRing, Scope, read_entries
from timers.api import scope, signing
from timers.api.body import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, UNVERIFIED_BYTES, Unverified, keep_body
from timers.api.livekeys import LiveKeys
from timers.api.operations import DASHBOARD, PAGES, Operation, operation_of
from timers.api.origin import check_host, check_origin
from timers.api.session import Sessions, is_read_only
from timers.api.tracing import Handler
from timers.core.fields import check_id, is_prefix
from timers.errors import Denied, Forbidden, NotFound, RateLimited, Unauthorized, Unavailable
from timers.logs import get_logger
from timers.store.callers import Callers

_log = get_logger("timers.api")

_SIGNER: Final = Caller("signed", ANYBODY.scope, ANYBODY.rights)
"""Whoever has a signing secret may do everything that a signature can cover."""

_STRANGER: Final = Caller("", Scope(()), frozenset())
"""Sees no prefix, and may do nothing but what anybody may."""

READER_SECONDS: Final = 0.3
"""How long a probe or a scrape waits to know whose key it was sent with."""

_OF_ALL_PREFIXES: Final = frozenset(
    {"getMetrics", "acknowledgeLosses", "acknowledge", "serverPage", "keysPage", "makeKey", "revokeKey"}
)
"""What tells of all prefixes at once is only for keys that cover all."""

_WITHOUT_REDIS: Final = frozenset({"getMetrics", "getDashboard", *(page.id for page in PAGES if page.method == "GET")})
"""A pod is looked at most while Redis is away. It shows nothing new of Redis then, so the keys last known will do."""

_HOW: Final = "send Authorization: Bearer KEY, with a key that `timers keys make` has made"


@web.middleware
async def as_stranger(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask nobody for a key, and show nobody the prefixes of others."""
    scope.limit(request, _STRANGER)
    return await handler(request)


class Auth:
    """Lets requests through to the calls of the table. Without keys and secrets it lets everybody do everything."""

    def __init__(
        self,
        callers: Callers,
        api_keys: str | None = None,
        secrets: Iterable[str] = (),
        *,
        insecure: bool = False,
        unverified_bytes: int = UNVERIFIED_BYTES,
    ) -> None:
        """`api_keys` as in TIMERS_API_KEYS, None where it is not set; `secrets` as in TIMERS_SIGNING_SECRETS;
        `insecure` where the API is meant to be open under any name."""
        self._insecure = insecure
        self._unverified = Unverified(unverified_bytes)
        self._callers = callers
        self._keys = LiveKeys(callers, read_entries(api_keys or ""))
        self._signatures = signing.Signatures(secrets)
        self.sessions = Sessions(callers)
        self._closed = api_keys is not None or bool(self._signatures)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """401, 403, 404 or 429 for who may not; everybody else goes on, limited to the prefixes of the key."""
        operation = operation_of(request)
        if request.match_info.http_exception is not None or (operation is not None and operation.right is None):
            if operation is not None and operation.id == "getReadiness":
                scope.limit(request, await self._reader(request, operation))
            return await handler(request)
        if operation is None:
            raise Forbidden("this address is not in the table of calls, so no key opens it")
        try:
            caller = _reduced(await self._caller(request, operation), request, operation)
        except (Denied, NotFound) as error:
            _log_refusal(request, error)
            raise
        scope.limit(request, caller)
        if caller is ANYBODY:
            with self._unverified.reading(request):
                return await handler(request)
        with bound_contextvars(key=caller.id or None):
            await self._require(caller, request, operation)
            return await handler(request)

    async def _require(self, caller: Caller, request: web.Request, operation: Operation) -> None:
        """Raises where the caller may not make this call now."""
        try:
            await self._admit(caller)
            _check_prefix(caller, request)
            _check_right(caller, operation)
        except (Denied, NotFound) as error:
            _log_refusal(request, error)
            raise

    async def _caller(self, request: web.Request, operation: Operation) -> Caller:
        if "Authorization" not in request.headers and self._signatures and signing.is_signed(request.headers):
            return await self._signer(request, operation)
        ring = await self._ring(operation)
        if not self._closed and not self._keys.closed:
            return self._anybody(request)
        if operation.tag == DASHBOARD and "Authorization" not in request.headers:
            key_id = await self.sessions.key_id(request)
            caller = None if key_id is None else ring.named(key_id)
        else:
            caller = ring.find(_token(request))
        if caller is None:
            raise Unauthorized(f"the key is not known, or it was revoked; {_HOW}")
        return caller

    async def _reader(self, request: web.Request, operation: Operation) -> Caller:
        """Who asks for what anybody may ask for, to be told more where the key may read; a stranger in any doubt."""
        try:
            async with asyncio.timeout(READER_SECONDS):
                caller = await self._caller(request, operation)
        except Exception:  # noqa: BLE001 (a probe is answered, whatever is wrong with the key or with Redis)
            return _STRANGER
        return caller if "read" in caller.rights else _STRANGER

    async def owner_of(self, key: str) -> Caller | None:
        """Whose key this is; None for anything else. Raises Unavailable."""
        return (await self._keys.current()).find(key.encode("utf-8", "replace"))

    async def asks_for_keys(self) -> bool:
        """Whether anybody needs a key here. Raises Unavailable."""
        await self._keys.current()
        return self._closed or self._keys.closed

    def _anybody(self, request: web.Request) -> Caller:
        check_origin(request)
        if not self._insecure:
            check_host(request)
        return ANYBODY

    async def _ring(self, operation: Operation) -> KeyRing:
        if operation.id not in _WITHOUT_REDIS or not self._keys.known:
            return await self._keys.current()
        try:
            async with asyncio.timeout(READER_SECONDS):
                return await self._keys.current()
        except (Unavailable, TimeoutError):
            return self._keys.last

    async def _signer(self, request: web.Request, operation: Operation) -> Caller:
        claim = signing.Claim.read(request.headers, time.time())
        limit_bytes = BATCH_LIMIT_BYTES if operation.id == "createTimers" else BODY_LIMIT_BYTES
        proof = self._signatures.proof(claim)
        with self._unverified.reading(request, proof.update):
            await keep_body(request, limit_bytes)
        if not proof.holds():
            raise Unauthorized(f"{signing.SIGNATURE}: none was made with a known secret over this body")
        if not operation.body and operation.method != "GET":
            raise Forbidden("a signature covers the body, and what this call does is not in its body; use an API key")
        if not await self._callers.first_time(claim.id, signing.REMEMBER_MS):
            raise Unauthorized(f"{signing.ID}: this request was sent before; sign each with an id of its own")
        return _SIGNER

    async def _admit(self, caller: Caller) -> None:
        wait_ms = 0 if caller.rate is None else await self._callers.wait_ms(caller.id, caller.rate)
        if wait_ms:
            raise RateLimited(f"more calls than the rate of key {caller.id} allows; the next in {wait_ms} ms", wait_ms)


def _log_refusal(request: web.Request, error: Exception) -> None:
    """Whoever looks for a break-in wants to see the tries."""
    _log.info("request refused", reason=str(error), method=request.method, path=request.path, peer=request.remote)


def _reduced(caller: Caller, request: web.Request, operation: Operation) -> Caller:
    """The caller as its browser has asked to be taken."""
    if operation.tag == DASHBOARD and is_read_only(request):
        return replace(caller, rights=caller.rights & {"read"})
    return caller


def _token(request: web.Request) -> bytes:
    """The key that was sent. Raises Unauthorized."""
    given = request.headers.getall("Authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise Unauthorized(f"a key is needed; {_HOW}")
    return token.strip().encode("utf-8", "surrogateescape")


def _check_prefix(caller: Caller, request: web.Request) -> None:
    """Raises NotFound for another's prefix in the address, in the words for a timer that does not exist. What is no
    prefix is refused by the call itself, with all else that is wrong."""
    prefix, timer_id = request.match_info.get("prefix"), request.match_info.get("id")
    if prefix is None or not is_prefix(prefix) or caller.scope.covers(prefix):
        return
    if timer_id is None:
        raise scope.nothing_of(prefix)
    raise NotFound(f"timer {prefix}:{check_id(timer_id)} does not exist")


def _check_right(caller: Caller, operation: Operation) -> None:
    if operation.right not in caller.rights:
        raise Forbidden(f"this call needs the right {operation.right!r}, which key {caller.id} has not")
    if operation.id in _OF_ALL_PREFIXES and not caller.scope.is_everything:
        raise Forbidden(f"this call tells of all prefixes, and key {caller.id} does not cover all")
