"""Owns the calls on single timers, and conditional requests (RFC 9110 §13)."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.answer import answer
from timers.api.auth import acting, require_visible
from timers.api.body import parsed, read_json, read_query, refuse_body
from timers.api.middleware import traceparent_of
from timers.api.operations import JSON, MERGE_PATCH, CancelQuery, Operation, operation_of, route
from timers.client import TimerClient
from timers.core.fields import check_id, check_prefix
from timers.core.model import Timer
from timers.core.spec import NewTimer, TimerChange
from timers.errors import FieldError, InvalidInput, both, shown

CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")

_TAG: Final = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f]*"')
_TAGS: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")
_OURS: Final = re.compile(r'"(0|[1-9][0-9]{0,14})"')

_HONOURED: Final = "PATCH and DELETE of a timer honour If-Match, GET of a timer If-None-Match"


@web.middleware
def refuse_unchecked(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Answer 400 to a write with a condition that the call does not check, because the caller would believe that it was
    checked. A read may ignore its condition: it only answers more."""
    for name in CONDITIONS:
        if name in request.headers and not _may_have(operation_of(request), name):
            raise web.HTTPBadRequest(text=f"{name} is not honoured by this call; {_HONOURED}")
    return handler(request)


def _may_have(operation: Operation | None, condition: str) -> bool:
    if operation is None or operation.method == "GET":
        return True
    return condition in {each["name"] for each in operation.parameters}


def _etag(timer: Timer) -> str:
    """A timer's entity tag: its version."""
    return f'"{timer.version}"'


def _versions(request: web.Request) -> list[int] | None:
    """The versions of ours that If-Match names, or None if any version will do. Raises HTTP 400 if the header is
    malformed."""
    tags = _tags(request, "If-Match")
    if tags is None or tags == ["*"]:
        return None
    return [int(found[1]) for tag in tags if (found := _OURS.fullmatch(tag))]


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


_PATCH_TYPES: Final = (JSON, MERGE_PATCH)
_NO_VERSION: Final = -1
"""A version that no timer has. It stands for an If-Match that names none of our versions."""


async def _create(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 201 with a new timer, or 200 with one that was kept or replaced."""
    return await _arm(client, request, parsed(request, NewTimer.parse, await read_json(request)))


async def _put(client: TimerClient, request: web.Request) -> web.Response:
    """Like create, but takes the prefix and id from the address and replaces whatever was there."""
    fixed = {**request.match_info, "if_exists": "replace"}
    return await _arm(client, request, parsed(request, partial(_named, fixed), await read_json(request)))


async def _arm(client: TimerClient, request: web.Request, new: NewTimer) -> web.Response:
    require_visible(request, new.prefix)
    armed = await acting(client, request).arm(new, traceparent=traceparent_of(request))
    return _shown(armed.timer, status=201 if armed.created else 200, located=True)


async def _get(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the timer, or 304 if the caller already has it."""
    timer = await client.get(*parsed(request, _identity, request))
    if _is_known(request, timer):
        return web.Response(status=304, headers={"ETag": _etag(timer)})
    return _shown(timer)


async def _patch(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the changed timer."""
    body = await read_json(request, types=_PATCH_TYPES)
    identity, change = both(lambda: _identity(request), lambda: parsed(request, TimerChange.parse, body))
    version = await _expected_version(client, request)
    return _shown(await acting(client, request).change(*identity, change, version=version))


async def _cancel(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the cancelled timer. `?purge=true` removes its record too."""
    await refuse_body(request)
    query, identity = both(lambda: read_query(request, CancelQuery), lambda: _identity(request))
    version = await _expected_version(client, request)
    return _shown(await acting(client, request).cancel(*identity, version=version, purge=query.purge))


async def _make_due(
    call: Callable[[TimerClient, str, str], Awaitable[Timer]], client: TimerClient, request: web.Request
) -> web.Response:
    """Answers 200 with the timer, due now."""
    await refuse_body(request)
    return _shown(await call(acting(client, request), *parsed(request, _identity, request)))


async def _expected_version(client: TimerClient, request: web.Request) -> int | None:
    """The version that If-Match asks for, or None if any version will do."""
    versions = _versions(request)
    if versions is None:
        return None
    if len(versions) > 1:
        current = (await client.get(*_identity(request))).version
        versions = [current] if current in versions else []
    return versions[0] if versions else _NO_VERSION


def _identity(request: web.Request) -> tuple[str, str]:
    """The prefix and id in the address. InvalidInput names each that is invalid."""
    given = request.match_info
    return both(lambda: check_prefix(given["prefix"]), lambda: check_id(given["id"]))


def _named(fixed: Mapping[str, str], body: Any) -> NewTimer:
    """The timer of a PUT. Its body may repeat what the address says, but not contradict it."""
    if not isinstance(body, dict):
        return NewTimer.parse(body)
    twice = {name: (body[name], value) for name, value in fixed.items() if name in body}
    return both(lambda: NewTimer.parse({**body, **fixed}), lambda: _refuse_others(twice))[0]


def _refuse_others(pairs: Mapping[str, tuple[object, str]]) -> None:
    rule = "{!r}, or the field left out of a PUT to this address"
    wrong = [(name, given, value) for name, (given, value) in pairs.items() if given != value]
    if wrong:
        raise InvalidInput([FieldError(name, shown(given), rule.format(value)) for name, given, value in wrong])


def _shown(timer: Timer, *, status: int = 200, located: bool = False) -> web.Response:
    headers = {"ETag": _etag(timer)}
    if located:
        # A path may contain every character of a prefix and an id unescaped (RFC 3986 §3.3).
        headers["Location"] = f"/v1/timers/{timer.prefix}/{timer.id}"
    return answer(timer.to_json(), status=status, headers=headers)


_CALLS: Final[Mapping[str, Callable[[TimerClient, web.Request], Awaitable[web.Response]]]] = {
    "createTimer": _create,
    "getTimer": _get,
    "putTimer": _put,
    "changeTimer": _patch,
    "cancelTimer": _cancel,
    "retryTimer": partial(_make_due, TimerClient.retry),
    "fireTimer": partial(_make_due, TimerClient.fire),
}


def timer_routes(client: TimerClient) -> Sequence[web.RouteDef]:
    """The routes to add to an application: create, read, change, cancel, retry and fire one timer."""
    return [route(name, partial(call, client)) for name, call in _CALLS.items()]
