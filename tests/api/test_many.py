"""Lists, batches and actions over HTTP."""

import asyncio
import json
import tracemalloc
from collections import Counter
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, Reply
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api import routes
from timers.api.requests import BATCH_LIMIT_BYTES
from timers.api.routes import ACTION_LIMIT, ACTIONS_AT_ONCE
from timers.client import actions
from timers.client.actions import EXAMPLES
from timers.core.model import Status
from timers.errors import LedgerUnavailable, TimersError, Unavailable
from timers.store.filters import Filter
from timers.store.listing import Page, read_page
from timers.store.store import Store

LINES = "application/x-ndjson"

FAR = "2099-01-01T00:00:00Z"
"""More than ten years ahead."""


def wish(timer_id: str, **fields: Any) -> dict[str, Any]:
    return {"prefix": "test", "id": timer_id, "delay": "1h", **fields}


async def batch(api: Api, *timers: Any) -> Reply:
    return await api.call("POST", "/v1/timers/batch", {"timers": list(timers)})


async def lines(api: Api, text: str, media_type: str = LINES) -> Reply:
    headers = {"Content-Type": media_type}
    return await api.call("POST", "/v1/timers/batch", data=BytesIO(text.encode()), headers=headers)


async def act(api: Api, action: str, **spec: Any) -> Reply:
    return await api.call("POST", "/v1/timers/actions", {"action": action, **spec})


async def test_pages_join_to_the_whole_list(api: Api) -> None:
    await batch(api, *[wish(f"t{i:02}", delay=f"{i + 1}h") for i in range(25)])
    seen: list[str] = []
    cursor = None
    while cursor is not None or not seen:
        page = await api.call("GET", "/v1/timers?limit=10" + (f"&cursor={cursor}" if cursor else ""))
        assert page.status == 200
        seen += [timer["id"] for timer in page.body["items"]]
        cursor = page.body["next_cursor"]
    assert seen == [f"t{i:02}" for i in range(25)]


async def test_a_listed_timer_is_the_timer(api: Api) -> None:
    created = (await api.create(tags=["vip"], payload=[1])).body
    assert (await api.call("GET", "/v1/timers?prefix=test&tag=vip&status=scheduled")).body["items"] == [created]
    assert (await api.call("GET", "/v1/timers?tag=other")).body == {"items": [], "next_cursor": None}


async def test_due_bounds_take_both_forms_of_a_time(api: Api) -> None:
    due_ms = 4_000_000_000_000
    await batch(api, wish("x", delay=None, due_at=2_000_000_000_000), wish("y", delay=None, due_at=2_000_000_060_000))
    for after, before, ids in (
        ("2000000000000", "2000000060000", ["x"]),
        ("2033-05-18T03:34:20Z", str(due_ms), ["y"]),
    ):
        page = await api.call("GET", f"/v1/timers?due_after={after}&due_before={before}")
        assert [timer["id"] for timer in page.body["items"]] == ids


@pytest.mark.parametrize(
    "query",
    [
        *(
            "limit=0",
            "limit=1001",
            "limit=ten",
            "limit=-1",
            "limit=1e2",
            "limit=٣",
            "limit=",
            "status=late",
            "prefix=A",
        ),
        *("prefix=timers", "tag=", "due_after=soon", "due_before=2026-11-21", "cursor=x", "cursor=", "sort=due"),
        "limit=5&limit=6",
    ],
)
async def test_a_bad_parameter_is_named(api: Api, query: str) -> None:
    assert (await api.call("GET", f"/v1/timers?{query}")).bad_fields() == [query.partition("=")[0]]


async def test_all_bad_parameters_are_named_at_once(api: Api) -> None:
    reply = await api.call("GET", "/v1/timers?cursor=x&limit=0&status=late&prefix=A&due_after=soon&tag=")
    assert sorted(reply.bad_fields()) == ["cursor", "due_after", "limit", "prefix", "status", "tag"]


async def test_a_batch_has_a_result_for_each_timer_in_order(api: Api) -> None:
    await api.create("taken")
    reply = await batch(
        api,
        wish("new"),
        wish("taken"),
        wish("taken", if_exists="keep"),
        wish("bad", delay="soon"),
        wish("x", prefix="nobody"),
        "no object",
        wish("last"),
    )
    assert reply.status == 200
    assert [result["status"] for result in reply.body["results"]] == [201, 409, 200, 422, 422, 422, 201]
    assert reply.body["results"][0]["timer"] == (await api.call("GET", "/v1/timers/test/new")).body
    problems = [result["problem"] for result in reply.body["results"] if "problem" in result]
    assert [problem["type"].rpartition(":")[2] for problem in problems] == [
        *("already-exists", "invalid-input", "no-processor", "invalid-input")
    ]
    assert problems[1]["errors"][0]["field"] == "delay"


@pytest.mark.parametrize(
    "media_type",
    ["application/ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonl; charset=utf-8"],
)
async def test_lines_are_taken_under_every_name_they_have(api: Api, media_type: str) -> None:
    text = "".join(f"{json.dumps(wish(name))}\n" for name in ("x", "y"))
    reply = await lines(api, text, media_type)
    assert [result["timer"]["id"] for result in reply.body["results"]] == ["x", "y"]


async def test_a_batch_of_lines_is_as_strict_on_each_as_on_a_body(api: Api) -> None:
    reply = await lines(
        api,
        "\n".join(
            [
                json.dumps(wish("a")),
                '{"prefix": "test", "delay": "1h", "delya": "1h"}',
                "{not json",
                '{"prefix": "test", "delay": NaN}',
                "",
                json.dumps(wish("b")),
            ]
        ),
    )
    assert [result["status"] for result in reply.body["results"]] == [201, 422, 422, 422, 201]


async def test_a_batch_of_a_thousand_is_taken_and_one_more_is_not(api: Api) -> None:
    full = [wish(f"t{i}") for i in range(1000)]
    results = (await batch(api, *full)).body["results"]
    assert {result["status"] for result in results} == {201}
    assert [result["timer"]["id"] for result in results] == [timer["id"] for timer in full]
    assert (await batch(api, *full, wish("more"))).bad_fields() == ["timers"]
    assert (await lines(api, "{}\n" * 1001)).bad_fields() == ["timers"]


async def test_of_too_many_lines_none_is_read(api: Api) -> None:
    """Each that is no JSON would become an error: 8 MiB of them took 3 GiB."""
    tracemalloc.start()
    try:
        reply = await lines(api, "x\n" * 50_000)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (error,) = reply.problem(422, "invalid-input")["errors"]
    assert (error["field"], error["value"]) == ("timers", "'more than 1000 timers'")
    assert most_bytes < 10_000_000


async def test_the_loop_gets_its_turns_while_the_results_of_a_batch_are_written(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.store.cooperative.SLICE_SECONDS", 0.0)
    turn, written, result = 0, Counter[int](), routes._result

    def writes(came: Any) -> dict[str, Any]:
        written[turn] += 1
        return result(came)

    monkeypatch.setattr(routes, "_result", writes)
    asked = asyncio.create_task(batch(api, *[wish("x", wrong=1)] * 1000))
    while not asked.done():
        await asyncio.sleep(0)
        turn += 1
    assert written.total() == len((await asked).body["results"]) == 1000
    assert max(written.values()) <= 2


async def test_one_timer_twice_in_a_batch_is_armed_once(api: Api) -> None:
    assert [result["status"] for result in (await batch(api, wish("x"), wish("x"))).body["results"]] == [201, 409]


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "timers"), ({"timers": {}}, "timers"), ({"timers": [], "more": 1}, "more"), ([], "")],
)
async def test_a_batch_that_is_not_a_list_is_refused(api: Api, body: Any, field: str) -> None:
    problem = (await api.call("POST", "/v1/timers/batch", body)).problem(422, "invalid-input")
    assert [error["field"] for error in problem["errors"]] == [field]


async def test_a_batch_may_be_larger_than_one_timer_but_not_without_end(api: Api) -> None:
    large = "\n".join(json.dumps(wish(f"t{i}", payload="x" * 60_000)) for i in range(20))
    assert {result["status"] for result in (await lines(api, large)).body["results"]} == {201}
    (await lines(api, " " * (BATCH_LIMIT_BYTES + 1))).problem(413, "too-large")


async def test_an_action_counts_what_it_did(api: Api) -> None:
    await batch(api, *[wish(f"t{i}", tags=["a"] if i % 3 else []) for i in range(9)])
    dry = await act(api, "cancel", filter={"prefix": "test", "tag": "a"}, dry_run=True)
    assert (dry.status, dry.body) == (200, counts(6, 0))
    done = await act(api, "cancel", filter={"prefix": "test", "tag": "a"})
    assert done.body == counts(6, 6)
    assert (await act(api, "retry", filter={"status": "cancelled"})).body["done"] == 6
    assert (await act(api, "reschedule", filter={"prefix": "test"}, delay="9h", due_at=None)).body["done"] == 9
    assert (await act(api, "purge", filter={"prefix": "test"})).body["done"] == 9
    assert (await api.call("GET", "/v1/timers")).body["items"] == []


def counts(matched: int, done: int) -> dict[str, Any]:
    return {"matched": matched, "done": done, "refused": {}, "examples": {}, "next_cursor": None}


async def test_a_timer_that_refuses_is_counted_and_stops_no_action(api: Api) -> None:
    """A repeat cannot move behind its `until`. The whole action ended there with 422, and again at each try."""
    until = "2030-01-01T00:00:00Z"
    bound = [wish(f"r{i}", repeat={"every": "1d", "until": until}) for i in range(7)]
    await batch(api, *bound, *[wish(f"t{i}", delay="2h") for i in range(5)])
    done = (await act(api, "reschedule", filter={"prefix": "test"}, due_at="2035-01-01T00:00:00Z")).body
    assert (done["matched"], done["done"], done["refused"], done["next_cursor"]) == (12, 5, {"invalid-input": 7}, None)
    examples = done["examples"]["invalid-input"]
    assert len(examples) == EXAMPLES
    assert {example["prefix"] for example in examples} == {"test"}
    assert all(example["detail"].startswith("repeat.until: ") for example in examples)


async def test_many_timers_are_changed_at_once(api: Api) -> None:
    await batch(api, *[wish(f"t{i}", tags=["old"], payload=i, retry={"max_attempts": 2}) for i in range(3)], wish("x"))
    changes = {"payload": {"new": True}, "tags": ["new"], "retry": None}
    spec: dict[str, Any] = {"filter": {"tag": "old"}, "changes": changes}
    assert (await act(api, "change", dry_run=True, **spec)).body == counts(3, 0)
    assert (await act(api, "change", **spec)).body == counts(3, 3)
    timers = (await api.call("GET", "/v1/timers?tag=new")).body["items"]
    assert [(timer["payload"], timer["retry"], timer["version"]) for timer in timers] == [({"new": True}, None, 2)] * 3
    assert (await api.call("GET", "/v1/timers/test/x")).body["version"] == 1
    moved = await act(api, "change", filter={"prefix": "test"}, changes={"delay": "9h", "payload": 1})
    assert moved.body["done"] == 4
    assert len({timer.due_ms async for timer in api.client.iterate(prefix="test")}) == 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"action": "change", "filter": {"prefix": "test"}}, "changes"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {}}, "changes"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {"tags": 5}}, "changes.tags"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {"status": "x"}}, "changes.status"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {"due_at": "x"}}, "changes.due_at"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {"due_at": FAR}}, "changes.due_at"),
        ({"action": "reschedule", "filter": {"prefix": "test"}, "due_at": FAR}, "due_at"),
        ({"action": "change", "filter": {"status": "failed"}, "changes": {"payload": 5}}, "filter.status"),
        ({"action": "change", "filter": {"prefix": "test"}, "changes": {"payload": 5}, "delay": "1h"}, "delay"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "changes": {"payload": 5}}, "changes"),
        ({"action": "explode", "filter": {"prefix": "test"}}, "action"),
        ({"action": ["cancel"], "filter": {"prefix": "test"}}, "action"),
        ({"action": "cancel"}, "filter"),
        ({"action": "cancel", "filter": {}}, "filter"),
        ({"action": "cancel", "filter": []}, "filter"),
        ({"action": "cancel", "filter": {"prefix": "A"}}, "filter.prefix"),
        ({"action": "cancel", "filter": {"status": "completed"}}, "filter.status"),
        ({"action": "cancel", "filter": {"status": 5}}, "filter.status"),
        ({"action": "cancel", "filter": {"status": [{}]}}, "filter.status"),
        ({"action": "cancel", "filter": {"tag": {}}}, "filter.tag"),
        ({"action": "cancel", "filter": {"tag": [[]]}}, "filter.tag"),
        ({"action": "cancel", "filter": {"due_after": True}}, "filter.due_after"),
        ({"action": "cancel", "filter": {"id": "x"}}, "filter.id"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "dry_run": "yes"}, "dry_run"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "force": True}, "force"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "delay": "1h"}, "delay"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "due_at": 4_000_000_000_000}, "due_at"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "cursor": 5}, "cursor"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "cursor": "x"}, "cursor"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "cursor": "1.9."}, "cursor"),
        ({"action": "cancel", "filter": {"prefix": "test"}, "cursor": "1.1.x"}, "cursor"),
        ({"action": "reschedule", "filter": {"prefix": "test"}}, "delay"),
        ({"action": "reschedule", "filter": {"prefix": "test"}, "delay": "soon"}, "delay"),
    ],
)
async def test_a_bad_action_is_refused_by_name(api: Api, spec: dict[str, Any], field: str) -> None:
    assert (await api.call("POST", "/v1/timers/actions", spec)).bad_fields() == [field]


async def test_all_that_is_wrong_with_an_action_is_named_at_once(api: Api) -> None:
    spec = {"filter": {"id": "x", "status": "late", "tag": 5}, "dry_run": 1, "force": True}
    reply = await api.call("POST", "/v1/timers/actions", spec)
    assert sorted(reply.bad_fields()) == ["action", "dry_run", "filter.id", "filter.status", "filter.tag", "force"]


async def arm(api: Api, number: int) -> None:
    for start in range(0, number, 1000):
        some = range(start, min(start + 1000, number))
        assert (await batch(api, *[wish(f"t{i:04}") for i in some])).status == 200


async def scheduled(api: Api) -> int:
    return (await api.client.counts()).get("test", {}).get(Status.SCHEDULED, 0)


@pytest.mark.one_server
async def test_an_action_on_many_timers_ends_early_and_continues_with_its_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ACTION_SECONDS", DEADLINE_SECONDS)  # a busy machine may take as long
    await arm(api, ACTION_LIMIT + 150)
    spec: dict[str, Any] = {"filter": {"prefix": "test"}}
    first = await act(api, "reschedule", delay="9h", **spec)
    assert first.body["matched"] == first.body["done"] == ACTION_LIMIT
    (next_one,) = (await api.client.list(limit=1, prefix="test")).items
    own = await api.client.reschedule("test", next_one.id, delay="2h")
    second = await act(api, "reschedule", delay="9h", cursor=first.body["next_cursor"], **spec)
    assert (second.body["done"], second.body["next_cursor"]) == (149, None)
    due = {timer.due_ms async for timer in api.client.iterate(prefix="test") if timer.id != own.id}
    assert len(due) == 1, "the delay counts from when the action began"
    assert (await api.client.get("test", own.id)).due_ms == own.due_ms, "somebody changed it after the action began"


@pytest.mark.parametrize("error", [Unavailable("Redis is not available: cut"), LedgerUnavailable("the ledger is away")])
async def test_an_action_that_breaks_off_says_how_many_timers_were_done(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: TimersError
) -> None:
    async def only_first(store: Store, wanted: Filter, *, limit: int, cursor: str | None) -> Page:
        if cursor is not None:
            raise error
        return await read_page(store, wanted, limit=limit, cursor=cursor)

    await arm(api, actions.PAGE + 1)
    monkeypatch.setattr(actions, "read_page", only_first)
    broken = await act(api, "cancel", filter={"prefix": "test"})
    assert broken.status == 503
    done = f"; {actions.PAGE} timers were done before that: repeat it for the others"
    assert done in broken.body["detail"]
    assert "look" not in broken.body["detail"]
    assert await scheduled(api) == 1


async def test_an_action_stops_when_its_client_leaves(api: Api) -> None:
    await arm(api, ACTION_LIMIT)
    body = json.dumps({"action": "cancel", "filter": {"prefix": "test"}})
    parts = urlsplit(api.server.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = "POST /v1/timers/actions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await writer.drain()

    async def begun() -> bool:
        return await scheduled(api) < ACTION_LIMIT

    await eventually(begun, "the action is under way")
    writer.close()
    await writer.wait_closed()

    async def rests() -> bool:
        before = await scheduled(api)
        await act(api, "purge", filter={"status": "failed"}, dry_run=True)
        return await scheduled(api) == before

    await eventually(rests, "the action has ended")
    assert await scheduled(api) > 0


async def test_too_many_actions_at_once_are_answered_busy(api: Api, redis: Redis) -> None:
    await arm(api, 20)
    await act(api, "cancel", filter={"tag": "none"})
    await redis.client_pause(600_000, all=False)
    calls = [asyncio.create_task(act(api, "cancel", filter={"prefix": "test"})) for _ in range(ACTIONS_AT_ONCE + 1)]
    try:
        ended, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await redis.client_unpause()
    (busy,) = [call.result() for call in ended]
    busy.problem(503, "busy")
    assert busy.headers["Retry-After"] == "1"
    assert {(await call).status for call in waiting} == {200}
    assert (await act(api, "cancel", filter={"prefix": "test"})).status == 200
    assert await scheduled(api) == 0
