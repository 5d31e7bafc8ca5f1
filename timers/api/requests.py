"""Owns requests: how one can be followed, how long it may take, and reading it: JSON bodies within limits, and query
parameters."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.operations import JSON, operation_of
from timers.core.fields import StrictModel, check_traceparent, decode
from timers.errors import Busy, FieldError, InvalidInput, LedgerUnavailable, TimersError, Unavailable, both, shown
from timers.logs import request_id

Query = TypeVar("Query", bound=StrictModel)
Spec = TypeVar("Spec")

REQUEST_ID: Final = "X-Request-Id"

_random: Final = Random()  # noqa: S311 (an id, not a secret)

_SANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+=-]{0,127}")


def new_id() -> str:
    """96 random bits, so two requests practically never share an id."""
    return f"{_random.getrandbits(96):024x}"


@web.middleware
async def follow(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request the id that it brings, if that is sane, or else a new one."""
    given = request.headers.get(REQUEST_ID)
    name = given if given is not None and _SANE.fullmatch(given) else new_id()
    outer = request_id.set(name)  # the next request on the same connection runs in the same context
    try:
        response = await handler(request)
    finally:
        request_id.reset(outer)
    if not response.prepared:
        response.headers[REQUEST_ID] = name
    return response


def traceparent_of(request: web.Request) -> str | None:
    """The trace of the request (W3C Trace Context §3.2). A malformed one counts as none, as the standard asks."""
    given = request.headers.getall("traceparent", [])
    try:
        return check_traceparent(given[0]) if len(given) == 1 else None
    except InvalidInput:
        return None


REQUEST_SECONDS: Final = 10.0
"""From the last byte of the request to the answer. One Redis command may take half of it."""


class Deadlines:
    """The deadlines of an application's requests. They share one timer of the loop, set to the first deadline; that
    request has usually ended by then. An `asyncio.timeout` for each request would cost a twentieth of a create."""

    def __init__(self, seconds: float = REQUEST_SECONDS, ledger: Callable[[], frozenset[str]] = frozenset) -> None:
        """`ledger` tells the ids of the requests that wait for the ledger."""
        self._seconds, self._ledger = seconds, ledger
        self._running: dict[asyncio.Task[Any], float] = {}
        """When the requests' deadlines expire, by the loop's clock."""
        self._expired: dict[asyncio.Task[Any], frozenset[str]] = {}
        """The requests that waited for the ledger when each deadline was over."""
        self._next_expiry: asyncio.TimerHandle | None = None

    @web.middleware
    async def answer_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 503 to a request that takes too long."""
        operation = operation_of(request)
        # Streams have no end. Public calls do not wait for Redis, except readiness, which has its own time limit.
        if operation is not None and (operation.right is None or operation.is_endless):
            return await handler(request)
        task, request[_DEADLINES] = request.task, self
        cancelled_before = task.cancelling()
        self.begin(task)
        try:
            return await handler(request)
        except (asyncio.CancelledError, TimeoutError) as error:
            # Others may have cancelled the request too; their cancellation continues.
            is_ours = task in self._expired and task.cancelling() - 1 <= cancelled_before
            if isinstance(error, asyncio.CancelledError) and not is_ours:
                raise
            raise self._late(request, self._expired.get(task, frozenset())) from None
        finally:
            self.end(task)
            if task in self._expired:
                del self._expired[task]
                task.uncancel()

    def _late(self, request: web.Request, waiting: frozenset[str]) -> TimersError:
        """Names what did not answer. A write may wait for the ledger in the access of another request: callers at the
        same time share commits."""
        within = f"did not answer within {self._seconds:g} seconds"
        if request_id.get() in waiting or (waiting and request.method not in ("GET", "HEAD")):
            return LedgerUnavailable(f"the ledger {within}")
        return Unavailable(f"Redis {within}")

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Start the deadline of a request, or start it anew."""
        self._running[task] = at = task.get_loop().time() + self._seconds
        if self._next_expiry is None:
            self._next_expiry = task.get_loop().call_at(at, self._expire_due)

    def end(self, task: asyncio.Task[Any]) -> None:
        """Stop the deadline of a request."""
        self._running.pop(task, None)

    def _expire_due(self) -> None:
        """Cancel the requests whose deadlines are over, and come again when the next one is."""
        self._next_expiry, loop = None, asyncio.get_running_loop()
        now, waiting = loop.time(), self._ledger()
        for task in [task for task, at in self._running.items() if at <= now]:
            self.end(task)
            self._expired[task] = waiting
            task.cancel()
        if self._running:
            self._next_expiry = loop.call_at(min(self._running.values()), self._expire_due)


_DEADLINES: Final = web.RequestKey("deadlines", Deadlines)


@contextmanager
def not_counting(request: web.Request) -> Iterator[None]:
    """Do not count the time within this context. It is the client's, and has its own deadline."""
    deadlines = request.get(_DEADLINES)
    if deadlines is None:
        yield
        return
    deadlines.end(request.task)
    try:
        yield
    finally:
        deadlines.begin(request.task)


BODY_LIMIT_BYTES: Final = 256 * 1024
"""The limit for one timer. Its payload may have 64 KiB, and three times that if each character beyond ASCII is
escaped."""

BATCH_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""The limit for a batch: 8 KiB for each of 1,000 timers."""

UNVERIFIED_BYTES: Final = 32 * 1024 * 1024
"""How much a pod holds at a time of bodies from unknown callers: those without a key, and those whose signature is not
checked yet."""

UNCOUNTED_BYTES: Final = 64 * 1024
"""The first bytes of each body, which do not count. A connection's own buffer takes as much, and most bodies are no
longer. So nobody can keep such bodies out by sending large ones."""

READ_SECONDS: Final = 20.0
"""How long a body may take to arrive."""

_KEPT: Final = web.RequestKey("body", bytes)

Take = Callable[[bytes], None]
"""Gets each part of a body."""

_TAKE: Final = web.RequestKey[Take]("take")


class Unverified:
    """Counts the bytes of bodies that a pod holds for unknown callers."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._held = limit_bytes, 0

    @contextmanager
    def reading(self, request: web.Request, hear: Take | None = None) -> Iterator[None]:
        """The request's body counts until the context ends. `hear` gets each part of it. Reading raises Busy if a pod
        holds too many bytes."""
        read = counted = 0

        def take(part: bytes) -> None:
            nonlocal read, counted
            read += len(part)
            more = read - UNCOUNTED_BYTES - counted
            if more > 0:
                self._hold(more)
                counted += more
            if hear is not None:
                hear(part)

        request[_TAKE] = take
        try:
            yield
        finally:
            self._held -= counted

    def _hold(self, more: int) -> None:
        if self._held + more > self._limit_bytes:
            raise Busy(
                f"this pod holds {self._held} bytes of bodies from unknown senders, of at most {self._limit_bytes}; "
                "try again soon, or send a key"
            )
        self._held += more


async def read_json(
    request: web.Request, *, types: tuple[str, ...] = (JSON,), limit_bytes: int = BODY_LIMIT_BYTES
) -> Any:
    """Read the body as JSON. Raises HTTP 400, 408, 413 or 415 if it is not JSON, too slow, too large or of another
    type."""
    media_type(request, types)
    try:
        return decode(await read_bytes(request, limit_bytes))
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from None


async def refuse_body(request: web.Request) -> None:
    """Refuse a body for a call that takes none. Only an empty body or `{}` passes; anything else would be ignored
    silently."""
    raw = (await read_bytes(request, BODY_LIMIT_BYTES)).strip()
    if raw not in (b"", b"{}"):
        raise InvalidInput.of("", raw.decode(errors="replace"), "no body; this call takes no fields")


async def read_bytes(request: web.Request, limit_bytes: int) -> bytes:
    """Read the body, and give up as soon as it passes the limit. Raises HTTP 400, 408 or 413, or Busy."""
    kept: bytes | None = request.get(_KEPT)
    if kept is None:
        if request.content.is_eof() and request.content.exception() is None:
            # A small body comes with the headers. There is nothing to wait for, so this needs no deadline.
            body = request.content.read_nowait()
            _check_size(len(body), limit_bytes)
            if (take := request.get(_TAKE)) is not None:
                take(body)
            return body
        with not_counting(request):
            return await _receive(request, limit_bytes)
    _check_size(len(kept), limit_bytes)
    return kept


async def keep_body(request: web.Request, limit_bytes: int) -> None:
    """Read the body as `read_bytes` does, and keep it for the call itself."""
    request[_KEPT] = await read_bytes(request, limit_bytes)


async def _receive(request: web.Request, limit_bytes: int) -> bytes:
    _check_size(request.content_length or 0, limit_bytes)
    body, take = bytearray(), request.get(_TAKE)
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                _check_size(len(body), limit_bytes)
                if take is not None:
                    take(chunk)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {READ_SECONDS:g} seconds") from None
    except (ConnectionError, web.RequestPayloadError) as error:
        raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from None
    return bytes(body)


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        said = f"the body is too large; at most {limit_bytes} bytes are accepted"
        raise web.HTTPRequestEntityTooLarge(limit_bytes, text=said)


TYPE_CHARACTERS: Final = 256
"""The longest Content-Type that is parsed. With one of 8 KB that takes up to a second, or nests too deeply."""


def media_type(request: web.Request, types: tuple[str, ...]) -> str:
    """The body's media type, which is one of those accepted. Raises HTTP 415."""
    given = request.headers.get("Content-Type", "nothing")
    if given in types and "Content-Encoding" not in request.headers:
        return given
    accepted = " or ".join(types)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text="a compressed body is not accepted; send it as it is")
    if len(given) > TYPE_CHARACTERS or request.content_type not in types or "Content-Type" not in request.headers:
        raise web.HTTPUnsupportedMediaType(text=f"Content-Type is {shown(given)}; send {accepted}")
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise web.HTTPUnsupportedMediaType(text=f"charset {shown(request.charset)} is not accepted; JSON is UTF-8")
    return request.content_type


def read_query(request: web.Request, model: type[Query]) -> Query:
    """Read the query parameters as a model. Parameters that come several times become lists. InvalidInput names every
    parameter that is not accepted."""
    sent = request.rel_url.query
    given = {name: values if len(values := sent.getall(name)) > 1 else values[0] for name in sent}
    known = {name: value for name, value in given.items() if name in model.model_fields}
    _, query = both(lambda: _refuse_unknown(tuple(model.model_fields), given), lambda: model.parse(known))
    return query


def refuse_query(request: web.Request) -> None:
    """Refuse query parameters for a call that takes none, because a misspelt one must not be ignored. Raises
    InvalidInput."""
    if request.rel_url.raw_query_string:
        _refuse_unknown((), request.rel_url.query)


def _refuse_unknown(known: tuple[str, ...], given: Mapping[str, object]) -> None:
    rule = f"only the query parameters {', '.join(known)}" if known else "no query parameters at all"
    # A key or a token that somebody put into the address is not repeated.
    if errors := [FieldError(name, "the given value", rule) for name in given if name not in known]:
        raise InvalidInput(errors)


def parsed(request: web.Request, parse: Callable[[Any], Spec], body: Any) -> Spec:
    """Read a body with `parse`. InvalidInput names everything that is wrong with the query and the body."""
    if not request.rel_url.raw_query_string:
        return parse(body)
    return both(lambda: refuse_query(request), lambda: parse(body))[1]
