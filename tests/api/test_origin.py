"""An open API refuses requests from other sites' pages in a browser on the same machine."""

import pytest
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from timers.embedded import EmbeddedServer

ONE = "/v1/timers/test/one"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://[", "http://localhost:1", "http://127.0.0.1"]
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", ONE + "/fire"), ("DELETE", ONE), ("POST", "/v1/prefixes/test/pause")]
)
async def test_a_page_of_another_site_changes_nothing(api: Api, origin: str, method: str, path: str) -> None:
    before = (await api.create()).body
    (await api.call(method, path, headers={"Origin": origin})).problem(403, "denied")
    assert (await api.call("GET", ONE)).body == before


async def test_the_services_own_page_and_programs_change_timers(api: Api) -> None:
    await api.create()
    assert (await api.call("POST", ONE + "/fire", headers={"Origin": api.server.url})).status == 200
    assert (await api.call("DELETE", ONE)).status == 200


STRANGE = ["evil.example", "evil.example:8080", "localhost.evil.example", "127.1", "", "[::1", "[x.y]", "a.b:c:d"]


@pytest.mark.parametrize("host", STRANGE)
async def test_a_request_with_a_foreign_host_header_is_refused(api: Api, host: str) -> None:
    reply = await api.call("GET", "/v1/timers", headers={"Host": host})
    assert reply.status in (400, 403)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "app.localhost", "timers:8080"]
)
async def test_a_request_with_a_host_header_of_this_machine_is_answered(api: Api, host: str) -> None:
    assert (await api.call("GET", "/v1/timers", headers={"Host": host})).status == 200


async def test_with_keys_any_name_and_page_may_ask(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    headers, kept = new_key()
    async with running_api(server.url, [done], keys=kept.entry) as api:
        strange = {**headers, "Host": "timers.example.org", "Origin": "https://app.example.org"}
        assert (await api.call("PUT", ONE, {"delay": "1h"}, headers=strange)).status == 201
