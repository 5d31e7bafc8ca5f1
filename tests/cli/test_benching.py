"""`timers bench`: what it shows, and that it leaves nothing behind."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from tests.cli.commands import CommandLine, Process
from tests.waiting import eventually
from timers.cli.shared import end_as_by_ctrl_c
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

FEW = ("--timers", "10", "--seconds", "0.1")
COUNTERS = {"timers:{0}:token", "timers:{0}:mark", "timers:{pods}:version"}


def test_bench_prints_tables_and_leaves_nothing_behind(
    start: Start, timers: CommandLine, server: EmbeddedServer, redis: Redis
) -> None:
    assert timers("create", "log", "kept", "--in", "1h").code == 0
    before = {key: redis.type(key) for key in redis.keys("*")}
    shown = start("bench", *FEW, TIMERS_REDIS_URL=server.url).end()
    assert shown.code == 0
    assert shown.out.startswith("server: redis 7")
    for heading in ("round trips: ", "arming: ", "lateness: ", "burst: "):
        assert heading in shown.out
    assert "timers: 40 timers removed" in shown.err  # 10 in each measurement, and 10 one by one
    after = {key: redis.type(key) for key in redis.keys("*")}
    assert set(after) - COUNTERS == set(before) - COUNTERS
    assert redis.hkeys("timers:{pods}:declared") == ["test", "log"]
    assert redis.hgetall("timers:{0}:counts") == {"s log": "1"}


def test_bench_gives_its_figures_as_json(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    redis.ping()
    measured = start("bench", *FEW, "-o", "json", TIMERS_REDIS_URL=server.url).end().json
    rows = {result["benchmark"]: result["rows"] for result in measured["results"]}
    assert [row["way"] for row in rows["arming"]] == ["batches of 10", "one by one"]
    for name in ("lateness", "burst"):
        (row,) = rows[name]
        assert (row["timers"], row["never"], row["twice"]) == (10, 0, 0)
        assert row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]


@pytest.mark.usefixtures("timers")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_bench_that_is_interrupted_cleans_up_as_well(
    sent: signal.Signals, start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    """A receiver that wants to hear of every timer got no call either."""
    everything = "arctfux * timers.hook-1"
    redis.hset("timers:{0}:hooks", everything, "1")
    redis.hset("timers:{pods}:hooks", everything, str(round(time.time() * 1000)))
    bench = start("bench", "--timers", "100", "--seconds", "600", TIMERS_REDIS_URL=server.url)

    async def spread() -> bool:
        return any("-spread" in key for key in redis.hkeys("timers:{0}:counts"))

    await eventually(spread, "timers are armed over ten minutes")
    bench.signal(sent)
    ended = bench.end()
    assert ended.code != 0
    assert "timers removed" in ended.err
    assert redis.hgetall("timers:{0}:counts") == {}
    assert not redis.keys("*bench-*")
    assert not redis.exists("timers:{0}:outbox")
    assert redis.hkeys("timers:{pods}:declared") == ["test", "log"]


@pytest.fixture
def under_nohup() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("under_nohup")
def test_under_nohup_it_outlives_its_terminal() -> None:
    end_as_by_ctrl_c()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
