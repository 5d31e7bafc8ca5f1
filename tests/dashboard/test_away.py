"""Redis does not answer: the last state with its age to whoever has seen it, and nothing to anybody else."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.harness import running_api
from tests.dashboard.conftest import EVERYTHING, KEYS, PROCESSORS, READS, Visitor
from tests.servers import start_server
from tests.waiting import eventually
from timers.api import deadlines, livekeys
from timers.dashboard import overview, service
from timers.embedded import EmbeddedServer


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = await start_server("redis", tmp_path)
    yield server
    os.kill(server.pid, signal.SIGCONT)
    await server.stop()


@pytest.fixture(autouse=True)
def fresh_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livekeys, "FRESH_SECONDS", 3600.0)
    monkeypatch.setattr(overview, "STATS_SECONDS", 0.0)
    monkeypatch.setattr(service, "VIEWS_SECONDS", 0.0)


@pytest.mark.parametrize("keys", [None, " ".join(key.entry for key in KEYS)], ids=["open", "with keys"])
async def test_the_last_state_is_shown_with_its_age_and_then_the_new_one(
    own_server: EmbeddedServer, keys: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_api(own_server.url, PROCESSORS, keys=keys) as api:
        visitor, other = Visitor(api), Visitor(api)
        await api.client.create("mine", "one", delay="1h")
        if keys:
            await visitor.sign_in(EVERYTHING)
            await other.sign_in(READS)
        paths = ("/", "/ui/timers", "/ui/timers/mine/one", "/ui/prefixes")
        for path in paths:
            assert (await visitor.get(path)).status == 200
        monkeypatch.setattr(deadlines, "REQUEST_SECONDS", 0.5)
        os.kill(own_server.pid, signal.SIGSTOP)
        for path in paths:
            shown = await visitor.get(path)
            assert shown.status == 503
            assert "Redis is away." in shown.text
            assert 'id="away"' in shown.text
            assert "mine" in shown.text
            assert shown.headers["Content-Security-Policy"]
        unseen = await visitor.get("/ui/failed")
        assert (unseen.status, 'id="away"' in unseen.text) == (503, False)
        if keys:
            stranger = await other.get("/")
            assert (stranger.status, 'id="away"' in stranger.text) == (503, False)
        refused = await visitor.post("/ui/timers/mine/one/cancel")
        assert (refused.status, "Redis is away" in refused.text) == (503, True)
        monkeypatch.setattr(deadlines, "REQUEST_SECONDS", 10.0)
        os.kill(own_server.pid, signal.SIGCONT)

        async def back() -> bool:
            shown = await visitor.get("/")
            return shown.status == 200 and "Redis is away." not in shown.text

        await eventually(back, "the page shows the present again")
