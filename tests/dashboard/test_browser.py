"""The dashboard in a real browser: every action by a click, with each kind of key, without a message on the console,
without requests to other hosts, and without findings of an accessibility checker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from playwright.async_api import Page, Route
from redis.asyncio import Redis

from tests.api.harness import Api
from tests.dashboard.conftest import EVERYTHING, OPERATES, READS, WRITES, Watched
from tests.store.acts import an_end
from tests.waiting import eventually
from timers.core.model import Status
from timers.dashboard import many
from timers.store import keys
from timers.store.starts import FAILED, add_starts

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
PAGES = (
    "/",
    "/ui/timers",
    "/ui/timers?status=failed&prefix=broken",
    "/ui/timers?due_after=tomorrow",
    "/ui/timers/broken/one",
    "/ui/timers/mine/daily",
    "/ui/timers/mine/daily/edit",
    "/ui/timers/mine/none",
    "/ui/new",
    "/ui/bulk?action=cancel&prefix=mine",
    "/ui/failed",
    "/ui/prefixes",
    "/ui/prefixes/broken",
    "/ui/pods",
    "/ui/server",
    "/ui/keys",
)
LOOKS: Final[Mapping[int, Sequence[Literal["light", "dark"]]]] = {1200: ("light", "dark"), 380: ("light",)}
"""By width."""
HOSTILE = "\"'><script>throw 1</script><img src=x onerror=alert(1)>"


async def fill_in(page: Page, field: str, text: str) -> None:
    """Fill in the field that a page begins with, once it has the focus: a busy browser gives it late, and complains if
    another element has it by then."""
    await page.wait_for_selector(f"{field}:focus")
    await page.fill(field, text)


async def signed_in(api: Api, watched: Watched, key: str, path: str = "/") -> Page:
    """Sign in with the form."""
    page = watched.page
    await page.goto(f"{api.server.url}{path}")
    await fill_in(page, "#key", key)
    await page.click("text=Sign in >> nth=-1")
    await page.wait_for_url(f"{api.server.url}{path}")
    return page


async def a_few_timers(api: Api) -> None:
    """Timers of every kind, with strings that a page must escape."""
    client = api.client
    await client.create("mine", "daily", repeat={"cron": "0 9 * * *"}, payload={"text": HOSTILE}, tags=[HOSTILE[:60]])
    for name in ("a", "b", "c"):
        await client.create("mine", name, delay="1h", metadata={"m": HOSTILE})
    await client.create("broken", "one", payload=HOSTILE, delay="0s")

    async def failed() -> bool:
        return (await client.get("broken", "one")).status is Status.FAILED

    await eventually(failed, "one has failed")


async def findings(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """The violations that axe-core finds, of all rules or of these."""
    found: list[str] = await page.evaluate(
        """async (rules) => {
            const asked = rules.length ? { runOnly: rules } : {};
            const { violations } = await axe.run({ ...asked, resultTypes: ["violations"] });
            return violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 150)}`);
        }""",
        list(rules),
    )
    return found


@pytest.mark.timeout(600)
async def test_every_page_is_quiet_fits_and_is_accessible(working: Api, watched: Watched) -> None:
    await a_few_timers(working)
    page = watched.page
    await page.add_init_script(AXE)  # half a megabyte, sent once
    for width, schemes in LOOKS.items():
        await page.set_viewport_size({"width": width, "height": 900})
        for path in PAGES:
            await page.goto(working.server.url + path)
            for scheme in schemes:
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colour between the two
                # Another scheme has other colours, and all else is the same.
                assert await findings(page, ["color-contrast"] if scheme == "dark" else ()) == [], (path, width, scheme)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert await page.locator("h1").count() == 1
    watched.complaints = [said for said in watched.complaints if "404" not in said and "422" not in said]
    watched.assert_quiet(working.server.url)


async def test_on_a_phone_the_navigation_is_one_row_and_the_filters_are_folded(api: Api, watched: Watched) -> None:
    page = watched.page
    for width, is_phone in ((390, True), (1200, False)):
        await page.set_viewport_size({"width": width, "height": 844})
        await page.goto(f"{api.server.url}/ui/timers?prefix=test")
        boxes = [await link.bounding_box() for link in await page.locator("nav a").all()]
        assert len(boxes) == 7
        assert len({round(box["y"]) for box in boxes if box}) == 1
        assert max(box["x"] + box["width"] for box in boxes if box) <= width
        assert await page.is_visible("#prefix") is not is_phone
        assert await page.is_visible(".filters > summary") is is_phone
        if is_phone:
            assert "prefix test" in await page.inner_text(".filters > summary")
            await page.click(".filters > summary")
            assert await page.is_visible("#prefix")
    watched.assert_quiet(api.server.url)


async def test_failures_have_the_colour_of_failure_in_the_charts(api: Api, watched: Watched) -> None:
    await api.client.create("test", "one", delay="1h")
    await add_starts(api.store, {1: 5})
    await add_starts(api.store, {FAILED: 2}, keys.FAILED_ROOT)
    await watched.page.goto(f"{api.server.url}/")
    colours = await watched.page.evaluate(
        """["rect.failed", "rect.fired"].map((part) => getComputedStyle(document.querySelector(part)).fill)"""
    )
    assert colours == ["rgb(207, 58, 49)", "rgb(79, 134, 232)"]


async def test_with_the_keyboard_alone_one_comes_to_the_content_and_to_the_search(api: Api, watched: Watched) -> None:
    page = watched.page
    await page.goto(f"{api.server.url}/ui/timers")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.id") == "q"
    watched.assert_quiet(api.server.url)


async def test_a_key_that_writes_clicks_through_the_life_of_a_timer(guarded: Api, watched: Watched) -> None:
    page, client = await signed_in(guarded, watched, WRITES, "/ui/timers"), guarded.client
    await page.click("text=Arm a timer")
    for field, value in {"prefix": "mine", "id": "one", "when": "1h", "payload": '{"a": 1}'}.items():
        await page.fill(f"#{field}", value)
    await page.click("button:text-is('Arm')")
    await page.wait_for_url("**/ui/timers/mine/one?done=new")
    assert (await client.get("mine", "one")).payload == {"a": 1}

    await page.fill("#when", "2035-01-01T00:00:00Z")
    await page.click("button:text-is('Reschedule')")
    await page.wait_for_url("**?done=reschedule")
    assert (await client.get("mine", "one")).due_at.year == 2035

    await page.click("a:text-is('Edit')")
    await page.fill("#payload", '"changed"')
    await page.click("button:text-is('Change')")
    await page.wait_for_url("**?done=edit")
    assert (await client.get("mine", "one")).payload == "changed"

    await page.click("summary")
    await page.click("form[action$='/cancel'] button")
    await page.wait_for_url("**?done=cancel")
    assert (await client.get("mine", "one")).status is Status.CANCELLED

    await page.click("button:text-is('Retry')")
    await page.wait_for_url("**?done=retry")
    assert (await client.get("mine", "one")).status is Status.SCHEDULED

    await page.click("text=Duplicate")
    await page.fill("#id", "two")
    await page.click("button:text-is('Arm')")
    await page.wait_for_url("**/mine/two?done=new")
    await page.click("button:text-is('Fire now')")
    await page.wait_for_url("**?done=fire")
    assert (await client.get("mine", "two")).history[0].cause == "fired"

    await page.click("summary")
    await page.click("form[action$='/purge'] button")
    await page.wait_for_url("**/ui/timers?prefix=mine")
    assert [timer.id for timer in (await client.list()).items] == ["one"]
    watched.assert_quiet(guarded.server.url)


async def test_chosen_timers_are_cancelled_after_the_words_are_typed(guarded: Api, watched: Watched) -> None:
    for name in ("a", "b", "c"):
        await guarded.client.create("mine", name, delay="1h")
    page = await signed_in(guarded, watched, WRITES, "/ui/timers")
    await page.check("input[value='mine:a']")
    await page.check("input[value='mine:b']")
    assert await page.inner_text("[data-count]") == "2 chosen"
    await page.click(".chosen >> text=Cancel")
    assert await page.is_disabled("button.danger")
    await fill_in(page, "#words", "cancel 2")
    await page.click("button.danger")
    await page.wait_for_selector("#ended")
    assert "2 of 2 done" in await page.inner_text("#done")
    found = {timer.id: timer.status for timer in (await guarded.client.list()).items}
    assert found == {"a": Status.CANCELLED, "b": Status.CANCELLED, "c": Status.SCHEDULED}
    watched.assert_quiet(guarded.server.url)


async def test_an_action_continues_slice_by_slice_without_a_click(
    api: Api, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "SLICE", 10)
    monkeypatch.setattr(many, "SLICE_SECONDS", 0.0)
    await api.client.batch([{"prefix": "test", "id": f"t{i}", "delay": "1h"} for i in range(35)])
    page = watched.page
    await page.goto(f"{api.server.url}/ui/timers?prefix=test")
    await page.click("text=Act on all matching timers")
    await page.select_option("#all-action", "reschedule")
    await page.fill("#all-when", "2035-01-01T00:00:00Z")
    await page.click("text=Count them first")
    assert "35 timers" in await page.inner_text("#count")
    await fill_in(page, "#words", "reschedule 35")
    await page.click("button.primary")
    await page.wait_for_selector("#ended")
    assert "35 of 35 done" in await page.inner_text("#done")
    assert {timer.due_at.year for timer in (await api.client.list()).items} == {2035}
    watched.assert_quiet(api.server.url)


async def test_a_group_of_failures_is_retried_from_its_card(working: Api, watched: Watched) -> None:
    await a_few_timers(working)
    page = watched.page
    await page.goto(f"{working.server.url}/ui/failed")
    await page.click("td >> text=Retry")
    await fill_in(page, "#words", "retry 1")
    await page.click("button.primary")
    await page.wait_for_selector("#ended")

    async def ran_again() -> bool:
        return (await working.client.get("broken", "one")).token > 0 and "retried" in [
            entry.cause for entry in (await working.client.get("broken", "one")).history
        ]

    await eventually(ran_again, "it was retried")
    watched.assert_quiet(working.server.url)


async def test_all_failures_of_a_prefix_are_retried_from_its_card_and_then_purged(api: Api, watched: Watched) -> None:
    page, client = watched.page, api.client
    await client.batch([{"prefix": "broken", "id": f"t{i}", "delay": 0} for i in range(3)])
    claimed = await api.store.claim(0, [("broken", 3)], pod="a", lease_ms=60_000, cause="event")
    await api.store.settle(0, [an_end(timer, Status.FAILED) for timer in claimed.timers], pod="a", retention_ms=60_000)
    await page.goto(f"{api.server.url}/ui/failed")
    for path, action, left in [("/ui/failed", "retry", 3), ("/ui/bulk?action=purge&prefix=broken", "purge", 0)]:
        await page.goto(api.server.url + path)
        if action == "retry":
            await page.click("text=Retry all of broken")
        await fill_in(page, "#words", f"{action} 3")
        await page.click(f"button:text-is('{action.capitalize()} 3 timers')")
        await page.wait_for_selector("#ended")
        assert "3 of 3 done" in await page.inner_text("#done")
        found = (await client.list()).items
        assert [timer.status for timer in found] == [Status.SCHEDULED] * left
    watched.assert_quiet(api.server.url)


async def test_a_declaration_is_forgotten_and_a_loss_acknowledged(guarded: Api, watched: Watched) -> None:
    await guarded.client.create("mine", "one", delay="1h")
    await guarded.store.connections.commands.hset("timers:meta", "loss:shard:0", "1795000000000 1795000001000 40")
    await guarded.store.identity.refresh()
    page = await signed_in(guarded, watched, EVERYTHING, "/ui/prefixes")
    await page.click("[aria-label='Forget test']")
    await page.wait_for_url("**/ui/prefixes?q=test")
    assert await page.locator("[aria-label='Forget test']").count() == 0
    assert "test" not in [view.prefix for view in await guarded.client.prefixes()]
    await page.goto(f"{guarded.server.url}/ui/server")
    await page.click("form[action$='/acknowledge'] button")
    await page.wait_for_selector("text=Data was lost.", state="detached")
    assert (await guarded.client.stats()).losses == []
    watched.assert_quiet(guarded.server.url)


async def test_a_key_that_operates_pauses_and_resumes_and_changes_no_timer(guarded: Api, watched: Watched) -> None:
    await guarded.client.create("mine", "one", delay="1h")
    page = await signed_in(guarded, watched, OPERATES, "/ui/prefixes")
    await page.click("button:text-is('Pause')")
    await page.wait_for_selector("button:text-is('Resume')")
    assert [view.paused for view in await guarded.client.prefixes() if view.prefix == "mine"] == [True]
    await page.click("button:text-is('Resume')")
    await page.wait_for_selector("button:text-is('Pause')")
    assert [view.paused for view in await guarded.client.prefixes() if view.prefix == "mine"] == [False]
    await page.goto(f"{guarded.server.url}/ui/timers/mine/one")
    assert await page.locator("main form").count() == 0
    watched.assert_quiet(guarded.server.url)


async def test_a_key_that_reads_is_offered_nothing_that_changes(guarded: Api, watched: Watched) -> None:
    await guarded.client.create("mine", "one", delay="1h")
    page = await signed_in(guarded, watched, READS)
    for path in ("/", "/ui/timers", "/ui/timers/mine/one", "/ui/failed", "/ui/prefixes", "/ui/pods"):
        await page.goto(guarded.server.url + path)
        assert await page.locator("main button:not(:text-is('Show'))").count() == 0
        assert await page.locator("main form[method=post] button").count() == 0
    await page.click("text=Sign out")
    await page.wait_for_url("**/ui/sign-in")
    watched.assert_quiet(guarded.server.url)


async def test_a_key_for_everything_makes_a_key_and_revokes_it(guarded: Api, watched: Watched) -> None:
    page = await signed_in(guarded, watched, EVERYTHING, "/ui/keys")
    await page.fill("#name", "new")
    await page.check("input[value=write]")
    await page.click("button:text-is('Make')")
    key = await page.inner_text("#made")
    body = {"prefix": "mine", "id": "by-key", "delay": "1h"}
    headers = {"Authorization": f"Bearer {key}"}

    async def works() -> bool:
        return (await guarded.call("POST", "/v1/timers", {**body, "if_exists": "keep"}, headers=headers)).status < 300

    await eventually(works, "the new key arms a timer")
    await page.click(f"[aria-label='Revoke {key.split('_')[1]}']")
    await page.wait_for_url("**/ui/keys")

    async def refused() -> bool:
        return (await guarded.call("GET", "/v1/stats", headers=headers)).status == 401

    await eventually(refused, "the revoked key opens nothing")
    watched.assert_quiet(guarded.server.url)


async def test_read_only_is_switched_on_and_off(api: Api, watched: Watched) -> None:
    page = watched.page
    await page.goto(f"{api.server.url}/ui/timers")
    for text, offered in [("Read-only: off", False), ("Read-only", True)]:
        await page.click(f"button:text-is('{text}')")
        await page.goto(f"{api.server.url}/ui/timers")
        assert (await page.locator("a[href='/ui/new']").count() > 0) is offered
    watched.assert_quiet(api.server.url)


async def test_a_page_reads_again_while_somebody_looks_and_counts_down(api: Api, watched: Watched) -> None:
    page = watched.page
    await page.clock.install()
    await api.client.create("test", "one", delay="1h")
    await page.goto(f"{api.server.url}/")
    await api.client.create("test", "two", delay="30m")
    await page.clock.run_for(4000)
    await page.wait_for_selector("a[href='/ui/timers/test/two']")
    before = await page.inner_text("time >> nth=0")
    await page.evaluate("Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})")
    await page.wait_for_selector("#live:not(.htmx-request)")  # otherwise the minute that follows would be its time-out
    asked = len(watched.requests)
    await page.clock.run_for(60_000)
    assert len(watched.requests) == asked
    assert await page.inner_text("time >> nth=0") != before
    await page.evaluate("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")

    async def asked_again() -> bool:
        return len(watched.requests) > asked

    await eventually(asked_again, "the page is read again as soon as it is seen")
    watched.assert_quiet(api.server.url)


async def test_a_page_listens_while_it_is_seen_and_shows_what_is_new(api: Api, redis: Redis, watched: Watched) -> None:
    """The page does not poll here: news come only by the stream."""
    page, channel = watched.page, f"timers:events:{api.store.connections.db}"

    async def listens(wanted: bool) -> bool:
        return bool((await redis.pubsub_numsub(channel))[0][1]) == wanted

    await page.add_init_script("window.setInterval = () => 0")
    await page.goto(f"{api.server.url}/")
    await eventually(lambda: listens(True), "the page listens")
    await api.client.create("test", "new", delay="1h")
    await page.wait_for_selector("a[href='/ui/timers/test/new']")
    await page.evaluate("Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})")
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await eventually(lambda: listens(False), "a hidden page does not listen")
    watched.assert_quiet(api.server.url)


@pytest.mark.parametrize("trouble", ["no answer", "an error", "a foreign error"])
async def test_the_last_state_stays_with_its_age_while_the_service_fails(
    api: Api, watched: Watched, trouble: str
) -> None:
    page = watched.page
    await page.clock.install()
    await api.client.create("test", "one", delay="1h")
    await page.goto(f"{api.server.url}/")
    answers: dict[str, dict[str, Any]] = {
        "an error": {"status": 503, "content_type": "text/html", "body": '<main id="main">Redis is away</main>'},
        "a foreign error": {"status": 502, "content_type": "text/html", "body": "<h1>Bad gateway</h1>"},
    }

    async def answer(route: Route) -> None:
        await (route.fulfill(**answers[trouble]) if trouble in answers else route.abort())

    await page.route("**/*", answer)
    await page.clock.run_for(4000)
    await page.wait_for_selector("#unheard:visible")
    assert await page.locator("a[href='/ui/timers/test/one']").count() == 1
    await page.unroute("**/*")
    await page.clock.run_for(4000)
    await page.wait_for_selector("#unheard", state="hidden")
