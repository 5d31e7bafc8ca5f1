"""Owns the calls on single timers: it turns a request into a call of the client, and a timer into an answer."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web

from timers.api import conditions
from timers.api.answer import answer
from timers.api.body import parsed, read_json, read_query, refuse_body
from timers.api.operations import JSON, MERGE_PATCH, route
from timers.api.requests import CancelQuery
from timers.api.scope import acting, require_visible
from timers.api.tracing import traceparent_of
from timers.client import TimerClient
from timers.core.fields import check_id, check_prefix
from timers.core.model import Timer
from timers.core.spec import NewTimer, TimerChange
from timers.errors import Checks, FieldError, InvalidInput, shown

_PATCH_TYPES: Final = (JSON, MERGE_PATCH)
_NO_VERSION: Final = -1
"""A version that no timer has. It stands for an If-Match that names none of our versions."""


class TimerRoutes:
    """Create, read, change, cancel, retry and fire one timer."""

    def __init__(self, client: TimerClient) -> None:
        self._client = client

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes to add to an application."""
        return (
            route("createTimer", self.create),
            route("getTimer", self.get),
            route("putTimer", self.put),
            route("changeTimer", self.patch),
            route("cancelTimer", self.cancel),
            route("retryTimer", self.retry),
            route("fireTimer", self.fire),
        )

    async def create(self, request: web.Request) -> web.Response:
        """Answers 201 with a new timer, or 200 with one that was kept or replaced."""
        return await self._arm(request, parsed(request, NewTimer.parse, await read_json(request)))

    async def put(self, request: web.Request) -> web.Response:
        """Like create, but takes the prefix and id from the address and replaces whatever was there."""
        fixed = {**request.match_info, "if_exists": "replace"}
        return await self._arm(request, parsed(request, partial(_named, fixed), await read_json(request)))

    async def _arm(self, request: web.Request, new: NewTimer) -> web.Response:
        require_visible(request, new.prefix)
        armed = await acting(self._client, request).arm(new, traceparent=traceparent_of(request))
        return _shown(armed.timer, status=201 if armed.created else 200, located=True)

    async def get(self, request: web.Request) -> web.Response:
        """Answers 200 with the timer, or 304 if the caller already has it."""
        timer = await self._client.get(*parsed(request, _identity, request))
        if conditions.is_known(request, timer):
            return web.Response(status=304, headers={"ETag": conditions.etag(timer)})
        return _shown(timer)

    async def patch(self, request: web.Request) -> web.Response:
        """Answers 200 with the changed timer."""
        body = await read_json(request, types=_PATCH_TYPES)
        checks = Checks()
        identity = checks.of(_identity, request)
        change = checks.of(partial(parsed, request, TimerChange.parse), body)
        checks.end()
        version = await self._expected_version(request)
        return _shown(await acting(self._client, request).change(*identity, change, version=version))

    async def cancel(self, request: web.Request) -> web.Response:
        """Answers 200 with the cancelled timer. `?purge=true` removes its record too."""
        await refuse_body(request)
        checks = Checks()
        query = checks.of(partial(read_query, request), CancelQuery)
        identity = checks.of(_identity, request)
        checks.end()
        version = await self._expected_version(request)
        return _shown(await acting(self._client, request).cancel(*identity, version=version, purge=query.purge))

    async def retry(self, request: web.Request) -> web.Response:
        """Answers 200 with the timer, armed again for now."""
        await refuse_body(request)
        return _shown(await acting(self._client, request).retry(*parsed(request, _identity, request)))

    async def fire(self, request: web.Request) -> web.Response:
        """Answers 200 with the timer, due now."""
        await refuse_body(request)
        return _shown(await acting(self._client, request).fire(*parsed(request, _identity, request)))

    async def _expected_version(self, request: web.Request) -> int | None:
        """The version that If-Match asks for, or None if any version will do."""
        versions = conditions.versions(request)
        if versions is None:
            return None
        if len(versions) > 1:
            current = (await self._client.get(*_identity(request))).version
            versions = [current] if current in versions else []
        return versions[0] if versions else _NO_VERSION


def _identity(request: web.Request) -> tuple[str, str]:
    """The prefix and id in the address. InvalidInput names each that is invalid."""
    checks = Checks()
    prefix = checks.of(check_prefix, request.match_info["prefix"])
    timer_id = checks.of(check_id, request.match_info["id"])
    checks.end()
    return prefix, timer_id


def _named(fixed: Mapping[str, str], body: Any) -> NewTimer:
    """The timer of a PUT. Its body may repeat what the address says, but not contradict it."""
    if not isinstance(body, dict):
        return NewTimer.parse(body)
    checks = Checks()
    new = checks.of(NewTimer.parse, {**body, **fixed})
    checks.of(_refuse_others, {name: (body[name], value) for name, value in fixed.items() if name in body})
    checks.end()
    return new


def _refuse_others(pairs: Mapping[str, tuple[object, str]]) -> None:
    rule = "{!r}, or the field left out of a PUT to this address"
    wrong = [(name, given, value) for name, (given, value) in pairs.items() if given != value]
    if wrong:
        raise InvalidInput([FieldError(name, shown(given), rule.format(value)) for name, given, value in wrong])


def _shown(timer: Timer, *, status: int = 200, located: bool = False) -> web.Response:
    headers = {"ETag": conditions.etag(timer)}
    if located:
        # A path may contain every character of a prefix and an id unescaped (RFC 3986 §3.3).
        headers["Location"] = f"/v1/timers/{timer.prefix}/{timer.id}"
    return answer(timer.to_json(), status=status, headers=headers)
