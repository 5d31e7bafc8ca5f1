"""Calls about a timer that only a later version of the service can read: 503, and nothing changes."""

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api
from tests.store.acts import bucket_of

LATER = "test:later"
PATH = "/v1/timers/test/later"
RECORD = b"9 the head of a later version\nand its body"
CALLS = [
    ("GET", PATH, None),
    ("PUT", PATH, {"delay": "1h"}),
    ("PATCH", PATH, {"payload": 1}),
    ("DELETE", PATH, None),
    ("DELETE", f"{PATH}?purge=true", None),
    ("POST", f"{PATH}/fire", None),
    ("POST", f"{PATH}/retry", None),
    ("POST", "/v1/timers", {"prefix": "test", "id": "later", "delay": "1h", "if_exists": "keep"}),
]


@pytest.fixture
async def later(redis: Redis, api: Api) -> None:
    """A timer whose record a later version has written."""
    assert (await api.create("later")).status == 201
    await redis.hset(bucket_of(LATER), LATER, RECORD)


@pytest.mark.one_server
@pytest.mark.parametrize(("method", "path", "body"), CALLS)
@pytest.mark.usefixtures("later")
async def test_a_call_about_it_is_refused_with_the_format(
    api: Api, redis: Redis, method: str, path: str, body: object
) -> None:
    problem = (await api.call(method, path, body)).problem(503, "newer-format")
    assert problem["detail"].startswith(f"timer {LATER} is kept in record format 9, and this process reads")
    assert "may have taken effect" not in problem["detail"]
    assert await redis.hget(bucket_of(LATER), LATER) == RECORD


@pytest.mark.one_server
@pytest.mark.usefixtures("later")
async def test_the_others_of_a_batch_are_armed(api: Api) -> None:
    timers = [{"prefix": "test", "id": name, "delay": "1h"} for name in ("later", "new")]
    reply = await api.call("POST", "/v1/timers/batch", {"timers": timers})
    refused, made = reply.body["results"]
    assert (refused["problem"]["type"], made["status"]) == ("urn:timers:problem:newer-format", 201)
