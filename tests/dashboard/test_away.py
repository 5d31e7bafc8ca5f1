"""Redis does not answer: who has seen the last state sees it with its age; others see nothing."""

import os
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.api.harness import running_api
from tests.dashboard.conftest import EVERYTHING, KEYS, PROCESSORS, READS, Visitor
from tests.servers import start_server
from tests.waiting import eventually
from timers.dashboard import site
from timers.embedded import EmbeddedServer, Family


@pytest.mark.usefixtures("reading_each_time")
@pytest.mark.parametrize("keys", [None, " ".join(key.entry for key in KEYS)], ids=["open", "with keys"])
async def test_the_last_state_is_shown_with_its_age_and_then_the_new_one(
    own_server: EmbeddedServer, keys: str | None
) -> None:
    async with running_api(
        own_server.url,
        PROCESSORS,
        keys=keys,
        keys_fresh_seconds=3600.0,
        request_seconds=0.5,
    ) as api:
        visitor, other = Visitor(api), Visitor(api)
        await api.client.create("mine", "one", delay="1h")
        if keys:
            await eventually(lambda: signed_in(visitor, EVERYTHING), "the one is signed in")
            await eventually(lambda: signed_in(other, READS), "the other is signed in")
        paths = ("/", "/ui/timers", "/ui/timers/mine/one", "/ui/prefixes", "/ui/keys")
        for path in paths:
            await eventually(lambda: present(visitor, path), f"{path} is shown")  # noqa: B023 (looked at here)
        os.kill(own_server.pid, signal.SIGSTOP)
        for path in paths:
            shown = await visitor.get(path)
            assert shown.status == 503
            assert "Redis is not available." in shown.text
            assert 'id="away"' in shown.text
            assert ("mine" in shown.text) == (path != "/ui/keys")
            assert shown.headers["Content-Security-Policy"]
        unseen = await visitor.get("/ui/failed")
        assert (unseen.status, 'id="away"' in unseen.text) == (503, False)
        if keys:
            stranger = await other.get("/")
            assert (stranger.status, 'id="away"' in stranger.text) == (503, False)
        refused = await visitor.post("/ui/timers/mine/one/cancel")
        assert (refused.status, "Redis is not available" in refused.text) == (503, True)
        if keys:
            left = await other.post("/ui/sign-out")
            assert (left.status, "until that is 12 hours old" in left.text, other.cookies) == (503, True, {})
        os.kill(own_server.pid, signal.SIGCONT)
        await eventually(lambda: present(visitor, "/"), "the page shows the present again")


async def signed_in(visitor: Visitor, key: str) -> bool:
    return (await visitor.sign_in(key)).status == 303


async def present(visitor: Visitor, path: str) -> bool:
    shown = await visitor.get(path)
    return shown.status == 200 and "Redis is not available." not in shown.text


async def test_however_large_the_pages_only_so_many_bytes_are_kept(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "REMEMBERED_BYTES", 500_000)
    async with running_api(own_server.url, PROCESSORS, request_seconds=0.5) as api:
        visitor = Visitor(api)
        await api.client.create("mine", "large", delay="1h", payload="x" * 60_000)
        paths = [f"/ui/timers/mine/large?done={number}" for number in range(10)]
        sizes = [len((await visitor.get(path)).text) for path in paths]
        assert 60_000 < min(sizes) <= max(sizes) < 250_000
        os.kill(own_server.pid, signal.SIGSTOP)
        kept = ['id="away"' in (await visitor.get(path)).text for path in paths]
        os.kill(own_server.pid, signal.SIGCONT)
    assert (kept[0], kept[-1]) == (False, True)
    assert sum(size for size, is_kept in zip(sizes, kept, strict=True) if is_kept) <= 500_000


@pytest.mark.every_server
@pytest.mark.parametrize("key", ["timers:keys", "timers:meta"])
async def test_a_foreign_value_in_the_place_of_the_keys_is_503(family: Family, key: str, tmp_path: Path) -> None:
    entries = " ".join(each.entry for each in KEYS)
    async with (
        await start_server(family, tmp_path) as server,
        running_api(server.url, PROCESSORS, keys=entries, keys_fresh_seconds=0.0) as api,
    ):
        visitor, redis = Visitor(api), api.store.connections.commands
        assert (await visitor.sign_in(EVERYTHING)).status == 303
        await redis.delete(key)
        await redis.set(key, "x")
        for method, path in (("GET", "/v1/timers"), ("GET", "/v1/prefixes"), ("POST", "/v1/losses/acknowledge")):
            reply = await api.call(method, path, headers={"Authorization": f"Bearer {EVERYTHING}"})
            reply.problem(503, "unavailable")
        assert (await visitor.get("/")).status in (200, 503)  # by the keys last known
        assert (await visitor.post("/ui/keys", {"prefixes": "mine", "right": "read"})).status == 503


async def test_a_foreign_value_in_the_place_of_the_session_secret_is_503(guest: Visitor, redis: Redis) -> None:
    await redis.sadd("timers:{access}:session", "x")
    assert (await guest.sign_in(EVERYTHING)).status == 503
    assert (await guest.get("/")).status == 303  # whoever is not signed in


async def test_a_key_that_is_no_text_affects_no_other(guest: Visitor, redis: Redis) -> None:
    await redis.hset("timers:keys", b"\xff", b"\xff")
    assert (await guest.sign_in(EVERYTHING)).status == 303
    assert (await guest.get("/")).status == 200
