"""Stats, prefixes, pods, pause, metrics, and request ids."""

import asyncio
import re

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, running_api
from tests.docker.metric_names import documented_metrics, kinds, labels_of
from tests.members import announce, sign_off
from tests.store.acts import arming, retrying
from tests.waiting import eventually
from timers.core.durations import format_time
from timers.core.model import Timer
from timers.core.outcome import Retry
from timers.core.spec import NewTimer
from timers.embedded import EmbeddedServer
from timers.metrics import OUTCOMES
from timers.processor import Context, processor
from timers.store import cooperative

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_stats_have_the_members_of_the_contract(api: Api) -> None:
    await api.create()
    stats = (await api.call("GET", "/v1/stats")).body
    assert set(stats) == {"by_status", "by_prefix", "lateness_ms", "overdue_ms", "notifications", "pods", "losses"}
    assert stats["by_status"]["scheduled"] == stats["by_prefix"]["test"]["scheduled"] == 1
    assert list(stats["lateness_ms"]) == ["p50", "p99", "max"]


@pytest.mark.one_server
async def test_timers_that_wait_for_their_next_try_are_counted_listed_and_measured(api: Api) -> None:
    since = format_time(await api.store.now_ms() - 600_000)
    await retrying(api.store, "failing", prefix="test", since=since)
    await api.create("fresh")
    stats = (await api.call("GET", "/v1/stats")).body
    assert stats["by_status"] == stats["by_prefix"]["test"]
    assert (stats["by_status"]["scheduled"], stats["by_status"]["retrying"]) == (2, 1)
    (listed,) = (await api.call("GET", "/v1/timers?status=retrying")).body["items"]
    assert (listed["id"], listed["status"], listed["last_error"]["since"]) == ("failing", "scheduled", since)
    assert len((await api.call("GET", "/v1/timers?status=retrying,scheduled")).body["items"]) == 2
    (shown,) = (await api.call("GET", "/v1/prefixes")).body["items"]
    assert shown["counts"] == stats["by_status"]
    metrics = await api.text("/metrics")
    assert 'timers_timers{prefix="test",status="scheduled"} 2.0' in metrics
    assert 'status="retrying"' not in metrics
    assert 'timers_retrying{prefix="test"} 1.0' in metrics
    assert re.search(r'timers_retrying_seconds{prefix="test"} 6\d\d\.', metrics)
    moved = {"action": "reschedule", "filter": {"status": "retrying"}, "delay": "1s"}
    assert (await api.call("POST", "/v1/timers/actions", moved)).body["done"] == 1


async def test_a_paused_prefix_starts_nothing_until_it_is_resumed(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()

    @processor("test")
    async def done(_timer: Timer, _context: Context) -> None:
        """Do nothing."""

    async with running_api(server.url, [done], works=True) as api:
        paused = await api.call("POST", "/v1/prefixes/test/pause")
        assert (paused.status, paused.body) == (200, {"prefix": "test", "paused": True})
        await api.create("held", delay="0s")
        await api.create("other", prefix="test-other", delay="0s")

        async def ended(prefix: str) -> bool:
            stats = (await api.call("GET", "/v1/stats")).body
            return bool(stats["by_prefix"].get(prefix, {}).get("completed") == 1)

        await eventually(lambda: ended("test-other"), "the prefix that is not paused runs")
        assert (await api.call("GET", "/v1/timers/test/held")).body["status"] == "scheduled"

        async def nothing_is_overdue() -> bool:
            return "timers_overdue_seconds 0.0" in await api.text("/metrics")

        await eventually(nothing_is_overdue, "what is paused calls for no more pods")
        assert (await api.call("POST", "/v1/prefixes/test/resume")).body["paused"] is False
        await eventually(lambda: ended("test"), "the resumed prefix runs")
        stats = (await api.call("GET", "/v1/stats")).body
        assert [pod["pod"] for pod in stats["pods"]] == ["api-test"]
        metrics = await api.text("/metrics")
        assert 'timers_runs_total{outcome="done",prefix="test"} 2.0' in metrics
        assert 'timers_timers{prefix="test",status="completed"} 2.0' in metrics


@pytest.mark.parametrize("path", ["/v1/prefixes/A/pause", "/v1/prefixes/timers/resume"])
async def test_a_bad_prefix_is_named(api: Api, path: str) -> None:
    assert (await api.call("POST", path)).bad_fields() == ["prefix"]


async def test_prefixes_and_pods_are_listed(api: Api) -> None:
    await announce(api.store, "a-pod", processors=["test"], notifications="ok", running=3, concurrency=9)
    await api.create()
    (prefix,) = (await api.call("GET", "/v1/prefixes")).body["items"]
    assert (prefix["prefix"], prefix["processor"], prefix["pods"], prefix["paused"]) == (
        "test",
        "test",
        ["a-pod"],
        False,
    )
    (pod,) = (await api.call("GET", "/v1/pods")).body["items"]
    assert (pod["pod"], pod["running"], pod["concurrency"], pod["notifications"]) == ("a-pod", 3, 9, "ok")


async def test_metrics_come_as_the_text_that_prometheus_knows(api: Api) -> None:
    async with api.session.get(f"{api.server.url}/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "# TYPE timers_lateness_seconds histogram" in await answer.text()


async def test_the_reference_explains_each_metric_and_its_labels(api: Api) -> None:
    cells = {name: row.strip("| ").split("|") for name, row in documented_metrics().items()}
    assert all(len(row) == 4 and all(cell.strip() for cell in row[2:]) for row in cells.values())
    documented = {name: re.findall(r"`(\w+)`", row[1]) for name, row in cells.items()}
    assert documented == {name: labels_of(name) for name in kinds(await api.text("/metrics"))}


def test_every_way_a_run_can_end_is_documented() -> None:
    cell = documented_metrics()["timers_runs_total"].split("|")[3]
    named = {name for name in re.findall(r"`(\w+)`", cell) if name.islower()}
    assert named == set(OUTCOMES)


async def test_metrics_count_what_a_pod_does(server: EmbeddedServer, redis: Redis) -> None:
    """Claims, retries, calls and loop lag of a working pod."""
    failing = iter((Retry(after=0), RuntimeError("again"), None))

    @processor("test", retry={"max_attempts": 5, "backoff": "fixed", "base": "1ms"})
    async def fails_first(_timer: Timer, _context: Context) -> None:
        if (error := next(failing)) is not None:
            raise error

    await redis.ping()
    async with running_api(server.url, [fails_first], works=True) as api:
        await api.create("once", delay="0s")

        async def completed() -> bool:
            return bool((await api.call("GET", "/v1/timers/test/once")).body["status"] == "completed")

        await eventually(completed, "it has run three times")

        async def heard() -> bool:
            text = await api.text("/metrics")
            return "timers_notification_lag_seconds NaN" not in text and "timers_loop_lag_seconds_count 0.0" not in text

        await eventually(heard, "a test notification and the loop were measured")
        text = await api.text("/metrics")
    samples = {name: float(value) for name, value in re.findall(r"^(timers_\S+) (\S+)$", text, re.MULTILINE)}
    assert samples['timers_retries_total{prefix="test"}'] >= 1
    assert sum(value for name, value in samples.items() if name.startswith("timers_claimed_total")) == 3
    assert samples["timers_claim_size_sum"] == 3
    for script in ("claim", "settle", "arm", "touch"):
        assert samples[f'timers_redis_call_seconds_count{{script="{script}"}}'] >= 1
    assert samples["timers_loop_lag_seconds_count"] > 0
    assert samples["timers_notifications_ok"] in (0, 1)


async def test_a_pod_without_a_worker_has_no_metrics_of_one(api: Api) -> None:
    """They looked like a worker that hears nothing."""
    text = await api.text("/metrics")
    assert "timers_ready 1.0" in text
    assert re.findall(r"^timers_(?:running|abandoned|claim_wait|newer|notification)\w* .*$", text, re.MULTILINE) == []


async def test_metrics_tell_how_long_the_oldest_due_timer_has_waited(api: Api) -> None:
    await api.create(delay="1h")
    assert "timers_overdue_seconds 0.0" in await api.text("/metrics")
    await api.create("due", delay="0s")

    async def waits() -> bool:
        found = re.search(r"^timers_overdue_seconds (\S+)", await api.text("/metrics"), re.MULTILINE)
        return found is not None and float(found[1]) > 0

    await eventually(waits, "the due timer is seen to wait")


async def test_metrics_answer_while_redis_refuses_connections(server: EmbeddedServer, redis: Redis, api: Api) -> None:
    await api.text("/metrics")
    await redis.config_set("maxclients", 1)
    try:
        await api.store.connections.commands.connection_pool.disconnect()
        metrics = await api.text("/metrics")
        assert "timers_subscriptions_total" in metrics
        assert "timers_overdue_seconds NaN" in metrics
    finally:
        await redis.config_set("maxclients", 10_000)


async def test_a_sane_request_id_is_kept_and_any_other_replaced(api: Api) -> None:
    assert (await api.call("GET", "/healthz", headers={"X-Request-Id": "abc-1"})).headers["X-Request-Id"] == "abc-1"
    for given in ("", "a b", "x" * 129, "<script>"):
        reply = await api.call("GET", "/v1/timers/test/none", headers={"X-Request-Id": given})
        made = reply.headers["X-Request-Id"]
        assert re.fullmatch(r"[0-9a-f]{24}", made)
        assert reply.problem(404, "timer-not-found")["request_id"] == made


async def test_each_request_of_a_connection_has_its_own_id(api: Api) -> None:
    ids = {(await api.call("GET", path)).headers["X-Request-Id"] for path in ("/healthz", "/readyz", "/nowhere")}
    assert len(ids) == 3


async def test_a_trace_is_kept_with_the_timer_and_given_to_its_processor(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    seen: list[str | None] = []

    @processor("test")
    async def look(timer: Timer, context: Context) -> None:
        seen.extend([timer.traceparent, context.traceparent])

    async with running_api(server.url, [look], works=True) as api:
        wish = {"prefix": "test", "id": "x", "delay": "0s"}
        created = await api.call("POST", "/v1/timers", wish, headers={"traceparent": TRACE})
        assert created.body["traceparent"] == TRACE

        async def ran() -> bool:
            return len(seen) == 2

        await eventually(ran, "the timer runs")
    assert seen == [TRACE, TRACE]


@pytest.mark.parametrize(
    "given", ["x", TRACE.upper(), "ff" + TRACE[2:], "00-" + "0" * 32 + TRACE[35:], TRACE[:36] + "0" * 16 + "-01"]
)
async def test_a_malformed_trace_is_passed_over(api: Api, given: str) -> None:
    wish = {"prefix": "test", "id": "x", "delay": "1h"}
    created = await api.call("POST", "/v1/timers", wish, headers={"traceparent": given})
    assert created.status == 201
    assert "traceparent" not in created.body


async def test_a_declaration_is_taken_back_once_no_live_pod_declares_it(api: Api) -> None:
    await announce(api.store, "a-pod", processors=["test-vip"])
    refused = (await api.call("DELETE", "/v1/prefixes/test-vip")).problem(409, "refused")
    assert "declared by the live pods a-pod" in refused["detail"]
    await sign_off(api.store, "a-pod")
    (away,) = [view for view in (await api.call("GET", "/v1/prefixes")).body["items"] if view["prefix"] == "test-vip"]
    assert (away["processor"], away["away"], away["declared_by"]) == ("test-vip", True, "a-pod")
    assert (await api.call("DELETE", "/v1/prefixes/test-vip")).status == 204
    gone = (await api.call("DELETE", "/v1/prefixes/test-vip")).problem(404, "timer-not-found")
    assert "'test-vip'" in gone["detail"]


async def test_metrics_do_not_grow_with_the_prefixes_that_callers_make_up(api: Api) -> None:
    """Each of 20,000 prefixes stayed a label for as long as the pod lived."""
    await api.client.batch([NewTimer(prefix=f"test-{n}", id="x", delay="1h") for n in range(30)])
    await api.store.arm([arming("x", prefix=f"stranger{n}") for n in range(20)])
    lines = (await api.text("/metrics")).splitlines()
    samples = {line for line in lines if line.startswith(("timers_timers{", "timers_retrying{"))}
    assert samples == {
        'timers_timers{prefix="test",status="scheduled"} 30.0',
        'timers_timers{prefix="-",status="scheduled"} 20.0',
    }
    assert 'timers_uncovered_prefixes{prefix="-"} 20.0' in await api.text("/metrics")


async def test_an_answer_over_many_prefixes_is_written_in_many_turns_of_the_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 prefixes one turn took a second, and every timer due meanwhile was that late."""
    await api.client.batch([NewTimer(prefix=f"test-{n}", id="x", delay="1h") for n in range(500)])
    monkeypatch.setattr(cooperative, "SLICE_SECONDS", 0)
    for path in ("/v1/stats", "/v1/prefixes", "/v1/timers?limit=500"):
        passed = 0

        async def count() -> None:
            nonlocal passed
            while True:
                passed += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        assert (await api.call("GET", path)).status == 200
        counting.cancel()
        assert passed > 500, path
