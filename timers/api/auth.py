"""Owns who may call and how far: it finds the caller of a request, and the calls and prefixes that the caller may
use."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler
from structlog.contextvars import bound_contextvars

from timers.access import ANYBODY, ApiKey, read_entries, with_secret
from timers.api import credentials
from timers.api.credentials import Sessions, is_read_only
from timers.api.operations import DASHBOARD, Operation, operation_of
from timers.api.requests import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, UNVERIFIED_BYTES, Unverified, keep_body
from timers.client import TimerClient
from timers.core.answers import PodAnswer
from timers.core.fields import check_id, is_prefix
from timers.core.policies import Rate
from timers.errors import (
    Denied,
    Forbidden,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    RateLimited,
    Unauthorized,
    Unavailable,
    shown,
)
from timers.logs import get_logger
from timers.setting_values import signing_key
from timers.store.callers import REVOKED, Callers, Quota
from timers.store.cooperative import CachedRead
from timers.store.filters import Visible
from timers.store.starts import quantiles_ms

if TYPE_CHECKING:
    from timers.ledger.database import Database

_SAFE_METHODS: Final = ("GET", "HEAD")
_NOBODYS: Final = (".localhost", ".internal", ".local")
"""Names that no registrar sells (RFC 6761, RFC 6762, ICANN for `.internal`)."""


def check_host(request: web.Request) -> None:
    """Raises Denied for a host name that somebody's DNS may have pointed at this machine (DNS rebinding). Addresses
    are safe. So are names without a dot and names with these endings, because nobody can register them."""
    given = request.headers.get("Host")
    if given is None or _cannot_be_registered(given):
        return
    raise Denied(
        f"this API is open only to this machine, and {shown(given)} may be anybody's name for it; use localhost, "
        "set TIMERS_API_KEYS, or TIMERS_INSECURE=1"
    )


def check_origin(request: web.Request) -> None:
    """Raises Denied if a page of another site asks for a change."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in _SAFE_METHODS or _parts(origin).netloc == request.host:
        return
    raise Denied("a page of another site may change nothing here; set TIMERS_API_KEYS and send a key")


@lru_cache(maxsize=256)  # the clients of one API use only a few names for it
def _cannot_be_registered(given: str) -> bool:
    host = _parts(f"//{given}").hostname or "."
    return "." not in host or host.endswith(_NOBODYS) or _address(host) is not None


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


_CALLER: Final = web.RequestKey("caller", ApiKey)
"""Once it is set, the request touches only the caller's prefixes, and arms only as many timers as the caller may
have."""


def caller_of(request: web.Request) -> ApiKey | None:
    """The caller, or None if the request was not asked for one."""
    return request.get(_CALLER)


def acting(client: TimerClient, request: web.Request) -> TimerClient:
    """The client, so that changes are made in the name of the request's key and within its quota."""
    caller = request[_CALLER]
    most = caller.most_prefixes
    within = None if most is None else Quota(caller.options.get("pending"), caller.prefixes, most)
    return client.acting(caller.name or None, within, caller.sees)


def prefixes_of(request: web.Request) -> tuple[str, ...]:
    """What the caller's key covers."""
    return request[_CALLER].prefixes


def visible_to(request: web.Request) -> Visible | None:
    """The prefixes that the request may see, or None if it may see all."""
    return request[_CALLER].sees


def require_visible(request: web.Request, prefix: str) -> None:
    """Raises NotFound for a prefix that the request may not touch, and tells no more than that."""
    if not request[_CALLER].covers(prefix):
        raise nothing_of(prefix)


UNKNOWN_LATENESS: Final = quantiles_ms({})
"""Replaces a lateness that includes prefixes which the caller may not see."""


def as_seen_by(visible: Visible | None, pod: PodAnswer) -> PodAnswer:
    """A pod as shown to a caller that may see only some prefixes: with only these, and without figures over all
    prefixes."""
    if visible is None:
        return pod
    serves, only = ([prefix for prefix in some if visible(prefix)] for some in (pod["serves"], pod["only"]))
    return {**pod, "serves": serves, "only": only, "running": None, "lateness_ms": UNKNOWN_LATENESS}


def nothing_of(prefix: str) -> NotFound:
    """The error for a prefix that the request may not touch."""
    return NotFound(f"there is nothing of the prefix {shown(prefix)} that this caller may touch")


_log = get_logger("timers.api")

_SIGNER: Final = ApiKey("signed", ANYBODY.prefixes, ANYBODY.rights)
"""Anybody with a signing secret may do everything that a signature can cover."""

_ANONYMOUS: Final = ApiKey("", (), frozenset())
"""A caller that sees no prefix and may do only what anybody may do."""

FRESH_SECONDS: Final = 1.0
"""How long the keys read from Redis count. Every pod learns of a new or a revoked key within this time. A stream
looks again now and then (`stream.LOOK_SECONDS`), so it ends within two seconds."""

LAST_READ_SECONDS: Final = 60.0
"""On a cluster, how long the keys read last count while their node is away: longer than a failover takes. Nobody can
revoke a key meanwhile, unless it is only from here that the node is out of reach."""

SIGN_INS: Final = Rate(1_000_000, 20)
"""Attempts to sign in from one address, over all pods: one a second, 20 at once. All who come through a proxy share
its address."""

SIGN_INS_OF_ALL: Final = Rate(100_000, 100)
"""Attempts to sign in from everywhere, over all pods: ten a second, 100 at once."""

READER_SECONDS: Final = 0.3
"""How long a probe or a scrape waits to find out whose key it carries, and a caller for the ledger's word on that."""

_HOW: Final = "send Authorization: Bearer KEY, with a key that `timers keys make` has made"


@web.middleware
async def anonymous(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask nobody for a key, and show nobody the prefixes of others."""
    request[_CALLER] = _ANONYMOUS
    return await handler(request)


class Auth:
    """Lets requests through to the calls in the table. Without keys and secrets, everybody may do everything."""

    def __init__(
        self,
        callers: Callers,
        api_keys: str | None = None,
        secrets: Iterable[str] = (),
        *,
        insecure: bool = False,
        ledger: "Database | None" = None,
        unverified_bytes: int = UNVERIFIED_BYTES,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        """`api_keys` is the text of TIMERS_API_KEYS, or None if that is not set. `secrets` are those of
        TIMERS_SIGNING_SECRETS. `insecure` means that the API is open on purpose, under any host name. A ledger takes
        new timers while Redis is down. Keys in Redis are read again after `fresh_seconds`."""
        self._insecure, self._ledger = insecure, ledger
        self._unverified = Unverified(unverified_bytes)
        self.callers = callers
        self._configured = read_entries(api_keys or "")
        self._keys = CachedRead(self._read_keys, fresh_seconds)
        self._was_closed = CachedRead(callers.closed, 0.0)
        self._kept: Set[str] = frozenset()
        self._ever_kept, self._lacks_keys = False, ledger is not None
        self._signing_keys = tuple(map(signing_key, secrets))
        self.sessions = Sessions(callers)
        self._closed = api_keys is not None or bool(self._signing_keys)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse callers without access with 401, 403, 404 or 429. Limit all others to the prefixes of their key."""
        operation = operation_of(request)
        if request.match_info.http_exception is not None or (operation is not None and operation.right is None):
            if operation is not None and operation.id == "getReadiness":
                request[_CALLER] = await self._reader(request, operation)
            with self._unverified.reading(request):
                return await handler(request)
        if operation is None:
            raise Denied("this path is not a call, so no key opens it")
        try:
            caller = _read_only_if_asked(await self._caller(request, operation), request, operation)
            request[_CALLER] = caller
            if caller is not ANYBODY:
                await self._check_rate(caller)
                _check_prefix(caller, request)
                _check_right(caller, operation)
        except (Denied, NotFound) as error:
            _log_refusal(request, error)
            raise
        with self._unverified.reading(request) if caller is ANYBODY else bound_contextvars(key=caller.id or None):
            return await handler(request)

    async def _caller(self, request: web.Request, operation: Operation) -> ApiKey:
        if "Authorization" not in request.headers and self._signing_keys and credentials.SIGNATURE in request.headers:
            return await self._signer(request, operation)
        keys = await self._known(operation)
        if not self._closed and not self._ever_kept:
            check_origin(request)
            if not self._insecure:
                check_host(request)
            return ANYBODY
        key_id = None
        if operation.tag == DASHBOARD and "Authorization" not in request.headers:
            patience_seconds = READER_SECONDS if operation.works_without_redis else None
            key_id = await self.sessions.key_id(request, patience_seconds=patience_seconds)

        def caller_in(keys: Mapping[str, ApiKey]) -> ApiKey | None:
            return with_secret(_token(request), keys) if key_id is None else keys.get(key_id)

        caller = caller_in(keys)
        if caller is None and not self._goes_on(operation):
            caller = caller_in(await self._keys.get())  # the key may be newer than what was read last
        if caller is None:
            self._require_all_keys()
            raise Unauthorized(f"the key is not known, or it was revoked; {_HOW}")
        return caller

    def _require_all_keys(self) -> None:
        """Raises Unavailable while an unknown key may be one that the ledger has and Redis has lost."""
        if self._lacks_keys:
            raise Unavailable("no pod has restored the API keys from the ledger yet", nothing_done=True)

    async def _reader(self, request: web.Request, operation: Operation) -> ApiKey:
        """The caller of a call that anybody may make, because a key that may read is told more. In any doubt, an
        anonymous caller."""
        try:
            async with asyncio.timeout(READER_SECONDS):
                caller = await self._caller(request, operation)
        except Exception:  # noqa: BLE001 (a probe gets an answer, whatever is wrong with the key or Redis)
            return _ANONYMOUS
        return caller if "read" in caller.rights else _ANONYMOUS

    async def still_lets(self, request: web.Request) -> bool:
        """Whether a call that goes on, such as a stream, would be let through again, as the same caller. While Redis
        is down nobody knows, and the call goes on."""
        caller, operation = caller_of(request), operation_of(request)
        if operation is None or caller is _SIGNER:
            return True
        try:
            now = _read_only_if_asked(await self._caller(request, operation), request, operation)
        except Unavailable:
            return True
        except Denied:
            return False
        return now == caller

    async def admit_sign_in(self, address: str | None) -> None:
        """Count an attempt to sign in. Raises RateLimited if too many come from the address, or from everywhere."""
        for name, rate in ((f"sign-in:{_network(address)}", SIGN_INS), ("sign-in:", SIGN_INS_OF_ALL)):
            if wait_ms := await self.callers.wait_ms(name, rate):
                raise RateLimited(f"too many attempts to sign in; try again in {wait_ms} ms", wait_ms)

    async def owner_of(self, key: str) -> ApiKey | None:
        """The owner of this key, or None for any other text. Raises Unavailable."""
        owner = with_secret(key.encode("utf-8", "replace"), await self._keys.get())
        if owner is None:
            self._require_all_keys()
        return owner

    async def asks_for_keys(self) -> bool:
        """Whether callers need a key here. Raises Unavailable."""
        await self._keys.get()
        return self._closed or self._ever_kept

    def _goes_on(self, operation: Operation) -> bool:
        """Whether the call works while Redis is away, with the keys read last."""
        return operation.works_without_redis or (operation.arms and self._ledger is not None)

    async def _known(self, operation: Operation) -> Mapping[str, ApiKey]:
        last = self._keys.last
        if last is None or not self._goes_on(operation):
            read = self._keys
            return await (read.known(oldest_seconds=LAST_READ_SECONDS) if self.callers.are_apart else read.get())
        try:
            async with asyncio.timeout(READER_SECONDS):
                return await self._keys.get()
        except (Unavailable, TimeoutError):
            return last

    async def _read_keys(self) -> Mapping[str, ApiKey]:
        """The keys that are valid now: those in the settings and those in Redis, without the revoked ones. Raises
        Unavailable: without Redis nobody knows whether a key is revoked. While the db's own key is away, no first key
        can be kept."""
        kept = await self.callers.entries()
        if self._lacks_keys or (self._ledger is not None and self._kept - kept.keys()):
            are_lost = await self._are_lost()  # asked before they are read, because they come before it says no
            kept = await self.callers.entries()
            self._lacks_keys = are_lost or bool(self._kept and not kept)
        configured = [key for key in self._configured if kept.get(key.id) != REVOKED]
        if self._kept and not kept:
            _log.error("the API keys are gone from Redis; the API stays closed", to_do="timers keys make")
        self._kept, self._ever_kept = kept.keys(), await self._was_closed.known()
        return {key.id: key for key in [*_parsed(kept), *configured]}

    async def _are_lost(self) -> bool:
        """Whether the ledger has keys that Redis has lost, or may have them."""
        if self._ledger is None or not await self.callers.are_lost():
            return False
        from timers.ledger.facts import has_keys  # noqa: PLC0415 (what it needs is an extra)

        with suppress(LedgerUnavailable, TimeoutError):
            async with asyncio.timeout(READER_SECONDS):
                return await self._ledger.do(has_keys, writes=False)
        return True

    async def _signer(self, request: web.Request, operation: Operation) -> ApiKey:
        proof = credentials.Proof(request.headers, self._signing_keys, time.time())
        limit_bytes = BATCH_LIMIT_BYTES if operation.id == "createTimers" else BODY_LIMIT_BYTES
        with self._unverified.reading(request, proof.update):
            await keep_body(request, limit_bytes)
        if not proof.holds():
            raise Unauthorized(f"{credentials.SIGNATURE}: no signature was made over this body with a known secret")
        if not operation.body and operation.method != "GET":
            raise Denied("a signature covers only the body, which does not say what this call does; use an API key")
        if not await self.callers.first_time(proof.id, credentials.REMEMBER_MS):
            raise Unauthorized(f"{credentials.ID}: a request with this id was sent before; sign each with a new id")
        return _SIGNER

    async def _check_rate(self, caller: ApiKey) -> None:
        wait_ms = 0 if caller.rate is None else await self.callers.wait_ms(caller.id, caller.rate)
        if wait_ms:
            raise RateLimited(f"key {caller.id} exceeds its rate of calls; try again in {wait_ms} ms", wait_ms)


AUTH: Final = web.AppKey("auth", Auth)
"""An application's own."""


def _network(address: str | None) -> str:
    """The address, or for IPv6 its /64, which one subscriber has."""
    found = _address(address or "")
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(IPv6Network((int(found), 64), strict=False))
    return (address or "") if found is None else str(found)


def _parsed(kept: Mapping[str, str]) -> list[ApiKey]:
    """Parse the keys. An entry that cannot be read opens nothing and does not affect the others."""
    found: list[ApiKey] = []
    for key_id, entry in kept.items():
        try:
            if entry != REVOKED:
                found.append(ApiKey.parse(entry))
        except InvalidInput as error:
            _log.warning("a stored API key cannot be read", key=key_id, reason=str(error))
    return [key for key in found if key.id in kept]


def _log_refusal(request: web.Request, error: Exception) -> None:
    """Log refused requests, for anybody who looks for a break-in; with the key, if that is known."""
    caller = caller_of(request)
    with bound_contextvars(**({} if caller is None else {"key": caller.id or None})):
        _log.info("request refused", reason=str(error), method=request.method, path=request.path, peer=request.remote)


def _read_only_if_asked(caller: ApiKey, request: web.Request, operation: Operation) -> ApiKey:
    """The caller with its rights reduced to reading, if its browser asked for that."""
    if operation.tag == DASHBOARD and is_read_only(request):
        return replace(caller, rights=caller.rights & {"read"})
    return caller


def _token(request: web.Request) -> bytes:
    """The key in the request. Raises Unauthorized."""
    given = request.headers.getall("Authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise Unauthorized(f"a key is needed; {_HOW}")
    return token.strip().encode("utf-8", "surrogateescape")


def _check_prefix(caller: ApiKey, request: web.Request) -> None:
    """Raises NotFound if the address has a prefix of others, in the same words as for a timer that does not exist. The
    call itself refuses an invalid prefix, together with every other mistake."""
    prefix, timer_id = request.match_info.get("prefix"), request.match_info.get("id")
    if prefix is None or not is_prefix(prefix) or caller.covers(prefix):
        return
    if timer_id is None:
        raise nothing_of(prefix)
    raise NotFound(f"timer {prefix}:{check_id(timer_id)} does not exist")


def _check_right(caller: ApiKey, operation: Operation) -> None:
    if operation.right not in caller.rights:
        raise Forbidden(f"this call needs the right {operation.right!r}, which key {caller.id} lacks")
    if operation.of_all and caller.sees is not None:
        raise Forbidden(f"this call covers all prefixes, but key {caller.id} does not")
