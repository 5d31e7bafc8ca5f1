"""Owns the calls on single timers: from a request to a call of the client, from a timer to an answer."""

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from timers.api import conditions
from timers.api.answer import answer
from timers.api.body import as_object, read_json, read_query, refuse_body
from timers.api.operations import JSON, MERGE_PATCH, route
from timers.api.scope import quota_of, require_visible
from timers.api.tracing import traceparent_of
from timers.client import TimerClient
from timers.core.model import Timer
from timers.core.spec import NewTimer, TimerChange
from timers.errors import FieldError, InvalidInput, shown

_PATCH_TYPES: Final = (JSON, MERGE_PATCH)
_NO_VERSION: Final = -1
"""A version that no timer has, for an If-Match that names none of ours."""


class TimerRoutes:
    """Create, read, change, cancel, retry and fire one timer."""

    def __init__(self, client: TimerClient) -> None:
        self._client = client

    def routes(self) -> Sequence[web.RouteDef]:
        """What to add to an application."""
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
        """201 the new timer, 200 one that was kept or replaced."""
        read_query(request)
        return await self._arm(request, as_object(await read_json(request)))

    async def put(self, request: web.Request) -> web.Response:
        """As create, with the identity from the address and whatever was there replaced."""
        read_query(request)
        spec = as_object(await read_json(request))
        prefix, timer_id = _identity(request)
        fixed = {"prefix": prefix, "id": timer_id, "if_exists": "replace"}
        contradictions = [
            FieldError(name, shown(spec[name]), f"{value!r}, or the field left out of a PUT to this address")
            for name, value in fixed.items()
            if spec.get(name, value) != value
        ]
        if contradictions:
            raise InvalidInput(contradictions)
        return await self._arm(request, {**spec, **fixed})

    async def _arm(self, request: web.Request, spec: dict[str, Any]) -> web.Response:
        new = NewTimer.parse(spec)
        require_visible(request, new.prefix)
        armed = await self._client.arm(new, traceparent=traceparent_of(request), quota=quota_of(request))
        return _shown(armed.timer, status=201 if armed.created else 200, located=True)

    async def get(self, request: web.Request) -> web.Response:
        """200 the timer, 304 where the caller has it already."""
        read_query(request)
        timer = await self._client.get(*_identity(request))
        if conditions.is_known(request, timer):
            return web.Response(status=304, headers={"ETag": conditions.etag(timer)})
        return _shown(timer)

    async def patch(self, request: web.Request) -> web.Response:
        """200 the changed timer."""
        read_query(request)
        change = TimerChange.parse(as_object(await read_json(request, types=_PATCH_TYPES)))
        version = await self._expected_version(request)
        return _shown(await self._client.change(*_identity(request), change, version=version))

    async def cancel(self, request: web.Request) -> web.Response:
        """200 the cancelled timer; with `?purge=true` its record is gone too."""
        purge = _flag(read_query(request, ("purge",)).get("purge", "false"))
        await refuse_body(request)
        version = await self._expected_version(request)
        return _shown(await self._client.cancel(*_identity(request), version=version, purge=purge))

    async def retry(self, request: web.Request) -> web.Response:
        """200 the timer, armed again for now."""
        await _refuse_spec(request)
        return _shown(await self._client.retry(*_identity(request)))

    async def fire(self, request: web.Request) -> web.Response:
        """200 the timer, due now."""
        await _refuse_spec(request)
        return _shown(await self._client.fire(*_identity(request)))

    async def _expected_version(self, request: web.Request) -> int | None:
        """The version that If-Match asks for; None where any will do."""
        versions = conditions.versions(request)
        if versions is None:
            return None
        if len(versions) > 1:
            current = (await self._client.get(*_identity(request))).version
            versions = [current] if current in versions else []
        return versions[0] if versions else _NO_VERSION


def _identity(request: web.Request) -> tuple[str, str]:
    return request.match_info["prefix"], request.match_info["id"]


def _shown(timer: Timer, *, status: int = 200, located: bool = False) -> web.Response:
    headers = {"ETag": conditions.etag(timer)}
    if located:
        # Every character of a prefix and an id may stand in a path as it is (RFC 3986 §3.3).
        headers["Location"] = f"/v1/timers/{timer.prefix}/{timer.id}"
    return answer(timer.to_json(), status=status, headers=headers)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidInput.of("purge", text, "true or false")
    return text == "true"


async def _refuse_spec(request: web.Request) -> None:
    read_query(request)
    await refuse_body(request)
