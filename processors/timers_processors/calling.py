"""Owns one call to a URL: no redirect, no proxy, no cookie, and no more than the beginning of the answer."""

import asyncio
import hashlib
import hmac
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Final, Self

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

from timers.processor import DISTRIBUTION
from timers_processors.addresses import Guard
from timers_processors.targets import Targets, Unanswered

ANSWER_BYTES: Final = 1024
"""What is read and kept of an answer. The rest is not waited for."""

CONNECT_SECONDS: Final = 10.0
NAME_SECONDS: Final = 10
"""How long the addresses of a name are kept, so that many calls at once look it up once."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to be made."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """Whom it is for: what may be shown of the URL, whose path and query may be secret."""
        return self.url.host_port_subcomponent or ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `text` is the beginning of its body, `retry_after` the seconds it asks to wait, if any."""

    status: int
    reason: str
    text: str
    retry_after: float | None

    def __str__(self) -> str:
        said = f"{self.status} {self.reason}".rstrip()
        return f"{said}: {self.text}" if self.text else said


class Caller:
    """The connections of a pod to the targets of its web hooks."""

    def __init__(self, sessions: Mapping[str, ClientSession], guards: Mapping[str, Guard], targets: Targets) -> None:
        self._sessions, self._guards, self._targets = sessions, guards, targets

    @classmethod
    @asynccontextmanager
    async def opened(cls, guards: Mapping[str, Guard], targets: Targets) -> AsyncIterator[Self]:
        """One for as long as the context lasts. `guards` are those of `https` and `http`."""
        sessions = {scheme: _session(guard) for scheme, guard in guards.items()}
        try:
            yield cls(sessions, guards, targets)
        finally:
            await asyncio.gather(*(session.close() for session in sessions.values()))
            await asyncio.gather(*(guard.close() for guard in guards.values()))

    async def call(self, call: Call, seconds: float) -> Answer:
        """The answer, within so many seconds from when the target has room. Raises Forbidden, Busy, Broken, and
        Unanswered with what went wrong."""
        self._guards[call.url.scheme].check_literal(call.url.raw_host or "")
        async with self._targets.turn(call.target):
            try:
                async with asyncio.timeout(seconds):
                    return await self._answer(call)
            except TimeoutError:
                raise Unanswered(f"no answer within {seconds:g} s") from None
            except (ClientError, OSError) as error:
                raise Unanswered(f"{type(error).__name__}: {error}") from error

    async def _answer(self, call: Call) -> Answer:
        session = self._sessions[call.url.scheme]
        async with session.request(
            call.method, call.url, headers=call.headers, data=call.body or None, allow_redirects=False
        ) as response:
            text = await _beginning(response)
            return Answer(response.status, response.reason or "", text, _retry_after(response))


def _session(guard: Guard) -> ClientSession:
    return ClientSession(
        connector=TCPConnector(resolver=guard, limit=0, ttl_dns_cache=NAME_SECONDS),
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": f"{DISTRIBUTION}/{version(DISTRIBUTION)}", "Accept-Encoding": "identity"},
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,
    )


async def _beginning(response: ClientResponse) -> str:
    """The first kilobyte of the body; an answer that goes on is dropped with its connection."""
    kept = bytearray()
    while len(kept) < ANSWER_BYTES and (chunk := await response.content.read(ANSWER_BYTES - len(kept))):
        kept += chunk
    if not response.content.at_eof():
        response.close()
    return kept.decode(errors="replace").strip()


def _retry_after(response: ClientResponse) -> float | None:
    """Seconds, or a date; what is neither counts as nothing."""
    given = response.headers.get("Retry-After", "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def signature(keys: Iterable[bytes], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks (https://www.standardwebhooks.com), version 1: one signature by each key."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    made = [f"v1,{b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}" for key in keys]
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
    return {**headers, "webhook-signature": " ".join(made)} if made else headers
