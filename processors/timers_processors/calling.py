"""Owns one call to a URL (no redirects, proxies or cookies; reads only the beginning of the answer) and its result."""

import asyncio
import hashlib
import hmac
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Self

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerTimeoutError,
    StreamReader,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from yarl import URL

from timers import Fail, Retry
from timers.processor import DISTRIBUTION
from timers_processors.addresses import GuardedResolver, Lookup, matcher
from timers_processors.targets import Targets, Unanswered, later

ANSWER_BYTES: Final = 1024
"""How much of an answer is read and kept. Nothing waits for the rest."""

RECEIVED_BYTES: Final = 1024 * 1024
"""The most bytes that are taken in for an answer, heads and framing included. Reading stops far below this unless the
target sends something endless that is no body: interim answers, or extensions of a chunk."""

CONNECT_SECONDS: Final = 10.0
NAME_SECONDS: Final = 10
"""How long the addresses of a name are cached, so that many calls at once need one look-up."""

WAIT_AT_MOST_SECONDS: Final = 86_400.0
"""A longer Retry-After is cut to this."""

ANYWHERE: Final = ("0.0.0.0/0", "::/0")
"""For addresses that the operator has configured, which may be private."""

_TRY_AGAIN: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """The host and port, which may be shown. The path and query may be secret."""
        return self.url.host_port_subcomponent or ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. `text` is the beginning of its body, `retry_after` the seconds it asks to wait, if any."""

    status: int
    reason: str
    text: str
    retry_after: float | None

    def __str__(self) -> str:
        said = f"{self.status} {self.reason}".rstrip()
        return f"{said}: {self.text[:ANSWER_BYTES]}" if self.text else said


class HttpClient:
    """The connections of a pod to the targets of its webhooks."""

    def __init__(
        self, sessions: Mapping[str, ClientSession], guards: Mapping[str, GuardedResolver], targets: Targets
    ) -> None:
        self._sessions, self._guards, self._targets = sessions, guards, targets

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, allow: Iterable[str], deny: Iterable[str], targets: Targets, lookup: Lookup = socket.getaddrinfo
    ) -> AsyncIterator[Self]:
        """A caller for as long as the context lasts. `allow` are hosts and networks that it may call besides what is
        public and reached by https, and `deny` those that it may not."""
        known = matcher(allow), matcher(deny), lookup
        guards = {scheme: GuardedResolver(*known, https=scheme == "https") for scheme in ("https", "http")}
        sessions = {scheme: _session(guard) for scheme, guard in guards.items()}
        try:
            yield cls(sessions, guards, targets)
        finally:
            await asyncio.gather(*(session.close() for session in sessions.values()))
            await asyncio.gather(*(guard.close() for guard in guards.values()))

    async def call(self, call: Call, seconds: float, keep_bytes: int = ANSWER_BYTES) -> HttpAnswer:
        """Make the call and return the answer, within `seconds` from when the target has room. Raises Fail if the
        address may not be called, and Retry if there was no answer. If the target had no room, the Retry is a
        snooze."""
        async with self._targets.turn(call.target):
            try:
                self._guards[call.url.scheme].check_literal(call.url.raw_host or "")
                async with asyncio.timeout(seconds):
                    return await self._answer(call, keep_bytes)
            except ServerTimeoutError:  # which is a TimeoutError and names the URL
                raise Unanswered(f"no connection within {CONNECT_SECONDS:g} s") from None
            except TimeoutError:
                raise Unanswered(f"no answer within {seconds:g} s") from None
            except (ClientError, OSError) as error:
                raise Unanswered(_why(error)) from error
            except ValueError:  # of the client, before it sends anything; its text shows some of the password
                raise Fail(
                    "url: its user and password cannot be sent, or the headers have an Authorization beside them"
                ) from None

    async def _answer(self, call: Call, keep_bytes: int) -> HttpAnswer:
        session = self._sessions[call.url.scheme]
        async with session.request(
            call.method, call.url, headers=call.headers, data=call.body or None, allow_redirects=False
        ) as response:
            text = await _beginning(response, keep_bytes)
            return HttpAnswer(response.status, response.reason or "", text, _retry_after(response))


class _BoundedAnswers(ResponseHandler):
    """A connection that drops interim answers (100, 102, 103) and breaks off after RECEIVED_BYTES of an answer. A
    target that sends such answers without end would otherwise keep the event loop busy and fill the memory."""

    def set_response_params(self, **params: Any) -> None:
        self._left = RECEIVED_BYTES
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left >= 0:
            super().data_received(data)
            return
        error = ClientPayloadError(f"more than {RECEIVED_BYTES} bytes that are no body")
        self.set_exception(error)
        if self._payload is not None:
            self._payload.set_exception(error)
        if self.transport is not None:
            self.transport.abort()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if data[0].code >= 200 or data[0].code == 101:
            super().feed_data(data, size)


def _session(guard: GuardedResolver) -> ClientSession:
    connector = TCPConnector(resolver=guard, limit=0, ttl_dns_cache=NAME_SECONDS, ssl=ssl.create_default_context())
    # aiohttp has no public way to limit what a connection takes in.
    connector._factory = partial(_BoundedAnswers, loop=asyncio.get_running_loop())  # type: ignore[assignment]
    return ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": f"{DISTRIBUTION}/{version(DISTRIBUTION)}", "Accept-Encoding": "identity"},
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,
    )


def _why(error: Exception) -> str:
    """What went wrong, without the whole URL."""
    match error:
        case ClientResponseError():
            return f"not HTTP: {error.message}"
        case ClientConnectorCertificateError():
            return f"{type(error).__name__}: {error.certificate_error}"
        case ClientConnectorError():
            return f"{type(error).__name__}: {error.os_error}"
    return f"{type(error).__name__}: {error}"


async def _beginning(response: ClientResponse, keep_bytes: int) -> str:
    """The first `keep_bytes` of the body, as text. If there is more, the connection is closed."""
    kept = bytearray()
    while len(kept) < keep_bytes and (chunk := await response.content.read(keep_bytes - len(kept))):
        kept += chunk
    if not response.content.at_eof():
        response.close()
    return kept.decode(errors="replace").strip()


def _retry_after(response: ClientResponse) -> float | None:
    """The wait that a 429 or 503 asks for, as a number or a date, by the receiver's clock if it says its time; None for
    anything else."""
    given = response.headers.get("Retry-After", "").strip() if response.status in (429, 503) else ""
    try:
        if given.isascii() and given.isdigit():
            seconds = float(given[:9])
        else:
            seconds = _epoch(given) - (_epoch(response.headers["Date"]) if "Date" in response.headers else time.time())
    except (ValueError, OverflowError):
        return None
    return min(later(max(seconds, 1.0)), WAIT_AT_MOST_SECONDS)


def _epoch(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


def accepted(call: Call, answer: HttpAnswer, *, fails_on_4xx: bool) -> str:
    """What a 2xx answer said. Raises Fail for an answer that another try would not change, and Retry for any other."""
    said = f"{call.target} answered {answer}"
    if 200 <= answer.status < 300:
        return said
    if answer.status in _TRY_AGAIN or answer.status >= 500:
        raise Retry(said, after=answer.retry_after)
    if answer.status < 400:
        raise Fail(f"{said} (redirects are not followed)")
    if answer.status == 410 or fails_on_4xx:
        raise Fail(said)
    raise Retry(said)


def digest(idempotency_key: str) -> str:
    """128 bits of the key's SHA-256, where the key may be too long or have other characters than are allowed."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]


def signature(keys: Iterable[bytes], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks (https://www.standardwebhooks.com), version 1, with one signature for each
    key."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    made = [f"v1,{b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}" for key in keys]
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
    return {**headers, "webhook-signature": " ".join(made)} if made else headers
