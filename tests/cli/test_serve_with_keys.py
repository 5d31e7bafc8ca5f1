"""A pod that asks for API keys, while the command line makes and revokes them."""

import json
from collections.abc import Callable

import pytest
from aiohttp import ClientSession

from tests.cli.commands import Process
from tests.cli.test_pods import OURS, url_of
from tests.waiting import eventually
from timers.access import ApiKey
from timers.embedded import EmbeddedServer


@pytest.mark.usefixtures("redis")
async def test_a_key_made_while_the_pod_runs_opens_it_and_revoked_no_longer(
    server: EmbeddedServer, start: Callable[..., Process]
) -> None:
    redis = {"TIMERS_REDIS_URL": server.url}
    pod = start("serve", "--roles", "api", **OURS, **redis, TIMERS_API_KEYS="stored", TIMERS_HTTP_HOST="127.0.0.1")
    url = await url_of(pod)
    made = start("keys", "make", "-o", "json", **redis).end().json
    async with ClientSession(url) as session:

        async def answered(status: int, key: str) -> bool:
            async with session.get("/v1/timers", headers={"Authorization": f"Bearer {key}"}) as answer:
                assert answer.status in (200, 401)
                return answer.status == status

        assert await answered(401, "tmk_no_key")
        await eventually(lambda: answered(200, made["key"]), "the new key opens the pod")
        assert start("keys", "revoke", ApiKey.parse(made["entry"]).id, **redis).end().code == 0
        await eventually(lambda: answered(401, made["key"]), "the revoked key opens nothing")
    assert made["key"].split("_")[2] not in pod.err + pod.out


@pytest.mark.usefixtures("redis")
async def test_an_invalid_entry_ends_the_start_and_is_not_shown(
    server: EmbeddedServer, start: Callable[..., Process]
) -> None:
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_API_KEYS="tmk_abc_plainsecret")
    line = pod.end().refusal()
    assert "TIMERS_API_KEYS" in line
    assert "plainsecret" not in line


@pytest.mark.usefixtures("redis")
async def test_every_log_line_of_a_request_has_its_id(server: EmbeddedServer, start: Callable[..., Process]) -> None:
    pod = start("serve", "--roles", "api", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_API_KEYS="stored")
    url = await url_of(pod)
    before = len(pod.err.splitlines())
    async with ClientSession(url) as session:
        async with session.get("/v1/timers", headers={"X-Request-Id": "mine-1"}) as answer:
            assert (answer.status, (await answer.json())["request_id"]) == (401, "mine-1")
        async with session.get("/v1/timers", headers={"Authorization": "Bearer wrong"}) as answer:
            given = answer.headers["X-Request-Id"]

    async def lines() -> list[dict[str, object]] | None:
        logged = [json.loads(line) for line in pod.err.splitlines()[before:]]
        return logged if len(logged) == 2 else None

    logged = await eventually(lines, "both refusals are in the log")
    assert logged is not None
    assert [(line["event"], line["request_id"]) for line in logged] == [
        ("request refused", "mine-1"),
        ("request refused", given),
    ]
