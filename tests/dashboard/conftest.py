"""Shared by the dashboard's tests: a server, an API on it with and without keys, and a browser."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.api.conftest import done, own_server, redis, server
from tests.api.harness import Api, running_api
from tests.browser import Watched, watched
from tests.rights import as_user, grant, refused
from tests.waiting import DEADLINE_SECONDS
from timers.access import RIGHTS, ApiKey, make_key
from timers.core.model import Timer
from timers.core.outcome import Fail
from timers.dashboard import overview, service
from timers.embedded import EmbeddedServer
from timers.processor import Context, processor

__all__ = ["Watched", "own_server", "redis", "server", "watched"]


@processor("mine")
async def mine(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


@processor("broken")
async def broken(timer: Timer, _context: Context) -> None:
    """Fails at once, with the payload as the reason."""
    raise Fail(str(timer.payload))


PROCESSORS = (done, mine, broken)
EVERYTHING, EVERYTHING_KEY = make_key(["*"], RIGHTS)
READS, READS_KEY = make_key(["mine"], ["read"])
WRITES, WRITES_KEY = make_key(["mine"], ["read", "write"])
OPERATES, OPERATES_KEY = make_key(["mine"], ["read", "operate"])
KEYS: tuple[ApiKey, ...] = (EVERYTHING_KEY, READS_KEY, WRITES_KEY, OPERATES_KEY)


@pytest.fixture
def reading_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request for a page reads the db."""
    monkeypatch.setattr(overview, "STATS_SECONDS", -1.0)
    monkeypatch.setattr(overview, "LOAD_SECONDS", -1.0)
    monkeypatch.setattr(overview, "LOAD_PATIENCE_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(service, "VIEWS_SECONDS", -1.0)


@pytest.fixture
async def url(server: EmbeddedServer, redis: Redis) -> AsyncIterator[str]:
    """The server's URL, for a pod with only the rights that PROTOCOL.md lists, including the exceptions that the server
    page needs."""
    await grant(redis, 0)
    yield as_user(server.url)
    assert await refused(redis) == set()


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    """Without keys, open to this machine. It has no worker."""
    async with running_api(url, PROCESSORS) as running:
        yield running


@pytest.fixture
async def working(url: str) -> AsyncIterator[Api]:
    """Without keys, with a worker."""
    async with running_api(url, PROCESSORS, works=True) as running:
        yield running


@pytest.fixture
async def guarded(url: str) -> AsyncIterator[Api]:
    """With keys and without a worker."""
    keys = " ".join(key.entry for key in KEYS)
    async with running_api(url, PROCESSORS, keys=keys) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer, with redirects not followed."""

    status: int
    where: str
    headers: Any
    text: str


@dataclass
class Visitor:
    """The HTTP side of a browser: it gets pages, keeps cookies and sends its origin."""

    api: Api
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Shown:
        """A page."""
        return await self._send("GET", path, None, {"Accept": "text/html", **headers})

    async def post(self, path: str, form: Any = (), **headers: str) -> Shown:
        """Send a form, from a page of the dashboard unless the headers say otherwise."""
        return await self._send("POST", path, form, {"Origin": self.api.server.url, **headers})

    async def sign_in(self, key: str, **fields: str) -> Shown:
        """With a key."""
        return await self.post("/ui/sign-in", {"key": key, **fields})

    async def _send(self, method: str, path: str, form: Any, headers: dict[str, str]) -> Shown:
        sent = {name: value for name, value in headers.items() if value}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        url = self.api.server.url + path
        async with self.api.session.request(
            method, url, data=form or None, headers=sent, allow_redirects=False
        ) as answer:
            for name, morsel in answer.cookies.items():
                self.cookies.pop(name, None)
                if morsel.value:
                    self.cookies[name] = morsel.value
            return Shown(answer.status, answer.headers.get("Location", ""), answer.headers, await answer.text())


@pytest.fixture
def visitor(api: Api) -> Visitor:
    return Visitor(api)


@pytest.fixture
def guest(guarded: Api) -> Visitor:
    """A visitor who is not signed in, at an API with keys."""
    return Visitor(guarded)
