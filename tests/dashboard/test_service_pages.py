"""The pages about the service over HTTP: prefixes, API keys, server and pods."""

import re

from tests.api.harness import Api
from tests.dashboard.conftest import EVERYTHING, READS, Visitor
from tests.members import announce, sign_off
from tests.waiting import eventually
from timers.core.hooks import Hook
from timers.store import outbox
from timers.store.membership import Membership


async def test_a_prefix_is_paused_and_resumed(visitor: Visitor) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    for action, offered in [("pause", "Resume"), ("resume", "Pause")]:
        assert (await visitor.post(f"/ui/prefixes/test/{action}")).where == "/ui/prefixes?q=test"
        assert f'aria-label="{offered} test"' in (await visitor.get("/ui/prefixes?q=test")).text
    assert (await visitor.post("/ui/prefixes/test/drop")).status == 404


async def test_a_prefix_can_be_forgotten_once_its_pods_are_gone(visitor: Visitor) -> None:
    """Only if a prefix is declared and no live pod has its processor does the page offer to forget it, and does so."""
    store = visitor.api.store

    async def offers(wanted: bool) -> bool:
        """The page's data may be up to 1.5 s old."""
        return ('aria-label="Forget test"' in (await visitor.get("/ui/prefixes?q=test")).text) == wanted

    assert await offers(True)
    await announce(store, "a-pod", processors=["test"], notifications="ok")
    assert (await visitor.post("/ui/prefixes/test/forget")).status == 409
    await eventually(lambda: offers(False), "it is not offered while a pod has it")
    await sign_off(store, "a-pod")
    assert (await visitor.post("/ui/prefixes/test/forget")).where == "/ui/prefixes?q=test"
    assert "test" not in (await Membership(store).read()).declared
    assert await offers(False)
    assert (await visitor.post("/ui/prefixes/test/forget")).status == 404


async def test_a_key_is_made_shown_once_and_revoked(guest: Visitor) -> None:
    await guest.sign_in(EVERYTHING)
    limits = {"rate": "100/s", "pending": "5", "most_prefixes": "3"}
    form = {"name": "billing", "prefixes": "mine, test*", "right": "read", **limits}
    made = re.search(r'id="made"[^>]*>(tmk_\w+)<', (await guest.post("/ui/keys", form)).text)
    assert made is not None
    listed = (await guest.get("/ui/keys")).text
    assert made[1] not in listed
    assert "mine, test*" in listed
    assert "100/s 5 waiting in 3 prefixes" in listed
    key_id = made[1].split("_")[1]
    await guest.post(f"/ui/keys/{key_id}/revoke")
    assert f"/ui/keys/{key_id}/revoke" not in (await guest.get("/ui/keys")).text
    assert (await guest.api.store.connections.commands.hget("timers:keys", key_id)) == b"revoked"


async def test_a_server_page_shows_what_the_doctor_finds(visitor: Visitor) -> None:
    text = (await visitor.get("/ui/server")).text
    for check in ("eviction", "persistence", "flags", "delivery", "foreign", "clock"):
        assert f"<strong>{check}</strong>" in text
    assert "noeviction" in text
    assert "Repair: start one: <code>timers serve</code>" in text


async def test_the_server_page_shows_hooks_and_alarms_without_their_urls(visitor: Visitor) -> None:
    assert "No pod has set TIMERS_HOOKS" in (await visitor.get("/ui/server")).text
    hook = Hook.of("failed+completed@mine*", "https://user:secret@example.org/x")
    await outbox.change_hooks(visitor.api.store, 0, [str(hook)], [])
    text = (await visitor.get("/ui/server")).text
    assert hook.prefix in text
    assert "completed, failed" in text
    assert "mine*" in text
    assert "secret" not in text


async def test_the_prefixes_page_shows_the_limits_that_pods_tell(visitor: Visitor) -> None:
    limits = {"limits of test": "3 at once, one every 0.1 s"}
    await announce(visitor.api.store, "a-pod", processors=["test"], notifications="ok", settings=limits)
    assert "3 at once, one every 0.1 s" in (await visitor.get("/ui/prefixes?q=test")).text


async def test_the_prefixes_page_shows_what_ended_in_the_last_hour_and_the_worst_first(working: Api) -> None:
    visitor, client = Visitor(working), working.client
    await client.create("test", delay="0s")
    await client.create("mine-too", delay="1h")
    await client.create("broken", payload="no", delay="0s")

    async def ended() -> str | None:
        text = (await visitor.get("/ui/prefixes")).text
        return text if text.count('<rect class="completed"') == text.count('<rect class="failed"') == 1 else None

    text = await eventually(ended, "one has completed and one has failed")
    assert re.findall(r'class="id" href="/ui/prefixes/([\w-]+)"', text) == ["broken", "mine", "mine-too", "test"]
    assert 'aria-label="broken in the last hour: 1 failed"' in text


async def test_the_page_of_a_prefix_shows_its_rate_lateness_failures_limits_and_what_is_due(working: Api) -> None:
    visitor, client = Visitor(working), working.client
    await client.create("broken", "one", payload="no", delay="0s")
    await client.create("broken", "next", delay="1h")

    async def failed() -> str | None:
        text = (await visitor.get("/ui/prefixes/broken")).text
        return text if "Fail: no" in text else None

    text = await eventually(failed, "the page shows the failure")
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text, re.DOTALL))
    assert facts["Processor"] == "broken"
    assert facts["Taken by"] == "api-test"
    assert facts["Limits over all pods"] == "any number at once"
    assert facts["Ended in the last hour"].startswith("1,")
    assert "/ui/timers/broken/next" in text
    assert re.findall(r'aria-label="broken in the last (\w+): 1 failed"', text) == ["hour", "day"]
    assert (await visitor.get("/ui/prefixes/nothing")).status == 404


async def test_the_page_of_a_prefix_says_why_nothing_runs_and_how_late_it_was(working: Api) -> None:
    visitor, client = Visitor(working), working.client
    await client.create("test", "done", delay="0s")

    async def ran() -> bool:
        return "newest 1 known starts" in (await visitor.get("/ui/prefixes/test")).text

    await eventually(ran, "a start is known")
    await client.pause("test")
    await client.create("test", "held", due_at="2026-01-01T00:00:00Z")
    text = (await visitor.get("/ui/prefixes/test")).text
    assert "Waits: the prefix &#39;test&#39; has been paused since" in text


async def test_pods_show_their_state_and_a_key_only_its_prefixes(guest: Visitor, working: Api) -> None:
    assert working.store.shards == 1
    await guest.sign_in(READS)
    text = (await guest.get("/ui/pods")).text
    assert "<h2>api-test</h2>" in text
    assert re.findall(r"<code>(\w+)</code>", text) == ["mine"]
    assert "<dt>Running</dt><dd>at most" in text  # how many do is a figure over all prefixes
    assert (await guest.get("/ui/prefixes")).status == 200
