"""The pages over HTTP: who may open them, what those about timers show, and that all escape hostile strings."""

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api
from tests.dashboard.conftest import EVERYTHING, OPERATES, READS, WRITES, Visitor
from tests.store.acts import retrying
from tests.waiting import eventually
from timers.api.operations import Operation
from timers.client import Armed
from timers.core.model import Status
from timers.dashboard import PAGES

if TYPE_CHECKING:
    from timers.core.calls import NewTimerFields, RepeatFields

HOSTILE = "\"><script>alert(1)</script>'&{{7*7}}<img src=x onerror=alert(1)>"
RIGHTS = {READS: {"read"}, WRITES: {"read", "write"}, OPERATES: {"read", "operate"}}
READABLE = [page for page in PAGES if page.right and page.id != "GET /ui/live"]
"""All but the one without an end."""
OF_ALL = {
    *("GET /ui/server", "POST /ui/server/acknowledge"),
    *("GET /ui/keys", "POST /ui/keys", "POST /ui/keys/{key}/revoke"),
}


def path_of(page: Operation, prefix: str) -> str:
    """The page's address, for a timer that exists."""
    action = "pause" if "prefixes" in page.path else "cancel"
    path = page.path.format(prefix=prefix, id="one", action=action, key="nokey", name="x")
    return f"{path}?action=cancel&prefix={prefix}" if page.id == "GET /ui/bulk" else path


def filled_in(page: str) -> dict[str, str]:
    """What a browser sends of the form on a page if nobody changes it."""
    form = page[page.index('<form class="card"') :]
    areas = re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>([^<]*)</textarea>', form)
    inputs = re.findall(r'<input [^>]*name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value).replace("\n", "\r\n") for name, value in (*areas, *inputs)}


async def open_page(visitor: Visitor, page: Operation, prefix: str = "mine") -> int:
    """The status of the answer."""
    path = path_of(page, prefix)
    shown = await (
        visitor.get(path) if page.method == "GET" else visitor.post(path, {"action": "cancel", "prefix": prefix})
    )
    return shown.status


async def test_timers_that_wait_for_their_next_try_are_among_the_failures_by_error(visitor: Visitor) -> None:
    for number in range(3):
        await retrying(visitor.api.store, f"r{number}", prefix="test", since="2026-01-01T00:00:00.000Z")
    text = unescape((await visitor.get("/ui/failed")).text)
    assert "3 retrying" in text
    assert "OSError: mail is down" in text
    (shown,) = re.findall(r'href="(/ui/timers\?prefix=test&status=retrying&error=[^"]+)"', text)
    assert "r2" in (await visitor.get(shown)).text
    (tries,) = re.findall(r'href="(/ui/bulk\?action=reschedule[^"]+)">Try now', text)
    assert "reschedule 3" in (await visitor.get(tries)).text
    assert "test: 3 timers fail and are retried, the first for" in (await visitor.get("/")).text


@pytest.mark.parametrize("key", [READS, WRITES, OPERATES], ids=["reads", "writes", "operates"])
@pytest.mark.parametrize("page", READABLE, ids=lambda page: page.id)
async def test_a_page_opens_with_its_right_alone(guest: Visitor, page: Operation, key: str) -> None:
    await guest.api.client.create("mine", "one", delay="1h")
    await guest.sign_in(key)
    status = await open_page(guest, page)
    if page.right in RIGHTS[key] and page.id not in OF_ALL:
        assert status in (200, 303, 409, 422), status
    else:
        assert status == 403


@pytest.mark.parametrize("page", [p for p in PAGES if p.right and "{prefix}" in p.path], ids=lambda page: page.id)
async def test_pages_about_other_keys_prefixes_are_404(guest: Visitor, page: Operation) -> None:
    await guest.api.client.create("test", "one", delay="1h")
    for key in (READS, WRITES, OPERATES):
        await guest.sign_in(key)
        assert await open_page(guest, page, "test") == 404
    assert (await guest.api.client.get("test", "one")).version == 1


@pytest.mark.parametrize("page", READABLE, ids=lambda page: page.id)
async def test_a_read_only_session_changes_nothing(guest: Visitor, page: Operation) -> None:
    await guest.api.client.create("mine", "one", delay="1h")
    await guest.sign_in(EVERYTHING, read_only="on")
    expected = 403 if page.right != "read" else 303 if page.method == "POST" else 200
    assert await open_page(guest, page) == expected
    assert (await guest.api.client.get("mine", "one")).version == 1


async def test_looking_changes_nothing(guest: Visitor, redis: Redis) -> None:
    """No GET writes: opening every page with an all-rights key leaves the whole db as it was."""
    await guest.api.client.create("mine", "one", delay="1h")
    await guest.sign_in(EVERYTHING)

    async def kept() -> dict[bytes, object]:
        reads: dict[Any, Any] = {
            b"hash": redis.hgetall,
            b"set": redis.smembers,
            b"string": redis.get,
            b"stream": redis.xrange,
            b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
        }
        ours = [key async for key in redis.scan_iter("timers:*", count=1000)]
        keys = [key for key in ours if b":canary:" not in key and b":rate:" not in key]  # these go by themselves
        return {key: await reads[await redis.type(key)](key) for key in keys}

    before = await kept()
    for page in READABLE:
        if page.method == "GET":
            await open_page(guest, page)
    assert await kept() == before


async def test_what_a_key_may_not_do_is_not_offered(guest: Visitor) -> None:
    await guest.api.client.create("mine", "one", delay="1h")
    for key, offered in [(READS, False), (WRITES, True)]:
        await guest.sign_in(key)
        for path in ("/ui/timers", "/ui/timers/mine/one"):
            text = (await guest.get(path)).text
            assert ("/ui/new" in text) is offered
            assert ("Cancel" in text) is offered


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"a", "b", "c", "off"}),
        ("status=scheduled", {"a", "b", "c"}),
        ("status=scheduled&status=cancelled&prefix=test", {"a", "b", "off"}),
        ("prefix=mi*", {"c"}),
        ("tag=vip", {"b"}),
        ("q=test:a", {"a"}),
        ("due_before=2031-01-01T00:00:00Z", {"a"}),
        ("due_after=2031-01-01T00:00:00Z&status=scheduled&prefix=test&tag=vip&q=b", {"b"}),
        ("q=none", set()),
    ],
)
async def test_a_list_is_filtered_by_its_address(visitor: Visitor, query: str, found: set[str]) -> None:
    client = visitor.api.client
    await client.create("test", "a", due_at="2030-01-01T00:00:00Z")
    await client.create("test", "b", due_at="2032-01-01T00:00:00Z", tags=["vip"])
    await client.create("mine", "c", due_at="2033-01-01T00:00:00Z")
    await client.create("test", "off", due_at="2034-01-01T00:00:00Z")
    await client.cancel("test", "off")
    text = (await visitor.get(f"/ui/timers?{query}")).text
    assert set(re.findall(r'class="id" href="/ui/timers/\w+/(\w+)"', text)) == found


async def test_an_invalid_condition_is_reported_beside_its_field(visitor: Visitor) -> None:
    shown = await visitor.get("/ui/timers?due_after=tomorrow&status=failed")
    assert shown.status == 422
    assert "due_after: &#39;tomorrow&#39; is not accepted" in shown.text
    assert 'value="tomorrow"' in shown.text


async def test_pages_of_a_list_hold_every_timer_once(visitor: Visitor) -> None:
    news: list[NewTimerFields] = [{"prefix": "test", "id": f"t{i}", "delay": f"{i + 1}h"} for i in range(120)]
    await visitor.api.client.batch(news)
    for order, expected in [("", range(120)), ("&sort=newest", range(119, -1, -1))]:
        seen: list[str] = []
        path: str | None = f"/ui/timers?prefix=test&status=scheduled{order}"
        while path:
            text = (await visitor.get(path)).text
            seen += re.findall(r'class="id" href="/ui/timers/test/(\w+)"', text)
            onward = re.search(r'href="([^"]+)" rel="next"', text)
            path = onward[1].replace("&amp;", "&") if onward else None
        assert seen == [f"t{i}" for i in expected]


async def test_a_timer_shows_its_life_and_reasons(working: Api) -> None:
    await working.client.create("broken", "one", payload="the reason", delay="0s", tags=["vip"], metadata={"k": "v"})
    visitor = Visitor(working)

    async def told() -> str | None:
        text = (await visitor.get("/ui/timers/broken/one")).text
        return text if "gave up after" in text else None

    text = await eventually(told, "the timer failed")
    assert "given up after 1 failed attempt" in text
    assert text.count("the reason") == 2, "once as the error, once in the payload"
    assert re.findall(r'<li class="(\w+)', text) == ["failed", "running", "scheduled"]
    split = dict(re.findall(r'<td data-label="(\w+)" class="number[^"]*">([^<]*)</td>', text))
    assert set(split) == {"Event", "Claim", "Queue"}
    assert all(ms[0].isdigit() for ms in split.values()), split
    assert "api-test" in text


async def test_the_action_that_undoes_nothing_is_the_blue_one(visitor: Visitor) -> None:
    client = visitor.api.client
    await client.create("test", "one", delay="1h")
    for blue in ("Reschedule", "Retry"):
        text = (await visitor.get("/ui/timers/test/one")).text
        assert re.findall(r'<button class="primary">(.*?)</button>', text) == [blue]
        assert len(re.findall(r'<button class="danger"', text)) == 2
        await client.cancel("test", "one")


async def test_a_long_error_is_cut_with_an_ellipsis_and_shown_in_full_on_demand(visitor: Visitor) -> None:
    long = f"the server said {'no ' * 100}end"
    await retrying(visitor.api.store, "r", prefix="test", reason=long)
    text = (await visitor.get("/ui/failed")).text
    found = re.search(r'<details class="error-text"><summary title="(.*?)">(.*?)…</summary>(.*?)</details>', text)
    assert found is not None
    assert found[1] == found[3] == f"OSError: {long}"
    assert found[3].startswith(found[2])
    assert f'title="OSError: {long}"' in (await visitor.get("/ui/timers")).text


async def test_the_next_ten_occurrences_are_those_that_will_be(visitor: Visitor) -> None:
    repeat: RepeatFields = {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}
    await visitor.api.client.create("test", "daily", repeat=repeat, due_at="2030-03-28T08:00:00Z")
    text = (await visitor.get("/ui/timers/test/daily")).text
    listed = re.findall(r"<li>(2030-[\d-]+ [\d:]+) UTC", text)
    assert listed[:4] == ["2030-03-28 08:00:00", "2030-03-29 08:00:00", "2030-04-01 07:00:00", "2030-04-02 07:00:00"]
    assert len(listed) == 10


@pytest.mark.parametrize(
    ("action", "form", "status"),
    [
        ("cancel", {}, Status.CANCELLED),
        ("reschedule", {"when": "2h"}, Status.SCHEDULED),
        ("fire", {}, Status.SCHEDULED),
        ("reschedule", {"when": "2035-01-01T00:00:00Z"}, Status.SCHEDULED),
    ],
)
async def test_an_action_is_done(visitor: Visitor, action: str, form: dict[str, str], status: Status) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    done = await visitor.post(f"/ui/timers/test/one/{action}", form)
    assert done.where == f"/ui/timers/test/one?done={action}"
    after = await visitor.api.client.get("test", "one")
    assert (after.status, after.version) == (status, 2)
    assert 'role="status"' in (await visitor.get(done.where)).text


async def test_an_action_that_is_refused_says_why(visitor: Visitor) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    shown = await visitor.post("/ui/timers/test/one/retry")
    assert shown.status == 409
    assert "is scheduled already" in shown.text
    moved = await visitor.post("/ui/timers/test/one/reschedule", {"when": "soon"})
    assert (moved.status, "delay: &#39;soon&#39; is not accepted" in moved.text) == (409, True)
    assert (await visitor.post("/ui/timers/test/one/nothing")).status == 404
    assert (await visitor.get("/ui/timers/test/none")).status == 404


async def test_nothing_is_changed_by_a_get(visitor: Visitor) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    for action in ("cancel", "purge", "fire", "retry", "reschedule"):
        assert (await visitor.get(f"/ui/timers/test/one/{action}")).status == 405
    assert (await visitor.api.client.get("test", "one")).version == 1


async def test_a_timer_is_armed_changed_and_duplicated_by_form(visitor: Visitor) -> None:
    form = {
        "prefix": "test",
        "id": "one",
        "when": "1h",
        "payload": '{"a": [1, "ü"]}',
        "repeat": '{"every": "1d"}',
        "retry": '{"max_attempts": 3}',
        "missed": '{"grace": "10m"}',
        "timeout": "30s",
        "tags": "a, b",
        "metadata": '{"k": "v"}',
    }
    assert (await visitor.post("/ui/new", form)).where == "/ui/timers/test/one?done=new"
    made = await visitor.api.client.get("test", "one")
    assert (made.payload, made.tags, made.metadata) == ({"a": [1, "ü"]}, ["a", "b"], {"k": "v"})
    copy = (await visitor.get("/ui/new?from=test:one")).text
    assert '"every": "1d"' in unescape(copy)
    again = await visitor.post("/ui/new", form)
    assert (again.status, "exists and is scheduled" in again.text) == (409, True)

    changed = {**form, "version": "1", "payload": '"new"', "tags": "", "retry": "", "when": ""}
    assert (await visitor.post("/ui/timers/test/one/edit", changed)).status == 303
    after = await visitor.api.client.get("test", "one")
    assert (after.payload, after.tags, after.retry, after.due_ms) == ("new", [], None, made.due_ms)
    stale = await visitor.post("/ui/timers/test/one/edit", changed)
    assert (stale.status, "not the expected one" in stale.text) == (409, True)


@pytest.mark.parametrize(
    "given",
    [
        {"payload": {}},
        {"payload": [1] * 32_000},
        {"payload": "é" * 32_000},
        {"tags": ["a", "b c"]},
        {"tags": ["a,b", " c"]},
        {"tags": ["[a]"]},
        {"tags": ["{a"]},
    ],
    ids=lambda given: str(given)[:30],
)
async def test_a_form_that_is_sent_as_it_came_changes_nothing(visitor: Visitor, given: "NewTimerFields") -> None:
    (made,) = await visitor.api.client.batch([{"prefix": "test", "id": "one", "delay": "1h", **given}])
    assert isinstance(made, Armed)
    for came, to, made_id in (
        ("/ui/timers/test/one/edit", "/ui/timers/test/one/edit", "one"),
        ("/ui/new?from=test:one", "/ui/new", "copy"),
    ):
        form = filled_in((await visitor.get(came)).text)
        assert (await visitor.post(to, {**form, "id": made_id})).status == 303
        assert (await visitor.api.client.get("test", made_id)).spec == made.timer.spec


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("prefix", "Bad Prefix", "prefix"),
        ("prefix", "nobody", "prefix"),
        ("payload", "{", "expected JSON"),
        ("payload", '{"a":NaN}', "expected JSON"),
        ("when", "soon", "delay"),
        ("repeat", '{"every": "x"}', "repeat.every"),
        ("tags", "x" * 65, "tags"),
    ],
)
async def test_a_field_that_is_wrong_keeps_what_was_typed(visitor: Visitor, field: str, value: str, said: str) -> None:
    form = {"prefix": "test", "id": "one", "when": "1h", field: value}
    shown = await visitor.post("/ui/new", form)
    assert shown.status in (422, 409)
    assert value in unescape(shown.text)
    assert said in unescape(shown.text)
    assert (await visitor.api.client.list()).items == []


async def test_hostile_strings_are_text_everywhere(working: Api) -> None:
    visitor, client = Visitor(working), working.client
    await client.create("broken", "one", payload=HOSTILE, delay="0s", tags=["<b>"], metadata={HOSTILE: HOSTILE})
    await client.create("test", "two", payload={HOSTILE: [HOSTILE]}, delay="1h", tags=[HOSTILE[:64]])

    async def failed() -> bool:
        return (await client.get("broken", "one")).status is Status.FAILED

    await eventually(failed, "the timer failed")
    hostile = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    paths = ["/", "/ui/timers", "/ui/timers/broken/one", "/ui/timers/test/two", "/ui/timers/test/two/edit"]
    paths += ["/ui/failed", "/ui/prefixes", "/ui/pods", "/ui/server", "/ui/keys", "/ui/new?from=test:two"]
    paths += [
        f"/ui/timers?{name}={hostile}" for name in ("q", "prefix", "tag", "due_after", "status", "cursor", "error")
    ]
    paths += [f"/ui/prefixes?q={hostile}", f"/ui/prefixes?after={hostile}", f"/ui/new?from={hostile}:x"]
    paths += [
        f"/ui/bulk?action=cancel&q={hostile}",
        f"/ui/bulk?action={hostile}",
        "/ui/timers/%22%3E%3Cscript%3Ealert(1)/x",
        "/ui/failed?page=x",
    ]
    for path in paths:
        text = (await visitor.get(path)).text
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
        assert "49" not in re.findall(r"&#39;&amp;(.*?)&lt;img", text), path
    bad = await visitor.post("/ui/new", dict.fromkeys(("prefix", "id", "when", "payload", "repeat", "tags"), HOSTILE))
    assert "<script>alert" not in bad.text
    key = await visitor.post("/ui/keys", {"name": HOSTILE, "prefixes": HOSTILE, "right": "read"})
    assert (key.status, "<script>alert" in key.text) == (422, False)


async def test_failures_are_grouped_by_prefix_and_error(working: Api) -> None:
    for i in range(3):
        await working.client.create("broken", f"a{i}", payload=f"user {i} is gone", delay="0s")
    await working.client.create("broken", "b", payload="no route", delay="0s")

    async def ended() -> bool:
        return (await working.client.counts()).get("broken", {}).get(Status.FAILED, 0) == 4

    await eventually(ended, "all have failed")
    text = (await Visitor(working).get("/ui/failed")).text
    groups: list[Any] = re.findall(r'data-label="Timers">(\d+)</td>.*?error-text">(.*?)</span>', text, re.DOTALL)
    assert [number for number, _ in groups] == ["3", "1"]
    assert re.fullmatch("Fail: user [012] is gone", groups[0][1]), "the text of one of them"
    assert groups[1][1] == "Fail: no route"
    shown = (await Visitor(working).get("/ui/timers?prefix=broken&status=failed&error=Fail:+user+%23+is+gone")).text
    assert set(re.findall(r'class="id" href="/ui/timers/broken/(\w+)"', shown)) == {"a0", "a1", "a2"}
