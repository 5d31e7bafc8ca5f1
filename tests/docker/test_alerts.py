"""Each alert rings in a real trouble and ends with it: promtool replays what a pod says at `/metrics` before, during
and after it."""

import json
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import ClientError, ClientSession
from sqlalchemy import text

from tests.api.conftest import done
from tests.api.harness import running_api
from tests.clusters import Cluster
from tests.docker.dockerfile import FOLDER
from tests.docker.metric_names import kinds
from tests.docker.test_compose import NEEDS_PROMTOOL, used_names
from tests.doctor.setups import post_long_ago
from tests.engine.fleet import Calls, Fleet, Held, until
from tests.ledger.copies import whole
from tests.ledger.hurry import hurried
from tests.ledger.test_health import away
from tests.members import declare, forbid_writes, sign_off
from tests.rights import as_user, grant
from tests.servers import ServerHandle, start_server
from tests.store.acts import arming, bucket_of
from tests.store.acts import retrying as a_retrying_one
from tests.waiting import eventually
from timers.client import TimerClient
from timers.core.durations import format_time
from timers.core.model import Timer
from timers.core.outcome import Fail
from timers.engine import comparing
from timers.errors import RedisRights
from timers.ledger.database import Database
from timers.processor import Context, Processor, processor
from timers.store import keys

RULES: Final = FOLDER / "prometheus" / "rules.yml"
ALERTS: Final = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}

BEFORE, DURING, AFTER = 60, 180, 360
"""How many scrapes each part of a replay has, one every ten seconds: 10, 30 and 60 minutes."""

BUSY: Final = {"TimersLoopBlocked", "TimersDeaf"}
"""What a busy machine may make ring."""

Samples = Mapping[str, float]
"""Values by series, as `name{label="value"}`."""


class Stage:
    """A pod that is scraped, its server, and a fleet of others. All have the least rights."""

    def __init__(self, folder: Path, server: ServerHandle, fleet: Fleet) -> None:
        self.folder, self.server, self.fleet = folder, server, fleet
        self._pod = AsyncExitStack()
        self._url = ""
        self._job = "timers-worker"
        self.gauges = {"up"}
        self.beside: Samples = {}
        """What another pod says."""
        self._ledger = Database(f"sqlite+aiosqlite:///{folder.parent}/ledger.db")

    async def start(self, *processors: Processor, works: bool = True, **options: Any) -> TimerClient:
        """Start the pod that is scraped, on a server of its own or at a `url`."""
        ledger = options.pop("ledger", None)
        url = options.pop("url", None) or as_user(self.server.url)
        quick = {"canary_every_seconds": 0.05, "deaf_seconds": 0.2, "beat_ms": 50, **options}
        api = await self._pod.enter_async_context(
            running_api(url, processors or [done], works=works, options=quick, ledger=ledger)
        )
        self._url, self._job = f"{api.server.url}/metrics", "timers-worker" if works else "timers-api"
        await self.tells("timers_notifications_ok 1.0" if works else "timers_redis_up.* 1.0")
        await self.tells("timers_ready 1.0")
        return api.client

    async def new_ledger(self) -> str:
        """The URL of a ledger without timers."""
        await self._ledger.upgrade()
        return self._ledger.engine.url.render_as_string()

    async def in_ledger(self, statement: str) -> None:
        """Run a statement in the ledger's database."""
        async with self._ledger.transaction() as connection:
            await connection.execute(text(statement))

    async def stop(self) -> None:
        """End the pod that is scraped."""
        await self._pod.aclose()
        await self._ledger.close()

    async def tells(self, line: str) -> None:
        """Wait until the pod tells a line like this one, a regular expression."""

        async def look() -> bool:
            return re.search(f"^{line}$", await self._text() or "", re.MULTILINE) is not None

        await eventually(look, f"the pod tells {line}")

    async def scrape(self) -> Samples:
        """What Prometheus keeps of one scrape."""
        text, target = await self._text(), f'job="{self._job}",instance="a"'
        self.gauges |= {name for name, kind in kinds(text or "").items() if kind == "gauge"}
        found = re.findall(r"^(timers_\w+)(?:\{(.*)\})? (\S+)$", text or "", re.MULTILINE)
        told = {f"{name}{{{labels}{',' * bool(labels)}{target}}}": float(value) for name, labels, value in found}
        return {f"up{{{target}}}": float(text is not None), **told, **self.beside}

    async def _text(self) -> str | None:
        try:
            async with ClientSession() as session, session.get(self._url) as response:
                return await response.text() if response.status == 200 else None
        except ClientError:
            return None


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    server = await start_server("redis", tmp_path / "server", "--appendfsync", "always")
    fleet = await Fleet.over(server.url, pods_url=as_user(server.url))
    await grant(fleet.redis, 0)
    made = Stage(tmp_path / "server", server, fleet)
    yield made
    await made.stop()
    await fleet.close()
    await made.server.stop()


async def no_worker(stage: Stage) -> AsyncIterator[None]:
    await stage.start()
    yield
    await stage.stop()
    yield
    await stage.start()


async def pod_silent(stage: Stage) -> AsyncIterator[None]:
    """One of two pods answers no more."""
    await stage.start()
    stage.beside = {name.replace('"a"', '"b"'): value for name, value in (await stage.scrape()).items()}
    yield
    await stage.stop()
    yield
    await stage.start()


async def redis_down(stage: Stage) -> AsyncIterator[None]:
    await stage.start()
    yield
    stage.server.kill()
    await stage.tells("timers_redis_up.* 0.0")
    yield
    stage.server = await start_server("redis", stage.folder)
    await grant(stage.fleet.redis, 0)
    await stage.tells("timers_redis_up.* 1.0")


async def redis_full(stage: Stage) -> AsyncIterator[None]:
    await stage.start()
    yield
    await stage.fleet.redis.config_set("maxmemory", 1)
    await stage.tells("timers_redis_full 1.0")
    yield
    await stage.fleet.redis.config_set("maxmemory", 0)
    await stage.tells("timers_redis_full 0.0")


async def not_ready(stage: Stage) -> AsyncIterator[None]:
    """Redis takes no writes, not even signs of life, for so long that all are old, and nothing is due."""
    await stage.start()
    yield
    await forbid_writes(stage.fleet.redis)
    for line in ("timers_ready 0.0", "timers_redis_up.* 1.0", "timers_notifications_ok 1.0"):
        await stage.tells(line)
    yield
    await stage.fleet.redis.config_set("min-replicas-to-write", 0)
    await stage.tells("timers_ready 1.0")


async def right_missing(stage: Stage) -> AsyncIterator[None]:
    """The user may not touch the keys of one prefix, and nothing of it is due."""
    await declare(stage.fleet.store, "push")
    client = await stage.start()
    yield
    await grant(stage.fleet.redis, 0, ["test"])
    with pytest.raises(RedisRights):
        await client.create("push", "x", delay="1h")
    await stage.tells('timers_rights_missing{prefix="push"} 1.0')
    yield
    await grant(stage.fleet.redis, 0)
    await stage.stop()
    await stage.start()


async def overdue(stage: Stage) -> AsyncIterator[None]:
    """The only place of the pod is taken."""
    held = Held()
    client = await stage.start(held.processor, concurrency=1)
    await client.create("note", "holds", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    yield
    await stage.fleet.store.arm([arming("waits", prefix="note", due=f"@{await stage.fleet.store.now_ms() - 60_000}")])
    await stage.tells(r"timers_overdue_seconds ([6-9]\d|\d{3,})\..*")
    yield
    held.release.set()
    await stage.tells("timers_overdue_seconds 0.0")


async def stuck(stage: Stage) -> AsyncIterator[None]:
    """A prefix is at its limit of one, and that run does not end."""
    held = Held(concurrency=1)
    client = await stage.start(held.processor)
    yield
    await client.create("note", "holds", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await client.create("note", "waits", delay=0)
    await stage.tells('timers_timers{prefix="note",status="scheduled"} 1.0')
    await stage.tells("timers_overdue_seconds 0.0")
    yield
    held.release.set()
    await stage.fleet.completed("waits")


async def held_back(stage: Stage) -> AsyncIterator[None]:
    """Somebody has paused the prefix and forgotten it."""
    client = await stage.start(Calls().processor)
    yield
    await client.pause("note")
    await stage.fleet.store.arm([arming("waits", prefix="note", due=f"@{await stage.fleet.store.now_ms() - 600_000}")])
    await stage.tells(r'timers_held_back_seconds{by="pause",prefix="note"} 6\d\d\..*')
    yield
    await client.resume("note")
    await stage.fleet.completed("waits")


async def uncovered(stage: Stage) -> AsyncIterator[None]:
    client = await stage.start()
    await declare(stage.fleet.store, "push")
    yield
    await client.create("push", "x", delay=0)
    await stage.tells('timers_uncovered_prefixes{prefix="push"} 1.0')
    yield
    await stage.fleet.pod(Calls("push"))
    await stage.fleet.completed("x", "push")


async def data_lost(stage: Stage) -> AsyncIterator[None]:
    client = await stage.start()
    yield
    await stage.fleet.redis.flushdb()
    await stage.tells("timers_data_losses [1-9].*")

    async def has_signed() -> bool:
        return not any(name.startswith("timers_uncovered") for name in await stage.scrape())

    await eventually(has_signed, "the pod has signed again")
    yield
    await client.acknowledge_losses()
    await stage.tells("timers_data_losses 0.0")
    await stage.fleet.store.identity.join()


async def quarantined(stage: Stage) -> AsyncIterator[None]:
    """The record of a due timer is gone, while no pod serves it."""
    await stage.start()
    await declare(stage.fleet.store, "note")
    yield
    store, redis = stage.fleet.store, stage.fleet.redis
    await store.arm([arming("bad", prefix="note")])
    await redis.hdel(bucket_of("note:bad"), "note:bad")
    await stage.fleet.pod(Calls())
    await stage.tells("timers_quarantined 1.0")
    yield
    await redis.hdel(f"{keys.root(0)}quarantine", "note:bad")
    await stage.tells("timers_quarantined 0.0")


async def unhandled(stage: Stage) -> AsyncIterator[None]:
    client = await stage.start(unhandled_after_ms=50)
    await declare(stage.fleet.store, "push")
    yield
    await client.create("push", "x", delay=0)
    await stage.tells('timers_timers{prefix="push",status="unhandled"} 1.0')
    yield
    await stage.fleet.pod(Calls("push"))
    await client.retry("push", "x")
    await stage.fleet.completed("x", "push")


async def retrying(stage: Stage) -> AsyncIterator[None]:
    """A timer has failed for ten minutes, and waits for its next try."""
    client = await stage.start(Calls().processor)
    yield
    store = stage.fleet.store
    await declare(store, "push")
    await a_retrying_one(store, "x", prefix="push", since=format_time(await store.now_ms() - 600_000))
    await stage.tells('timers_retrying_seconds{prefix="push"} 6.*')
    await stage.tells('timers_retrying{prefix="push"} 1.0')
    yield
    await client.cancel("push", "x")


async def kept(stage: Stage) -> AsyncIterator[None]:
    """Nobody acts on thousands of timers that no pod served."""
    await stage.start(unhandled_after_ms=50)
    await declare(stage.fleet.store, "push")
    yield
    for start in range(0, 10_001, 1000):
        many = range(start, min(start + 1000, 10_001))
        await stage.fleet.store.arm([arming(f"n{n}", prefix="push") for n in many])
    await stage.tells('timers_timers{prefix="push",status="unhandled"} 10001.0')
    yield
    while (await stage.fleet.client.act("purge", {"prefix": "push", "status": "unhandled"})).done:
        pass
    await stage.tells("timers_overdue_seconds 0.0")


async def fails(stage: Stage) -> AsyncIterator[None]:
    """What a processor calls is down. Every timer is tried again."""
    works, tried = threading.Event(), []

    async def act(timer: Timer, _context: Context) -> None:
        tried.append(timer.attempt)
        if not works.is_set():
            raise ConnectionError

    quick = {"max_attempts": 1000, "backoff": "fixed", "base": "1s"}
    client = await stage.start(processor("note", retry=quick)(act))
    yield
    await client.create("note", "x", delay=0)
    await until(lambda: tried, "it was tried")
    yield
    await until(lambda: len(tried) >= 3, "it was tried again")
    yield
    works.set()
    await stage.fleet.completed("x")


async def failed(stage: Stage) -> AsyncIterator[None]:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.version < 4:
            raise Fail("no such user")

    client = await stage.start(processor("note")(act))
    yield
    await client.create("note", "x", delay=0)
    await stage.tells('timers_timers{prefix="note",status="failed"} 1.0')
    yield
    await client.retry("note", "x")
    await stage.fleet.completed("x")


async def deaf(stage: Stage) -> AsyncIterator[None]:
    await stage.start()
    yield
    await stage.fleet.redis.config_set("notify-keyspace-events", "")
    await stage.tells("timers_notifications_ok 0.0")
    yield
    await stage.fleet.redis.config_set("notify-keyspace-events", "Ex")
    await stage.tells("timers_notifications_ok 1.0")


async def rescued(stage: Stage) -> AsyncIterator[None]:
    """Pods die again and again with their runs."""
    await declare(stage.fleet.store, "note")
    held, calls = Held(), Calls()
    dying = [await stage.fleet.pod(held, name=f"dying{n}") for n in range(2)]
    for n in range(20):
        await stage.fleet.client.create("note", f"n{n}", delay=0)
    await until(lambda: len(held) == 20, "they run")
    await stage.start(calls.processor)
    yield
    yield
    for pod in dying:
        await stage.fleet.kill(pod)
        await sign_off(stage.fleet.store, pod.name)
    for n in range(20):
        await stage.fleet.expire_lease(f"n{n}")
        await stage.fleet.completed(f"n{n}")
    yield


async def loop_blocked(stage: Stage) -> AsyncIterator[None]:
    async def act(_timer: Timer, _context: Context) -> None:
        time.sleep(1.5)  # noqa: ASYNC251 (the fault)

    client = await stage.start(processor("note")(act))
    yield
    yield
    await client.create("note", "x", delay=0)
    await stage.fleet.completed("x")
    await stage.tells('timers_loop_lag_seconds_bucket{le="0.5"} (.*)')
    yield


async def abandoned(stage: Stage) -> AsyncIterator[None]:
    """A plain function hangs past its timeout."""
    let_go = threading.Event()

    def act(_timer: Timer, _context: object) -> None:
        let_go.wait()

    client = await stage.start(processor("note", timeout="20ms", retry={"max_attempts": 1})(act))
    yield
    await client.create("note", "x", delay=0)
    await stage.tells("timers_abandoned 1.0")
    await client.cancel("note", "x", purge=True)
    yield
    let_go.set()
    await stage.tells("timers_abandoned 0.0")


async def outbox(stage: Stage) -> AsyncIterator[None]:
    """No worker takes what hooks ask for."""
    await stage.start()
    yield
    await stage.stop()
    await stage.start(works=False)
    await post_long_ago(stage.fleet.store)
    await stage.tells("timers_outbox_entries 1.0")
    yield
    await stage.stop()
    await stage.start()
    await stage.tells("timers_outbox_entries 0.0")


async def ledger_down(stage: Stage) -> AsyncIterator[None]:
    """The pod cannot connect to the database, and nobody changes a timer."""
    client = await stage.start(ledger=await stage.new_ledger())
    await stage.tells("timers_ledger_lag_seconds 0.0")
    yield
    with away(client.ledger):
        await stage.tells("timers_ledger_up 0.0")
        yield
    await stage.tells("timers_ledger_up 1.0")
    await stage.tells("timers_ledger_lag_seconds 0.0")


async def ledger_behind(stage: Stage) -> AsyncIterator[None]:
    """The ledger's table is away while a timer is armed."""
    await stage.start(ledger=await stage.new_ledger())
    await stage.tells("timers_ledger_lag_seconds 0.0")
    yield
    await stage.in_ledger("ALTER TABLE timers_timers RENAME TO away")
    with hurried():
        await stage.fleet.client.create("test", "x", delay="1h")
        await stage.tells(r"timers_ledger_lag_seconds ([6-9]\d|\d{3,})\..*")
        yield
    await stage.in_ledger("ALTER TABLE away RENAME TO timers_timers")
    await stage.tells("timers_ledger_lag_seconds 0.0")


async def ledger_drift(stage: Stage) -> AsyncIterator[None]:
    """Somebody deletes a row of the ledger."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COUNT_SECONDS", "SECOND_LOOK_SECONDS"):
            patch.setattr(comparing, name, 0.3)
        client = await stage.start(ledger=await stage.new_ledger())
        await whole(stage.fleet.store)  # else the row may be copied once more, after it was deleted
        await client.create("test", "x", delay="1h")
        yield
        await stage.in_ledger("DELETE FROM timers_timers")
        await stage.tells('timers_ledger_drift_total{side="ledger"} 1.0')
        yield


async def inbox_behind(stage: Stage) -> AsyncIterator[None]:
    """No worker takes the rows."""
    url = await stage.new_ledger()
    await stage.start(ledger=url)
    await stage.tells("timers_inbox_seconds 0.0")
    yield
    await stage.stop()
    await stage.in_ledger("INSERT INTO timers_inbox (prefix, id, action, at) VALUES ('test', 'x', 'purge', 1000)")
    await stage.start(ledger=url, works=False)
    await stage.tells(r"timers_inbox_seconds \d{3,}\..*|timers_inbox_seconds .*e\+.*")
    yield
    await stage.stop()
    await stage.start(ledger=url)
    await stage.tells("timers_inbox_seconds 0.0")


async def inbox_refused(stage: Stage) -> AsyncIterator[None]:
    url = await stage.new_ledger()
    await stage.start(ledger=url)
    await stage.tells("timers_inbox_refused 0.0")
    yield
    await stage.stop()
    await stage.in_ledger("INSERT INTO timers_inbox_refused VALUES (1, 'note', 'x', 'fire', '{}', 1, 'is running')")
    await stage.start(ledger=url)
    await stage.tells("timers_inbox_refused 1.0")
    yield
    await stage.stop()
    await stage.in_ledger("DELETE FROM timers_inbox_refused")
    await stage.start(ledger=url)
    await stage.tells("timers_inbox_refused 0.0")


async def not_durable(stage: Stage) -> AsyncIterator[None]:
    """Ends of runs are to wait for replicas, and there are none."""
    client = await stage.start(Calls().processor, durability="replicated")
    yield
    for name in ("x", "y"):
        await client.create("note", name, delay=0)
        await stage.fleet.completed(name)
        yield


TROUBLES: Final[Mapping[str, Callable[[Stage], AsyncIterator[None]]]] = {
    "TimersNoWorker": no_worker,
    "TimersPodSilent": pod_silent,
    "TimersRedisDown": redis_down,
    "TimersRedisFull": redis_full,
    "TimersNotReady": not_ready,
    "TimersRightMissing": right_missing,
    "TimersOverdue": overdue,
    "TimersStuck": stuck,
    "TimersHeldBack": held_back,
    "TimersUncovered": uncovered,
    "TimersDataLost": data_lost,
    "TimersQuarantined": quarantined,
    "TimersUnhandled": unhandled,
    "TimersRetrying": retrying,
    "TimersKept": kept,
    "TimersFail": fails,
    "TimersFailed": failed,
    "TimersDeaf": deaf,
    "TimersRescued": rescued,
    "TimersLoopBlocked": loop_blocked,
    "TimersAbandoned": abandoned,
    "TimersOutbox": outbox,
    "TimersLedgerDown": ledger_down,
    "TimersLedgerBehind": ledger_behind,
    "TimersLedgerDrift": ledger_drift,
    "TimersInboxBehind": inbox_behind,
    "TimersInboxRefused": inbox_refused,
    "TimersNotDurable": not_durable,
}
"""Makes the trouble that an alert is for: yields when all is well, then once or twice in the trouble, and then ends it.
What a counter grows by between two scrapes in the trouble it goes on to grow by at each scrape."""

ALSO: Final[Mapping[str, set[str]]] = {
    "TimersNoWorker": {"TimersPodSilent"},
    "TimersOverdue": {"TimersStuck"},
    "TimersKept": {"TimersUnhandled"},
    "TimersOutbox": {"TimersNoWorker", "TimersUncovered"},
    "TimersLedgerBehind": {"TimersLedgerDown"},
    "TimersInboxBehind": {"TimersNoWorker", "TimersUncovered"},
}
"""What else rings then."""


def test_there_is_a_trouble_for_each_alert() -> None:
    assert list(TROUBLES) == list(ALERTS)


@NEEDS_PROMTOOL
@pytest.mark.parametrize("alert", TROUBLES)
async def test_the_alert_rings_in_its_trouble_and_ends_with_it(alert: str, stage: Stage, tmp_path: Path) -> None:
    scrapes = [await stage.scrape() async for _ in TROUBLES[alert](stage)]
    await stage.tells("timers_ready 1.0")
    scrapes.append(await stage.scrape())
    expected = {alert, *ALSO.get(alert, ())}
    replay(tmp_path, stage.gauges, scrapes, {"9m50s": set(), "39m30s": expected, "99m": set()}, BUSY - expected)


@NEEDS_PROMTOOL
async def test_a_burst_of_failures_between_two_scrapes_is_noticed(stage: Stage, tmp_path: Path) -> None:
    scrapes = [await stage.scrape() async for _ in failed(stage)]
    replay(tmp_path, stage.gauges, [*scrapes, scrapes[-1]], {"16m": {"TimersFail", "TimersFailed"}}, BUSY)


@NEEDS_PROMTOOL
async def test_a_primary_that_is_away_rings_as_redis_does(stage: Stage, cluster: Cluster, tmp_path: Path) -> None:
    """Pods stay ready, and no other alert is for it: most gauges are unknown then."""
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    lost = await cluster.owner(keys.root(0))
    replica = await cluster.replica_of(lost)
    await stage.start(url=cluster.url)
    scrapes = [await stage.scrape()]
    for node in (replica, lost):
        node.down()
    await stage.tells(f'timers_redis_up{{server="{lost.name}"}} 0.0')
    await stage.tells("timers_ready 1.0")
    scrapes.append(await stage.scrape())
    await cluster.heal()
    await stage.tells(f'timers_redis_up{{server="{lost.name}"}} 1.0')
    await stage.tells("timers_notifications_ok 1.0")
    scrapes.append(await stage.scrape())
    replay(tmp_path, stage.gauges, scrapes, {"9m50s": set(), "39m30s": {"TimersRedisDown"}, "99m": set()}, BUSY)


@NEEDS_PROMTOOL
async def test_a_deaf_pod_whose_redis_takes_no_writes_any_more_rings_for_that(stage: Stage, tmp_path: Path) -> None:
    """No canary can say whether it still hears nothing, and nothing at all starts."""
    await stage.start()
    redis, scrapes = stage.fleet.redis, [await stage.scrape()]
    await redis.config_set("notify-keyspace-events", "")
    await stage.tells("timers_notifications_ok 0.0")
    await forbid_writes(redis)
    await stage.tells("timers_notifications_ok 1.0")
    await stage.tells("timers_ready 0.0")
    scrapes.append(await stage.scrape())
    await redis.config_set("notify-keyspace-events", "Ex")
    await redis.config_set("min-replicas-to-write", 0)
    await stage.tells("timers_ready 1.0")
    scrapes.append(await stage.scrape())
    replay(tmp_path, stage.gauges, scrapes, {"9m50s": set(), "39m30s": {"TimersNotReady"}, "99m": set()}, BUSY)


@NEEDS_PROMTOOL
def test_attempts_that_take_long_hide_no_failing(tmp_path: Path) -> None:
    """A timer whose attempt runs is not retrying. Attempts of four minutes, each after a rest of ten seconds."""
    shown = " ".join(f"{'0 ' * 24}{since}" for since in range(600, 3_600, 250))
    judge(
        tmp_path,
        {
            "interval": "10s",
            "input_series": [
                {"series": 'timers_retrying_seconds{prefix="push",job="a",instance="a"}', "values": shown}
            ],
            "promql_expr_test": [
                {
                    "expr": 'count_over_time(count(ALERTS{alertname="TimersRetrying", alertstate="firing"})[30m:30s])',
                    "eval_time": "45m10s",
                    "exp_samples": [{"value": 60}],
                },
            ],
        },
    )


@NEEDS_PROMTOOL
def test_a_deploy_that_drains_one_pod_after_the_other_is_no_trouble(tmp_path: Path) -> None:
    """Each of 30 pods drains for half a minute, and is replaced."""
    pods = [f'job="a",instance="{number}"' for number in range(30)]
    ready = [f"1x{number * 3} 0 0 0 stale" for number in range(30)]
    fine = [f"1x{number * 3 + 3} stale" for number in range(30)]
    series = [
        {"series": f"{name}{{{pod}}}", "values": told}
        for name, values in (("timers_ready", ready), ("timers_redis_up", fine), ("timers_notifications_ok", fine))
        for pod, told in zip(pods, values, strict=True)
    ]
    never = {
        "expr": 'count_over_time(ALERTS{alertname="TimersNotReady", alertstate="firing"}[20m])',
        "eval_time": "20m",
    }
    judge(tmp_path, {"interval": "10s", "input_series": series, "promql_expr_test": [{**never, "exp_samples": []}]})


@pytest.mark.parametrize(("gauge", "bad"), [("timers_notifications_ok", 0), ("timers_abandoned", 1)])
def test_short_troubles_of_one_pod_after_the_other_are_none_that_lasts(gauge: str, bad: int, tmp_path: Path) -> None:
    """Two pods are in trouble in turn, for a minute each."""
    turns = [f"{value} " * 6 for value in (bad, 1 - bad)]
    judge(
        tmp_path,
        {
            "interval": "10s",
            "input_series": [
                {"series": f'{gauge}{{job="a",instance="{pod}"}}', "values": "".join(order) * 20}
                for pod, order in (("a", turns), ("b", turns[::-1]))
            ],
            "promql_expr_test": [
                {
                    "expr": 'count(ALERTS{alertname=~"TimersDeaf|TimersAbandoned", alertstate="firing"})',
                    "eval_time": "39m",
                    "exp_samples": [],
                },
                {
                    "expr": 'count(ALERTS{alertname=~"TimersDeaf|TimersAbandoned", alertstate="pending"})',
                    "eval_time": "39m",
                    "exp_samples": [{"value": 1}],
                },
            ],
        },
    )


def replay(
    folder: Path, gauges: set[str], scrapes: Sequence[Samples], expected: Mapping[str, set[str]], ignored: Iterable[str]
) -> None:
    """Let promtool check that exactly the `expected` alerts ring at these times, whatever the `ignored` do. It looks at
    the rules every 30 seconds, because the shortest of them waits so long."""
    names = set().union(*(used_names(expression) for expression in ALERTS.values())) | {"up"}
    series = sorted({name for scrape in scrapes for name in scrape if name.partition("{")[0] in names})
    asked = f'group by (alertname) (ALERTS{{alertstate="firing", alertname!~"{"|".join(ignored)}"}})'
    test = {
        "interval": "10s",
        "input_series": [{"series": name, "values": " ".join(values(name, gauges, scrapes))} for name in series],
        "promql_expr_test": [
            {
                "expr": asked,
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{n}"}}', "value": 1} for n in some],
            }
            for at, some in expected.items()
        ],
    }
    judge(folder, test)


def judge(folder: Path, test: Mapping[str, Any]) -> None:
    """Let promtool check one test of the rules."""
    case = {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]}
    (folder / "case.yml").write_text(json.dumps(case))  # JSON is YAML
    words = ["promtool", "test", "rules", str(folder / "case.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def values(series: str, gauges: set[str], scrapes: Sequence[Samples]) -> Iterator[str]:
    """A series as promtool takes it."""
    before, first, last, after = (each.get(series) for each in (scrapes[0], scrapes[1], scrapes[-2], scrapes[-1]))
    yield constant(before, BEFORE)
    if series.partition("{")[0] in gauges or first is None or last is None:
        yield constant(last, DURING)
        yield constant(after, AFTER)
    else:
        yield f"{first}+{last - first}x{DURING - 1}"
        yield constant(None if after is None else first + (last - first) * (DURING - 1), AFTER)


def constant(value: float | None, times: int) -> str:
    is_absent = value is None or value != value  # NaN  # noqa: PLR0124
    return f"_x{times}" if is_absent else f"{value}x{times - 1}"
