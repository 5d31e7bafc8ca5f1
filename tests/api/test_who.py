"""Who changed a timer: the API key's name in the timer's history and in the log."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from tests.store.acts import an_end, armed, claim, settle
from timers.core.explain import explain
from timers.core.outcome import Done
from timers.embedded import EmbeddedServer
from timers.store.codec import encode_cause

HEADERS, KEY = new_key(name="billing")
NAMELESS, NAMELESS_KEY = new_key()
ONE = "/v1/timers/test/one"


@pytest.fixture
async def guarded(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    async with running_api(server.url, [done], keys=f"{KEY.entry},{NAMELESS_KEY.entry}") as api:
        yield api


async def test_the_history_and_the_log_name_the_key_that_changed_a_timer(guarded: Api) -> None:
    with capture_logs() as logs:
        await guarded.client.create("test", "one", delay="1h")
        await guarded.call("PATCH", ONE, {"tags": ["vip"]}, headers=HEADERS)
        await guarded.call("PATCH", ONE, {"delay": "2h"}, headers=HEADERS)
        await guarded.call("POST", f"{ONE}/fire", headers=HEADERS)
        await guarded.call("DELETE", ONE, headers=HEADERS)
        await guarded.call("POST", f"{ONE}/retry", headers=HEADERS)
        reply = await guarded.call("PUT", ONE, {"delay": "1h"}, headers=NAMELESS)
    assert [(entry["cause"], entry["note"], entry["by"]) for entry in reply.body["history"]] == [
        ("replaced", "replaced", NAMELESS_KEY.id),
        ("retried", "retried on request", "billing"),
        ("cancelled", "cancelled", "billing"),
        ("fired", "fired on request", "billing"),
        ("rescheduled", "rescheduled", "billing"),
        ("changed", "changed", "billing"),
        ("created", "created", None),
    ]
    told = [(log["act"], log["timer"], log["by"]) for log in logs if log["event"] == "a caller changed a timer"]
    assert told == [(act, "test:one", "billing") for act in ("change", "change", "fire", "cancel", "retry")]
    timer = await guarded.client.get("test", "one")
    assert " scheduled by billing: rescheduled" in "\n".join(explain(timer, timer.updated_ms))


async def test_the_history_names_the_key_that_created_a_timer(guarded: Api) -> None:
    async def creators(timer_id: str) -> list[str | None]:
        timer = await guarded.client.get("test", timer_id)
        return [entry.by for entry in timer.history if entry.cause == "created"]

    made = await guarded.call("PUT", ONE, {"delay": "1h"}, headers=HEADERS)
    assert [entry["by"] for entry in made.body["history"]] == ["billing"]
    batch = {"timers": [{"prefix": "test", "id": "b", "delay": "1h"}]}
    await guarded.call("POST", "/v1/timers/batch", batch, headers=HEADERS)
    await guarded.call("PATCH", ONE, {"payload": 2}, headers=NAMELESS)
    assert (await creators("one"), await creators("b")) == (["billing"], ["billing"])
    replaced = await guarded.call("PUT", ONE, {"delay": "2h"}, headers=NAMELESS)
    assert "billing" not in str(replaced.body["history"])  # the spec, which has its name, is another's
    assert await creators("one") == [None]


@pytest.mark.parametrize(("action", "cause"), [("cancel", "cancelled"), ("reschedule", "rescheduled")])
async def test_an_action_on_many_timers_is_told_of_each(guarded: Api, action: str, cause: str) -> None:
    for timer_id in ("a", "b"):
        await guarded.client.create("test", timer_id, delay="1h")
    due = {"delay": "5h"} if action == "reschedule" else {}
    body = {"action": action, "filter": {"prefix": "test"}, **due}
    with capture_logs() as logs:
        assert (await guarded.call("POST", "/v1/timers/actions", body, headers=HEADERS)).body["done"] == 2
    for timer_id in ("a", "b"):
        newest = (await guarded.client.get("test", timer_id)).history[0]
        assert (newest.cause, newest.by) == (cause, "billing")
    assert {log["timer"] for log in logs if log.get("by") == "billing"} == {"test:a", "test:b"}


async def test_the_log_says_who_paused_a_prefix_and_who_purged_a_timer(guarded: Api) -> None:
    await guarded.client.create("test", "one", delay="1h")
    with capture_logs() as logs:
        await guarded.call("POST", "/v1/prefixes/test/pause", headers=HEADERS)
        await guarded.call("POST", "/v1/prefixes/test/resume", headers=HEADERS)
        await guarded.call("DELETE", f"{ONE}?purge=true", headers=HEADERS)
    told = [(log["act"], log.get("prefix"), log.get("timer")) for log in logs if log.get("by") == "billing"]
    assert told == [("pause", "test", None), ("resume", "test", None), ("purge", None, "test:one")]


async def test_without_keys_nobody_is_named(api: Api) -> None:
    with capture_logs() as logs:
        await api.create("one")
        reply = await api.call("DELETE", ONE)
    assert [entry["by"] for entry in reply.body["history"]] == [None, None]
    assert not [log for log in logs if "by" in log]


@pytest.mark.one_server
@pytest.mark.parametrize("note", ["cancelled billing", "x\ncancelled billing", "x\n1 x 0 - - - cancelled billing"])
async def test_no_note_of_a_processor_looks_like_a_caller(api: Api, note: str) -> None:
    await armed(api.store)
    (timer,) = await claim(api.store)
    outcome: Any = Done(note)
    await settle(api.store, an_end(timer, cause=("completed", outcome.note)))
    assert encode_cause("completed", note).startswith("completed ")
    (ended,) = await api.store.get([(timer.prefix, timer.id)])
    assert ended is not None
    assert [entry.by for entry in ended.history] == [None, None, None]


async def test_a_name_cannot_break_the_record(api: Api) -> None:
    await api.create("one")
    timer = await api.client.acting("a\nb  c\0" + "x" * 5000).cancel("test", "one")
    assert timer.history[0].cause == "cancelled"
    assert (timer.history[0].by or "").startswith("a b c")
    assert len(timer.history) == 2
    made = await api.client.acting("a\nb  c\0").create("test", "two", delay="1h")
    assert [entry.by for entry in made.history] == ["a b c"]
