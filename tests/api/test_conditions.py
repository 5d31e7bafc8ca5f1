"""Conditional requests: `If-Match`, `If-None-Match`, and that calls refuse conditions which they do not check."""

import asyncio

import pytest

from tests.api.harness import Api
from timers.api.operations import OPERATIONS
from timers.api.routes import CONDITIONS

ONE = "/v1/timers/test/one"
CALLS = [(operation.method, operation.path, set(operation.headers)) for operation in OPERATIONS]
UNCHECKED = [
    (method, path, condition)
    for method, path, parameters in CALLS
    if method != "GET"
    for condition in CONDITIONS
    if condition not in parameters
]


@pytest.mark.parametrize(("method", "path", "condition"), UNCHECKED)
async def test_a_write_with_a_condition_that_it_does_not_check_is_refused(
    api: Api, method: str, path: str, condition: str
) -> None:
    before = (await api.create()).body
    body = {"delay": "2h"} if method in ("PUT", "PATCH") else None
    address = path.format(prefix="test", id="one")
    reply = await api.call(method, address, body, headers={condition: "Sat, 21 Nov 2026 10:00:00 GMT"})
    assert condition in reply.problem(400, "malformed-request")["detail"]
    assert (await api.call("GET", ONE)).body == before


def test_no_write_is_left_out() -> None:
    """Of the four conditions, PATCH and DELETE of a timer check one; all other writes check none."""
    writes = [method for method, _, _ in CALLS if method != "GET"]
    assert len(UNCHECKED) == len(writes) * 4 - 2


@pytest.mark.parametrize("condition", ['"1"', "*", '"7", "1"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_matching_version_is_let_through(api: Api, method: str, condition: str) -> None:
    await api.create()
    body = {"payload": 2} if method == "PATCH" else None
    assert (await api.call(method, ONE, body, headers={"If-Match": condition})).status == 200


@pytest.mark.parametrize(
    "condition", ['"2"', 'W/"1"', '"01"', '"one"', '"7", "8"', '"-1"', '"²"', '"' + "9" * 400 + '"']
)
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_another_version_is_a_failed_precondition(api: Api, method: str, condition: str) -> None:
    before = await api.create()
    body = {"payload": 2} if method == "PATCH" else None
    reply = await api.call(method, ONE, body, headers={"If-Match": condition})
    reply.problem(412, "version-mismatch")
    assert (await api.call("GET", ONE)).body == before.body


async def test_one_of_two_writers_with_the_same_version_loses(api: Api) -> None:
    etag = (await api.create()).headers["ETag"]
    changes = (api.call("PATCH", ONE, {"payload": n}, headers={"If-Match": etag}) for n in range(2))
    assert sorted(reply.status for reply in await asyncio.gather(*changes)) == [200, 412]


MALFORMED = ["1", '"19", *', "*, *", '"1" "2"', '"1', "", ",", "W/1", 'w/"1"', '"a b"']


@pytest.mark.parametrize("condition", MALFORMED)
@pytest.mark.parametrize(("method", "name"), [("PATCH", "If-Match"), ("DELETE", "If-Match"), ("GET", "If-None-Match")])
async def test_an_invalid_list_of_etags_is_malformed(api: Api, method: str, name: str, condition: str) -> None:
    before = await api.create()
    body = {"payload": 2} if method == "PATCH" else None
    reply = await api.call(method, ONE, body, headers={name: condition})
    assert name in reply.problem(400, "malformed-request")["detail"]
    assert (await api.call("GET", ONE)).body == before.body


async def test_a_condition_may_come_in_several_lines(api: Api) -> None:
    await api.create()
    lines = [("If-Match", '"7"'), ("If-Match", '"1" ,')]
    assert (await api.call("PATCH", ONE, {"payload": 2}, headers=lines)).status == 200


@pytest.mark.parametrize("condition", ['"1"', 'W/"1"', "*", '"7", "1"'])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_caller_that_has_the_version_gets_304(api: Api, method: str, condition: str) -> None:
    await api.create()
    reply = await api.call(method, ONE, headers={"If-None-Match": condition})
    assert (reply.status, reply.headers["ETag"], reply.body) == (304, '"1"', None)


@pytest.mark.parametrize("condition", ['"2"', 'W/"01"', '"one"', '""', '"²"'])
async def test_a_caller_with_another_version_gets_the_timer(api: Api, condition: str) -> None:
    before = await api.create()
    reply = await api.call("GET", ONE, headers={"If-None-Match": condition})
    assert (reply.status, reply.body) == (200, before.body)


async def test_a_missing_timer_is_not_found_under_any_condition(api: Api) -> None:
    (await api.call("GET", ONE, headers={"If-None-Match": "*"})).problem(404, "timer-not-found")
    (await api.call("DELETE", ONE, headers={"If-Match": "*"})).problem(404, "timer-not-found")
