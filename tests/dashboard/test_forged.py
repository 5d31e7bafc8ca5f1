"""Forged forms, cookies and addresses: each is the caller's mistake, the answer says so, and nothing changes."""

import asyncio
import json
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.dashboard.conftest import READS, Visitor
from timers.api.credentials import COOKIE

NUMBERS: Final = ["-1", "9" * 30, "9" * 5000, "\u0663", "\u00b2", "1e3", "x", "1\x00", "NaN"]


@pytest.mark.parametrize("number", NUMBERS, ids=ascii)
async def test_a_forged_version_changes_nothing(visitor: Visitor, number: str) -> None:
    timer = await visitor.api.client.create("mine", "one", delay="1h")
    for action in ("cancel", "purge", "edit"):
        shown = await visitor.post(f"/ui/timers/mine/one/{action}", {"version": number, "when": "2h"})
        assert 400 <= shown.status < 500, action
    assert await visitor.api.client.get("mine", "one") == timer


@pytest.mark.parametrize("field", ["pending", "most_prefixes"])
async def test_a_forged_number_makes_no_key(visitor: Visitor, field: str) -> None:
    for number in NUMBERS:
        shown = await visitor.post("/ui/keys", {"prefixes": "mine", "right": "read", field: number})
        assert shown.status == 422, number


PROGRESS: Final[dict[str, Any]] = {"matched": 0, "done": 0, "refused": {}, "examples": {}, "next_cursor": None}
FORGED: Final[dict[str, list[Any]]] = {
    "next_cursor": ["x", "é", "9" * 5000, "0.0.0.0.0", "null", " ", "\x00", "-1", 5, [], {}, True],
    "matched": [-1, 1e400, "x", None, []],
    "refused": [{"": -1}, [], 5, {"x": {}}],
    "examples": [5, [], [{}], {"x": 5}, {"x": [5]}, {"x": {"y": 1}}],
}
TEXTS: Final = [
    *(json.dumps({**PROGRESS, name: value}) for name, values in FORGED.items() for value in values),
    *("{}", "[]", "5", "null", "", "{", "[" * 20_000, '{"a":' * 10_000, "\x00"),
]


@pytest.mark.parametrize("chosen", [[], [("timer", "mine:one")]], ids=["filter", "chosen"])
async def test_a_forged_progress_changes_nothing(visitor: Visitor, chosen: list[tuple[str, str]]) -> None:
    timer = await visitor.api.client.create("mine", "one", delay="1h")
    form = [("action", "cancel"), ("prefix", "mine"), ("number", "1"), ("words", "cancel 1"), *chosen]
    for text in TEXTS:
        shown = await visitor.post("/ui/bulk", [*form, ("progress", text)])
        assert 400 <= shown.status < 500, text[:100]
    assert await visitor.api.client.get("mine", "one") == timer


@pytest.mark.parametrize("name", ["matched", "done"])
async def test_a_progress_of_astronomic_numbers_is_no_fault_of_the_service(visitor: Visitor, name: str) -> None:
    form = [("action", "cancel"), ("prefix", "mine"), ("number", "1"), ("words", "cancel 1")]
    for digits in (400, 4000, 4300, 5000):
        text = json.dumps({**PROGRESS, name: 0}).replace(f'"{name}": 0', f'"{name}": {"9" * digits}')
        shown = await visitor.post("/ui/bulk", [*form, ("progress", text)])
        assert shown.status < 500, digits


@pytest.mark.parametrize("query", ["", "prefix=mine&status=scheduled&sort=newest&"], ids=["any", "newest"])
async def test_a_forged_cursor_is_refused(visitor: Visitor, query: str) -> None:
    await visitor.api.client.create("mine", "one", delay="1h")
    for cursor in ("x", "%ff", "9" * 5000, "0", "-1", "a:b:c", "%00", "null", "eyJhIjoxfQ", "[]"):
        shown = await visitor.get(f"/ui/timers?{query}cursor={cursor}")
        assert 400 <= shown.status < 500, cursor


async def status_with(visitor: Visitor, cookies: bytes) -> int:
    """The status of the first page for a browser that sends these cookies."""
    parts = urlsplit(visitor.api.server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nConnection: close\r\nCookie: " + cookies + b"\r\n\r\n"
    )
    status = int((await reader.read()).split(b" ")[1])
    writer.close()
    return status


async def test_a_cookie_that_is_no_text_is_the_browsers_mistake(guest: Visitor) -> None:
    await guest.sign_in(READS)
    own = guest.cookies[COOKIE].encode()
    name = COOKIE.encode()
    assert await status_with(guest, name + b"=" + own) == 200
    for value in (b"\xff\xfe", b"\xff." + own.partition(b".")[2], own[:-1] + b"\xff", own[:30] + b"\xe4" + own[31:]):
        assert await status_with(guest, name + b"=" + value) == 400
    assert await status_with(guest, b"other=\xff; " + name + b"=" + own + b"; more=\xfe") == 200
