"""The Python client can do what the HTTP API can, under the same names: each call of both, side by side."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import pytest

from tests.api.harness import Api
from tests.members import declare
from timers.api.operations import OPERATIONS
from timers.client import TimerClient
from timers.core.spec import NewTimer

Call = Callable[[TimerClient], Awaitable[Any]]
WISHES: Final[Mapping[str, Any]] = {
    "due_at": "2030-01-01T00:00:00Z",
    "payload": {"a": [1]},
    "repeat": {"every": "1d", "count": 3},
    "retry": {"backoff": ["5s", "1m"]},
    "missed": "latest",
    "timeout": "30s",
    "tags": ["x"],
    "metadata": {"k": "v"},
}

_HTTP: Final[Mapping[str, tuple[str, str, Any]]] = {
    "createTimer": ("POST", "/v1/timers", {"prefix": "test", "id": "new", **WISHES}),
    "putTimer": ("PUT", "/v1/timers/test/one", WISHES),
    "getTimer": ("GET", "/v1/timers/test/one", None),
    "changeTimer": ("PATCH", "/v1/timers/test/one", {"payload": 2, "tags": ["y"], "due_at": "2031-01-01T00:00:00Z"}),
    "cancelTimer": ("DELETE", "/v1/timers/test/one", None),
    "retryTimer": ("POST", "/v1/timers/test/cancelled/retry", None),
    "fireTimer": ("POST", "/v1/timers/test/one/fire", None),
    "listTimers": ("GET", "/v1/timers?prefix=test&status=scheduled&tag=t&limit=5&due_after=2029-01-01T00:00:00Z", None),
    "createTimers": ("POST", "/v1/timers/batch", {"timers": [{"prefix": "test", "id": "new", **WISHES}]}),
    "actOnTimers": (
        *("POST", "/v1/timers/actions"),
        {"action": "reschedule", "filter": {"prefix": "test", "tag": "t"}, "dry_run": True, "delay": "1h"},
    ),
    "getStats": ("GET", "/v1/stats", None),
    "listPrefixes": ("GET", "/v1/prefixes", None),
    "pausePrefix": ("POST", "/v1/prefixes/test/pause", None),
    "resumePrefix": ("POST", "/v1/prefixes/test/resume", None),
    "forgetPrefix": ("DELETE", "/v1/prefixes/test", None),
    "listPods": ("GET", "/v1/pods", None),
    "acknowledgeLosses": ("POST", "/v1/losses/acknowledge", None),
}


async def _listed(client: TimerClient) -> Any:
    page = await client.list(prefix="test", status="scheduled", tag="t", limit=5, due_after="2029-01-01T00:00:00Z")
    return {"items": [timer.to_json() for timer in page.items], "next_cursor": page.next_cursor}


async def _batch(client: TimerClient) -> Any:
    (armed,) = await client.batch([NewTimer(prefix="test", id="new", **WISHES)])
    assert not isinstance(armed, Exception)
    return {"results": [{"status": 201, "timer": armed.timer.to_json()}]}


async def _acted(client: TimerClient) -> Any:
    return await client.act("reschedule", {"prefix": "test", "tag": "t"}, dry_run=True, delay="1h")


async def _paused(client: TimerClient, *, paused: bool) -> Any:
    await (client.pause("test") if paused else client.resume("test"))
    return {"prefix": "test", "paused": paused}


async def _items(views: Awaitable[Any]) -> Any:
    return {"items": [view.to_json() for view in await views]}


_PYTHON: Final[Mapping[str, Call]] = {
    "createTimer": lambda client: client.create("test", "new", **WISHES),
    "putTimer": lambda client: client.create("test", "one", if_exists="replace", **WISHES),
    "getTimer": lambda client: client.get("test", "one"),
    "changeTimer": lambda client: client.change(
        "test", "one", payload=2, tags=["y"], due_at="2031-01-01T00:00:00Z", version=1
    ),
    "cancelTimer": lambda client: client.cancel("test", "one"),
    "retryTimer": lambda client: client.retry("test", "cancelled"),
    "fireTimer": lambda client: client.fire("test", "one"),
    "listTimers": _listed,
    "createTimers": _batch,
    "actOnTimers": _acted,
    "getStats": lambda client: client.stats(),
    "listPrefixes": lambda client: _items(client.prefixes()),
    "pausePrefix": lambda client: _paused(client, paused=True),
    "resumePrefix": lambda client: _paused(client, paused=False),
    "forgetPrefix": lambda client: client.forget("test"),
    "listPods": lambda client: _items(client.pods()),
    "acknowledgeLosses": lambda client: _items(client.acknowledge_losses()),
}


def test_no_call_of_the_api_is_left_out() -> None:
    """Except events, which have no end to compare (test_client_many tests them), and a pod's metrics and pages."""
    called = {operation.id for operation in OPERATIONS if operation.right is not None}
    assert called - {"streamEvents", "getMetrics", "getDashboard"} == set(_HTTP) == set(_PYTHON)


@pytest.mark.parametrize("operation", sorted(_HTTP))
async def test_a_call_over_http_and_in_python_has_the_same_outcome(api: Api, operation: str) -> None:
    over_http = await _outcome(api, lambda: _over_http(api, operation))
    in_python = await _outcome(api, lambda: _in_python(api, operation))
    assert in_python == over_http


async def _over_http(api: Api, operation: str) -> Any:
    method, path, body = _HTTP[operation]
    headers = {"If-Match": '"1"'} if method == "PATCH" else {}
    reply = await api.call(method, path, body, headers=headers)
    assert reply.status in (200, 201, 204), reply
    return reply.body


async def _in_python(api: Api, operation: str) -> Any:
    found = await _PYTHON[operation](api.client)
    return found.to_json() if hasattr(found, "to_json") else found


async def _outcome(api: Api, act: Callable[[], Awaitable[Any]]) -> tuple[Any, list[Any]]:
    """What a call answers on the same few timers, and what is stored afterwards, without times that the clock gave."""
    await api.store.connections.commands.flushdb()
    await declare(api.store, "test")
    await api.client.create("test", "one", due_at="2030-06-01T00:00:00Z", tags=["t"])
    await api.client.create("test", "cancelled", due_at="2030-06-01T00:00:00Z")
    await api.client.cancel("test", "cancelled")
    await api.client.acknowledge_losses()
    answer = await act()
    page = await api.client.list()
    return _timeless(answer), [_timeless(timer.to_json()) for timer in page.items]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "now" if _is_reading(name, inner) else _timeless(inner) for name, inner in value.items()}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def _is_reading(name: str, value: Any) -> bool:
    """True if a value is a time at which the test ran. The times that the test itself plans lie in other years."""
    return name in ("created_at", "updated_at", "declared_at", "at") or (
        name == "due_at" and not str(value).startswith("203")
    )
