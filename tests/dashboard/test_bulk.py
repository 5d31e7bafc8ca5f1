"""Actions on many timers: counted, confirmed by typing, done in slices, with what was not done and why."""

import re
from collections.abc import Mapping
from html import unescape

import pytest

from tests.dashboard.conftest import WRITES, Shown, Visitor
from timers.core.model import Status
from timers.dashboard import many


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "SLICE", 20)
    monkeypatch.setattr(many, "SLICE_SECONDS", 0.0)


def fields_of(text: str) -> list[tuple[str, str]]:
    """The hidden fields of the page's form."""
    main = text[text.index("<main") :]
    return [(n, unescape(v)) for n, v in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', main)]


async def through(visitor: Visitor, asked: Shown) -> tuple[Shown, int]:
    """Confirm and continue to the end. Returns the last page and the number of requests."""
    fields = fields_of(asked.text)
    words = re.search(r'data-words="([^"]+)"', asked.text)
    assert words is not None
    shown, requests = await visitor.post("/ui/bulk", [*fields, ("words", words[1])]), 1
    while 'id="ended"' not in shown.text:
        assert shown.status == 200
        shown, requests = await visitor.post("/ui/bulk", fields_of(shown.text)), requests + 1
    return shown, requests


async def counts_of(visitor: Visitor, prefix: str) -> Mapping[Status, int]:
    return (await visitor.api.client.counts()).get(prefix, {})


async def test_many_are_cancelled_in_slices_and_all_of_them(visitor: Visitor) -> None:
    await visitor.api.client.batch([{"prefix": "test", "id": f"t{i}", "delay": "1h"} for i in range(250)])
    await visitor.api.client.create("mine", "other", delay="1h")
    asked = await visitor.get("/ui/bulk?action=cancel&prefix=test")
    assert "<strong>250 timers</strong>" in asked.text
    assert await counts_of(visitor, "test") == {Status.SCHEDULED: 250}
    ended, requests = await through(visitor, asked)
    assert "<strong>250 of 250 done</strong>" in ended.text
    assert requests == 3
    assert await counts_of(visitor, "test") == {Status.CANCELLED: 250}
    assert await counts_of(visitor, "mine") == {Status.SCHEDULED: 1}


@pytest.mark.parametrize("words", ["", "cancel", "cancel 2", "retry 3"])
async def test_without_the_right_words_nothing_is_done(visitor: Visitor, words: str) -> None:
    await visitor.api.client.batch([{"prefix": "test", "id": f"t{i}", "delay": "1h"} for i in range(3)])
    fields = fields_of((await visitor.get("/ui/bulk?action=cancel&prefix=test")).text)
    shown = await visitor.post("/ui/bulk", [*fields, ("words", words)])
    assert (shown.status, "The text does not match" in shown.text) == (422, True)
    assert await counts_of(visitor, "test") == {Status.SCHEDULED: 3}


async def test_selected_timers_are_moved_and_the_others_are_reported(visitor: Visitor) -> None:
    client = visitor.api.client
    for name in ("a", "b", "c"):
        await client.create("test", name, delay="1h")
    await client.cancel("test", "b")
    chosen = [("timer", f"test:{name}") for name in ("a", "b", "gone")]
    asked = await visitor.post("/ui/bulk", [*chosen, ("action", "reschedule"), ("when", "2035-01-01T00:00:00Z")])
    ended, _ = await through(visitor, asked)
    assert "<strong>1 of 3 done</strong>" in ended.text
    refused = re.search(r'id="refused">(.*?)</ul>', ended.text, re.DOTALL)
    assert refused is not None
    assert "timer test:b is cancelled" in refused[1]
    assert "timer test:gone does not exist" in refused[1]
    assert [(await client.get("test", name)).due_at.year == 2035 for name in ("a", "c")] == [True, False]


async def test_retrying_a_group_leaves_other_errors_alone(visitor: Visitor) -> None:
    client = visitor.api.client
    for name in ("a", "b"):
        await client.create("test", name, delay="1h")
        await client.cancel("test", name)
    asked = await visitor.get("/ui/bulk?action=retry&prefix=test&status=cancelled&error=another")
    assert "No timer that matches" in asked.text
    ended, _ = await through(visitor, await visitor.get("/ui/bulk?action=retry&prefix=test&q=test:a"))
    assert "1 done" in ended.text
    assert await counts_of(visitor, "test") == {Status.SCHEDULED: 1, Status.CANCELLED: 1}


async def test_a_purge_removes_the_records(visitor: Visitor) -> None:
    await visitor.api.client.batch([{"prefix": "test", "id": f"t{i}", "delay": "1h"} for i in range(5)])
    await through(visitor, await visitor.get("/ui/bulk?action=purge&prefix=te*"))
    assert (await visitor.api.client.list()).items == []


async def test_timers_that_changed_meanwhile_are_left_alone(visitor: Visitor) -> None:
    client = visitor.api.client
    await client.create("test", "before", delay="1m")
    place = (await client.list(limit=1, prefix="test")).next_cursor
    await client.create("test", "one", delay="1h")
    asked = await visitor.get("/ui/bulk?action=cancel&prefix=test")
    began = '{"matched": 0, "done": 0, "refused": {}, "examples": {}, "next_cursor": "%s"}'
    fields = [*fields_of(asked.text), ("words", "cancel 2"), ("progress", began % f"1.{place}")]
    assert "0 of 2 done" in (await visitor.post("/ui/bulk", fields)).text
    assert await counts_of(visitor, "test") == {Status.SCHEDULED: 2}


async def test_a_timer_that_refuses_stops_no_action(visitor: Visitor) -> None:
    """A repeat cannot move behind its `until`; the action ended there with an error, and its place was lost."""
    client, until = visitor.api.client, "2030-01-01T00:00:00Z"
    await client.create("test", "a", delay="1h", repeat={"every": "1d", "until": until})
    await client.create("test", "b", delay="2h")
    ended, _ = await through(
        visitor, await visitor.get("/ui/bulk?action=reschedule&prefix=test&when=2035-01-01T00:00:00Z")
    )
    assert "<strong>1 of 2 done</strong>, 1 refused." in ended.text
    assert "repeat.until: &#39;2030-01-01T00:00:00Z&#39; is not accepted" in ended.text
    assert (await client.get("test", "b")).due_at.year == 2035


async def test_many_are_changed_with_a_form(visitor: Visitor) -> None:
    client = visitor.api.client
    await client.batch([{"prefix": "test", "id": f"t{i}", "delay": "1h", "tags": ["old"]} for i in range(3)])
    asked = await visitor.get("/ui/bulk?action=change&tag=old")
    assert "<strong>3 timers</strong>" in asked.text or "More than" not in asked.text
    for changes, said in (
        ("", "JSON"),
        ("{}", "changes:"),
        ('{"tags": 5}', "changes.tags"),
        ('{"status": 1}', "changes.status"),
    ):
        fields = [*fields_of(asked.text), ("words", "change 3"), ("changes", changes)]
        wrong = await visitor.post("/ui/bulk", fields)
        assert (wrong.status, said in wrong.text) == (422, True), wrong.text
    done = await visitor.post(
        "/ui/bulk", [*fields_of(asked.text), ("words", "change 3"), ("changes", '{"payload": 7, "tags": ["new"]}')]
    )
    assert "<strong>3 of 3 done</strong>" in done.text
    assert {(timer.payload, *timer.tags) for timer in (await client.list()).items} == {(7, "new")}


async def test_selected_timers_are_changed(visitor: Visitor) -> None:
    client = visitor.api.client
    for name in ("a", "b"):
        await client.create("test", name, delay="1h")
    asked = await visitor.post("/ui/bulk", [("timer", "test:a"), ("action", "change")])
    fields = [*fields_of(asked.text), ("words", "change 1"), ("changes", '{"payload": 7}')]
    assert "<strong>1 of 1 done</strong>" in (await visitor.post("/ui/bulk", fields)).text
    assert [(await client.get("test", name)).payload for name in ("a", "b")] == [7, None]


@pytest.mark.parametrize(
    "query", ["action=cancel", "action=drop&prefix=test", "action=reschedule&prefix=test", "prefix=test"]
)
async def test_an_action_without_a_valid_action_or_filter_is_refused(visitor: Visitor, query: str) -> None:
    assert (await visitor.get(f"/ui/bulk?{query}")).status == 422


async def test_progress_that_was_made_up_is_refused(visitor: Visitor) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    fields = fields_of((await visitor.get("/ui/bulk?action=cancel&prefix=test")).text)
    shown = await visitor.post("/ui/bulk", [*fields, ("words", "cancel 1"), ("progress", "{}")])
    assert shown.status == 422
    assert await counts_of(visitor, "test") == {Status.SCHEDULED: 1}


async def test_a_key_reaches_only_its_own(guest: Visitor) -> None:
    client = guest.api.client
    await client.create("mine", "own", delay="1h")
    await client.create("test", "theirs", delay="1h")
    await guest.sign_in(WRITES)
    asked = await guest.get("/ui/bulk?action=cancel&due_after=2020-01-01T00:00:00Z")
    await through(guest, asked)
    chosen = await guest.post("/ui/bulk", [("timer", "test:theirs"), ("action", "cancel")])
    ended, _ = await through(guest, chosen)
    assert "0 of 1 done" in ended.text
    assert (await client.get("test", "theirs")).status is Status.SCHEDULED
    assert (await client.get("mine", "own")).status is Status.CANCELLED
