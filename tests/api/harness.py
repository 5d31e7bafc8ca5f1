"""A whole API on a real server. It runs in the test's event loop and listens on a real socket."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from aiohttp import ClientSession, web
from multidict import CIMultiDictProxy

from tests.api.conformance import check
from tests.members import declare
from tests.waiting import DEADLINE_SECONDS, patient
from timers.api.auth import FRESH_SECONDS, Auth
from timers.api.health import HealthRoutes
from timers.api.requests import UNVERIFIED_BYTES
from timers.api.server import all_routes, application, listening
from timers.client import TimerClient, client_over, open_store
from timers.dashboard import all_pages
from timers.dashboard.site import Guard
from timers.engine.pod import WorkerOptions
from timers.engine.worker import Worker
from timers.metrics import Metrics
from timers.processor import Processor, Registry
from timers.store.callers import Callers
from timers.store.servers import connect
from timers.store.store import Store

PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, read completely."""

    status: int
    headers: CIMultiDictProxy[str]
    body: Any

    def problem(self, status: int, kind: str) -> dict[str, Any]:
        """The body of a problem with this status and type. Checks also what all problems have in common."""
        assert self.status == status, self
        assert self.headers["Content-Type"] == PROBLEM
        assert self.body["type"] == f"urn:timers:problem:{kind}"
        assert self.body["status"] == status
        assert self.body["title"]
        assert self.body["detail"]
        body: dict[str, Any] = self.body
        return body

    def bad_fields(self, status: int = 422, kind: str = "invalid-input") -> list[str]:
        """The field names in `errors[]`. Each error must say what was given and what would be accepted."""
        errors = self.problem(status, kind)["errors"]
        for error in errors:
            assert set(error) == {"field", "value", "accepted", "message"}
            assert all(error[name] for name in ("value", "accepted", "message"))
        return [error["field"] for error in errors]


class Served(NamedTuple):
    """Where an API listens."""

    url: str


@dataclass(frozen=True, slots=True)
class Api:
    """A running API with its address, store and client."""

    server: Served
    session: ClientSession
    store: Store
    client: TimerClient
    health: HealthRoutes
    app: web.Application
    auth: Auth

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        """Send a request, with `body` as JSON if given, or with any `data=`. The document must allow the answer."""
        if body is not None:
            options["json"] = body
        async with self.session.request(method, self.server.url + path, **options) as response:
            text = await response.text()
            reply = Reply(response.status, response.headers, json.loads(text) if text else None)
        check(method, path, reply.status, reply.headers, reply.body)
        return reply

    async def text(self, path: str) -> str:
        """The text at an address."""
        async with self.session.get(self.server.url + path) as response:
            assert response.status == 200
            return await response.text()

    async def create(self, timer_id: str = "one", **fields: Any) -> Reply:
        """Create a timer of prefix `test`, due in an hour unless `fields` says otherwise."""
        due = {} if {"due_at", "delay", "retry", "repeat"} & set(fields) else {"delay": "1h"}
        return await self.call("POST", "/v1/timers", {"prefix": "test", "id": timer_id, **due, **fields})


@asynccontextmanager
async def running_api(
    url: str,
    processors: Sequence[Processor],
    *,
    works: bool = False,
    options: Mapping[str, Any] = {},
    edit_lock_ms: int = 0,
    ledger: str | None = None,
    keys: str | None = None,
    secrets: Sequence[str] = (),
    unverified_bytes: int = UNVERIFIED_BYTES,
    keys_fresh_seconds: float = FRESH_SECONDS,
    request_seconds: float = DEADLINE_SECONDS,
    limit: int | None = None,
) -> AsyncIterator[Api]:
    """An API on a db in which the processors are declared. With `works` it also runs their timers, with these
    `options` of a worker. `keys` is as in
    TIMERS_API_KEYS."""
    async with AsyncExitStack() as ends:
        store = await open_store(connect(patient(url)))
        ends.push_async_callback(store.connections.close)
        registry = Registry(processors)
        await declare(store, *registry.declared)
        client = client_over(store, edit_lock_ms=edit_lock_ms, ledger=ledger)
        if client.ledger is not None:
            ends.push_async_callback(client.ledger.close)
        metrics = Metrics()
        store.called, store.confirmed = metrics.called, metrics.confirmed
        worker = None
        if works:
            asked = replace(WorkerOptions("api-test", 10, 30_000, 3_600_000, 100, ledger=client.ledger), **options)
            worker = Worker(store, registry, client, asked, metrics)
            await worker.start()
            ends.push_async_callback(worker.drain)
        health = HealthRoutes(store, client, worker, metrics, fresh_seconds=0, answer_seconds=request_seconds)
        auth = Auth(
            Callers(store),
            keys,
            secrets,
            ledger=client.ledger,
            unverified_bytes=unverified_bytes,
            fresh_seconds=keys_fresh_seconds,
        )
        routes = (*all_pages(store, client, auth), *all_routes(client, health))
        app = application(
            routes, auth, Guard(store.connections).check, request_seconds=request_seconds, ledger=client.ledger
        )
        server = Served(await ends.enter_async_context(listening(app, "127.0.0.1", 0, limit=limit)))
        ends.push_async_callback(client.end_events)
        session = await ends.enter_async_context(ClientSession())
        yield Api(server, session, store, client, health, app, auth)


@asynccontextmanager
async def other_server(api: Api, routes: Iterable[web.RouteDef], auth: Auth | None = None) -> AsyncIterator[Api]:
    """The API over a server of its own, with only these routes."""
    async with listening(application(routes, auth or Auth(Callers(api.store))), "127.0.0.1", 0) as url:
        yield replace(api, server=Served(url))
