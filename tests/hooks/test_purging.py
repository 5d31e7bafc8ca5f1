"""What a purge leaves of a timer in the calls of hooks about it: nothing with its payload."""

import asyncio
import json
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, until
from tests.hooks.test_hooks import all_calls_made, pod_of, told
from tests.unit.samples import a_timer
from tests.waiting import DEADLINE_SECONDS
from tests.webhooks.receivers import hang, receiving, settings, speaking
from timers.core.hooks import CHANGES_LIMIT, ids_of_calls
from timers.core.model import Timer

SECRET = "ada@example.org"


async def calls_of(fleet: Fleet) -> list[Timer]:
    return [call async for call in fleet.client.iterate(prefix="timers.*")]


async def keeps_the_secret(fleet: Fleet) -> bool:
    """Whether any key of the db has the payload."""
    found = False
    async for key in fleet.redis.scan_iter():
        reads: dict[Any, Any] = {
            b"hash": fleet.redis.hgetall,
            b"stream": fleet.redis.xrange,
            b"string": fleet.redis.get,
        }
        read = reads.get(await fleet.redis.type(key))
        found = found or (read is not None and SECRET in str(await read(key)))
    return found


@pytest.mark.parametrize("how", ["one", "by tag", "by tag, after the hook was taken back"])
async def test_a_purge_leaves_no_call_with_the_timers_payload(fleet: Fleet, how: str) -> None:
    async with receiving() as receiver:
        pod = await pod_of(fleet, settings(hooks=f"all+payload@note={receiver.url}"), Calls())
        for timer_id, delay in (("done", 0), ("waiting", "1h"), ("another", "1h")):
            tags = ["other" if timer_id == "another" else "ada"]
            payload = "kept" if timer_id == "another" else {"mail": SECRET}
            await fleet.client.create("note", timer_id, delay=delay, payload=payload, tags=tags)
        await until(lambda: told(receiver.received, "done")[-1:] == ["timer.completed"], "one has run")
        await all_calls_made(fleet)
        assert await keeps_the_secret(fleet)
        assert any(SECRET in json.dumps(call.payload) for call in await calls_of(fleet))
        if how.endswith("taken back"):
            await fleet.drain(pod)
            await fleet.redis.delete("timers:{pods}:declared")
        if how == "one":
            for timer_id in ("done", "waiting"):
                await fleet.client.cancel("note", timer_id, purge=True)
        else:
            assert (await fleet.client.act("purge", {"tag": "ada"})).to_json()["done"] == 2
        if not how.endswith("taken back"):
            await until(lambda: told(receiver.received, "waiting")[-1:] == ["timer.cancelled"], "the purge is told")
            await all_calls_made(fleet)
            assert not await keeps_the_secret(fleet)
        left = {(call.payload["body"]["data"]["id"], call.payload["body"]["type"]) for call in await calls_of(fleet)}
        cancelled = set() if how.endswith("taken back") else {("waiting", "timer.cancelled")}
        assert left == {("another", "timer.armed"), *cancelled}
        assert all(SECRET not in json.dumps(call.payload) for call in await calls_of(fleet))


async def test_a_call_that_runs_during_a_purge_is_named_and_has_the_timers_tags(fleet: Fleet) -> None:
    begun = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await hang(reader, writer)

    async with speaking(slow) as url:
        await pod_of(fleet, settings(hooks=f"armed+payload@note={url}"), Calls())
        await fleet.client.create("note", "a", delay="1h", payload=SECRET, tags=["ada"])
        async with asyncio.timeout(DEADLINE_SECONDS):
            await begun.wait()
        counts = await fleet.client.act("purge", {"tag": "ada"})
        assert (counts.matched, counts.refused) == (1, {"running": 1})
        (call,) = await calls_of(fleet)
        assert f"timer note:a is removed, but not the call {call.key}" in counts.examples["running"][0]["detail"]
        assert (await fleet.client.list(prefix="timers.*", tag="ada")).items[0].key == call.key


def test_a_purge_looks_for_a_bounded_number_of_calls_of_a_timer_that_changed_millions_of_times() -> None:
    ids = ids_of_calls(a_timer(version=5_000_000))
    assert len(set(ids)) == CHANGES_LIMIT
    assert ids[1] == ids_of_calls(a_timer(version=4_999_999))[0]
    assert len(ids_of_calls(a_timer(version=3))) == 3
