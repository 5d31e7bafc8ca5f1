"""The table of problems, and answers that come from no handler."""

import json
from collections.abc import Iterator

import pytest
from aiohttp import web

from tests.api.harness import Api
from timers import errors
from timers.api.answer import HTTP_PROBLEMS, PROBLEMS, answer_problems, of_error


def every_error() -> Iterator[type[errors.TimersError]]:
    found = [errors.TimersError]
    while found:
        kind = found.pop()
        yield kind
        found += kind.__subclasses__()


def test_no_two_problems_share_a_type_and_every_error_has_one_of_the_document() -> None:
    problems = {error.problem for error in every_error()} | set(HTTP_PROBLEMS.values())
    assert problems == set(PROBLEMS.values())


def test_an_error_that_names_no_problem_has_that_of_its_base() -> None:
    class Odd(errors.Refused):
        pass

    assert Odd("x").problem is errors.Refused.problem


def test_a_503_while_redis_is_away_has_retry_after() -> None:
    response = of_error(errors.Unavailable("gone"))
    assert (response.status, response.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/timers/test", "/v1/timers/test/one/two", "/v2/timers"])
async def test_an_unknown_address_is_a_problem(api: Api, path: str) -> None:
    (await api.call("GET", path)).problem(404, "no-such-address")


async def test_a_wrong_method_is_a_problem_that_names_the_right_ones(api: Api) -> None:
    reply = await api.call("PUT", "/v1/timers", {})
    reply.problem(405, "method-not-allowed")
    assert "POST" in reply.headers["Allow"]


async def test_an_unexpected_error_goes_to_the_log_not_to_the_client() -> None:
    async def broken(_request: web.Request) -> web.Response:
        raise RuntimeError("the password is hunter2")

    from aiohttp.test_utils import make_mocked_request

    response = await answer_problems(make_mocked_request("GET", "/x"), broken)
    assert isinstance(response, web.Response)
    assert response.status == 500
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["type"] == "urn:timers:problem:internal"
    assert b"hunter2" not in response.body


async def test_a_refusal_says_what_can_be_done(api: Api) -> None:
    await api.create()
    one = "/v1/timers/test/one"
    assert "fire makes it due now" in (await api.call("POST", f"{one}/retry")).problem(409, "not-scheduled")["detail"]
    await api.call("DELETE", one)
    assert "retry arms it again" in (await api.call("POST", f"{one}/fire")).problem(409, "not-scheduled")["detail"]
    assert "/docs" in (await api.call("GET", "/nope")).problem(404, "no-such-address")["detail"]
    wrong = (await api.call("PUT", "/v1/stats")).problem(405, "method-not-allowed")["detail"]
    assert wrong == "PUT /v1/stats is not a call; this path takes GET, HEAD"
