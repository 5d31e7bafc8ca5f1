"""Owns the calls that a client carries out: on one timer, with conditional requests (RFC 9110 §13), on many (lists,
batches, actions by filter), and on the service as a whole (stats, prefixes, pods, losses)."""

import re
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.answer import answer, encoded, joined, of_bytes, problem_body
from timers.api.auth import UNKNOWN_LATENESS, acting, as_seen_by, nothing_of, require_visible, visible_to
from timers.api.operations import (
    JSON,
    MERGE_PATCH,
    NDJSON,
    Batch,
    CancelQuery,
    PrefixQuery,
    call,
    operation_of,
)
from timers.api.requests import (
    BATCH_LIMIT_BYTES,
    media_type,
    parsed,
    read_bytes,
    read_json,
    read_query,
    refuse_body,
    refuse_query,
    traceparent_of,
)
from timers.client import BATCH_LIMIT, Armed, TimerClient
from timers.client.actions import BulkAction, Counts, Stop
from timers.client.fleet import by_name
from timers.core.fields import check_id, check_prefix, decode_line, is_prefix, lines_of
from timers.core.model import Status, Timer
from timers.core.spec import NewTimer, TimerChange
from timers.errors import Busy, FieldError, InvalidInput, TimersError, both, shown
from timers.store.cooperative import cooperatively
from timers.store.filters import Visible
from timers.store.listing import PageRequest

CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")

_TAG: Final = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f]*"')
_TAGS: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")
_OURS: Final = re.compile(r'"(0|[1-9][0-9]{0,14})"')

_HONOURED: Final = "PATCH and DELETE of a timer honour If-Match, GET of a timer If-None-Match"


@web.middleware
def refuse_unchecked(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Answer 400 to a write with a condition that the call does not check, because the caller would believe that it was
    checked. A read may ignore its condition: it only answers more."""
    operation = operation_of(request)
    checked = CONDITIONS if operation is None or operation.method == "GET" else operation.headers
    for name in CONDITIONS:
        if name in request.headers and name not in checked:
            raise web.HTTPBadRequest(text=f"{name} is not honoured by this call; {_HONOURED}")
    return handler(request)


def _etag(timer: Timer) -> str:
    """A timer's entity tag: its version."""
    return f'"{timer.version}"'


def _is_known(request: web.Request, timer: Timer) -> bool:
    """Whether If-None-Match says that the caller already has this version. Raises HTTP 400 if the header is
    malformed."""
    tags = _tags(request, "If-None-Match") or []
    return tags == ["*"] or _etag(timer) in [tag.removeprefix("W/") for tag in tags]


def _tags(request: web.Request, name: str) -> list[str] | None:
    """The tags of a condition, `*` alone for any, or None without the header."""
    if name not in request.headers:
        return None
    text = ",".join(request.headers.getall(name))
    if text == "*":
        return ["*"]
    if not _TAGS.fullmatch(text):
        raise web.HTTPBadRequest(text=f'{name} is {shown(text)}; send ETags, as in "3" with the quotes, or * alone')
    return _TAG.findall(text)


_NO_VERSION: Final = -1
"""A version that no timer has. It stands for an If-Match that names none of our versions."""


def _status(armed: Armed) -> int:
    """202: the ledger has it, and Redis gets it as soon as it is back."""
    if not armed.timer.armed:
        return 202
    return 201 if armed.how == "created" else 200


def _identity(request: web.Request) -> tuple[str, str]:
    """The prefix and id in the address. InvalidInput names each that is invalid."""
    given = request.match_info
    return both(lambda: check_prefix(given["prefix"]), lambda: check_id(given["id"]))


def _named(fixed: Mapping[str, str], body: Any) -> NewTimer:
    """The timer of a PUT. Its body may repeat what the address says, but not contradict it."""
    if not isinstance(body, dict):
        return NewTimer.parse(body)
    return both(lambda: NewTimer.parse({**body, **fixed}), lambda: _refuse_others(fixed, body))[0]


def _refuse_others(fixed: Mapping[str, str], body: Mapping[str, object]) -> None:
    rule = "{!r}, or the field left out of a PUT to this address"
    wrong = {name: value for name, value in fixed.items() if body.get(name, value) != value}
    if wrong:
        raise InvalidInput([FieldError(name, shown(body[name]), rule.format(value)) for name, value in wrong.items()])


def _shown(timer: Timer, *, status: int = 200, located: bool = False) -> web.Response:
    headers = {"ETag": _etag(timer)}
    if located:
        # A path may contain every character of a prefix and an id unescaped (RFC 3986 §3.3).
        headers["Location"] = f"/v1/timers/{timer.prefix}/{timer.id}"
    return answer(timer.to_json(), status=status, headers=headers)


_LINES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""The media types that programs use for one JSON value a line. None of them is registered."""

ACTIONS_AT_ONCE: Final = 2
"""Actions that a pod runs at a time. Each keeps a quarter of the connections to Redis busy."""

ACTION_LIMIT: Final = 1000
"""An action's call ends after the page on which this many timers have passed the filter. Its cursor continues from
there."""

ACTION_SECONDS: Final = 5.0
"""How long an action's call may take, even if few timers pass its filter: half of what any call may take."""


async def _read_batch(request: web.Request) -> Sequence[Any]:
    """The timers as they were sent. A line that is not JSON becomes its error, but of too many none is read: millions
    of errors would fill the memory."""
    if media_type(request, (JSON, *_LINES)) in _LINES:
        lines = lines_of(await read_bytes(request, BATCH_LIMIT_BYTES))
        body = {"timers": list(islice(lines, BATCH_LIMIT + 1))}
        return [decode_line(line) for line in parsed(request, Batch.parse, body).timers]
    return parsed(request, Batch.parse, await read_json(request, limit_bytes=BATCH_LIMIT_BYTES)).timers


def _if_visible(value: Any, visible: Visible | None) -> Any:
    """The timer as it was sent, or the error if the request may not touch its prefix."""
    if visible is None or not isinstance(value, dict):
        return value
    prefix = value.get("prefix")
    return nothing_of(prefix) if isinstance(prefix, str) and is_prefix(prefix) and not visible(prefix) else value


def _result(came: Armed | TimersError) -> dict[str, Any]:
    if isinstance(came, TimersError):
        body = problem_body(came)
        return {"status": body["status"], "problem": body}
    return {"status": _status(came), "timer": came.timer.to_json()}


def _enough_for(request: web.Request) -> Stop:
    """A test of whether an action's call has done enough, or its client has gone."""
    until = time.monotonic() + ACTION_SECONDS

    def enough(counts: Counts) -> bool:
        gone = request.transport is None or request.transport.is_closing()
        return gone or counts.matched >= ACTION_LIMIT or time.monotonic() > until

    return enough


async def _prefix(request: web.Request) -> str:
    await refuse_body(request)
    prefix = parsed(request, check_prefix, request.match_info["prefix"])
    require_visible(request, prefix)
    return prefix


class ClientRoutes:
    """The calls that a client carries out. `operations` says what each takes and answers."""

    def __init__(self, client: TimerClient) -> None:
        self._client = client
        self._acting_now = 0

    @call("createTimer")
    async def create(self, request: web.Request) -> web.Response:
        return await self._arm(request, parsed(request, NewTimer.parse, await read_json(request)))

    @call("putTimer")
    async def put(self, request: web.Request) -> web.Response:
        fixed = {**request.match_info, "if_exists": "replace"}
        return await self._arm(request, parsed(request, partial(_named, fixed), await read_json(request)))

    async def _arm(self, request: web.Request, new: NewTimer) -> web.Response:
        require_visible(request, new.prefix)
        armed = await acting(self._client, request).arm(new, traceparent=traceparent_of(request))
        return _shown(armed.timer, status=_status(armed), located=True)

    @call("getTimer")
    async def get(self, request: web.Request) -> web.Response:
        timer = await self._client.get(*parsed(request, _identity, request))
        if _is_known(request, timer):
            return web.Response(status=304, headers={"ETag": _etag(timer)})
        return _shown(timer)

    @call("changeTimer")
    async def change(self, request: web.Request) -> web.Response:
        body = await read_json(request, types=(JSON, MERGE_PATCH))
        identity, change = both(lambda: _identity(request), lambda: parsed(request, TimerChange.parse, body))
        version = await self._expected_version(request)
        return _shown(await acting(self._client, request).change(*identity, change, version=version))

    @call("cancelTimer")
    async def cancel(self, request: web.Request) -> web.Response:
        await refuse_body(request)
        query, identity = both(lambda: read_query(request, CancelQuery), lambda: _identity(request))
        version = await self._expected_version(request)
        return _shown(await acting(self._client, request).cancel(*identity, version=version, purge=query.purge))

    async def _expected_version(self, request: web.Request) -> int | None:
        """The version that If-Match asks for, or None if any will do. Raises HTTP 400 if the header is malformed."""
        tags = _tags(request, "If-Match")
        if tags is None or tags == ["*"]:
            return None
        versions = [int(found[1]) for tag in tags if (found := _OURS.fullmatch(tag))]
        if len(versions) > 1:
            current = (await self._client.get(*_identity(request))).version
            versions = [current] if current in versions else []
        return versions[0] if versions else _NO_VERSION

    @call("retryTimer")
    async def retry(self, request: web.Request) -> web.Response:
        await refuse_body(request)
        return _shown(await acting(self._client, request).retry(*parsed(request, _identity, request)))

    @call("fireTimer")
    async def fire(self, request: web.Request) -> web.Response:
        await refuse_body(request)
        return _shown(await acting(self._client, request).fire(*parsed(request, _identity, request)))

    @call("listTimers")
    async def page(self, request: web.Request) -> web.Response:
        page = await self._client.page(read_query(request, PageRequest).seen_by(visible_to(request)))
        items = await joined(page.items, lambda timer: encoded(timer.to_json()))
        return of_bytes(b'{"items":[' + items + b'],"next_cursor":' + encoded(page.next_cursor) + b"}")

    @call("createTimers")
    async def create_many(self, request: web.Request) -> web.Response:
        values, visible = await _read_batch(request), visible_to(request)
        wishes = [_if_visible(value, visible) for value in values]
        results = await acting(self._client, request).batch(wishes, traceparent=traceparent_of(request))
        return of_bytes(b'{"results":[' + await joined(results, lambda each: encoded(_result(each))) + b"]}")

    @call("actOnTimers")
    async def act(self, request: web.Request) -> web.Response:
        asked = parsed(request, BulkAction.parse, await read_json(request))
        if self._acting_now >= ACTIONS_AT_ONCE:
            raise Busy(f"this pod runs {self._acting_now} actions, its maximum; try again soon")
        visible = asked.model_copy(update={"filter": asked.filter.seen_by(visible_to(request))})
        self._acting_now += 1
        try:
            counts = await acting(self._client, request).act(visible, stop=_enough_for(request))
        finally:
            self._acting_now -= 1
        return answer(counts.to_json())

    @call("getStats")
    async def stats(self, request: web.Request) -> web.Response:
        """Answers 200 with the state of the whole service, but only with timers that the caller may see."""
        prefix, visible = read_query(request, PrefixQuery).prefix, visible_to(request)
        stats = await self._client.stats(prefix, visible=visible)
        counts, whole = stats.counts, dict[str, Any](replace(stats, counts={}).to_json())
        total: Counter[Status] = Counter()
        async for counted in cooperatively(counts.values()):
            total.update(counted)
        del whole["by_prefix"]
        whole |= {"by_status": by_name(total), "pods": [as_seen_by(visible, pod) for pod in whole["pods"]]}
        if visible is not None:
            whole["lateness_ms"] = UNKNOWN_LATENESS
        of_each = await joined(sorted(counts), lambda name: encoded(name) + b":" + encoded(by_name(counts[name])))
        return of_bytes(encoded(whole)[:-1] + b',"by_prefix":{' + of_each + b"}}")

    @call("listPrefixes")
    async def prefixes(self, request: web.Request) -> web.Response:
        prefix, visible = read_query(request, PrefixQuery).prefix, visible_to(request)
        views = [view for view in await self._client.prefixes(prefix) if visible is None or visible(view.prefix)]
        return of_bytes(b'{"items":[' + await joined(views, lambda view: encoded(view.to_json())) + b"]}")

    @call("pausePrefix")
    async def pause(self, request: web.Request) -> web.Response:
        prefix = await _prefix(request)
        await acting(self._client, request).pause(prefix)
        return answer({"prefix": prefix, "paused": True})

    @call("resumePrefix")
    async def resume(self, request: web.Request) -> web.Response:
        prefix = await _prefix(request)
        await acting(self._client, request).resume(prefix)
        return answer({"prefix": prefix, "paused": False})

    @call("forgetPrefix")
    async def forget(self, request: web.Request) -> web.Response:
        await acting(self._client, request).forget(await _prefix(request))
        return web.Response(status=204)

    @call("listPods")
    async def pods(self, request: web.Request) -> web.Response:
        """Answers 200 with the live pods, showing only the prefixes that the caller may see."""
        refuse_query(request)
        visible = visible_to(request)
        return answer({"items": [as_seen_by(visible, pod.to_json()) for pod in await self._client.pods()]})

    @call("acknowledgeLosses")
    async def acknowledge_losses(self, request: web.Request) -> web.Response:
        refuse_query(request)
        await refuse_body(request)
        return answer({"items": [loss.to_json() for loss in await self._client.acknowledge_losses()]})
