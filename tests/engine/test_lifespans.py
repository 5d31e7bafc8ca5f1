"""Lifespans of processors: opened once per pod before the first run, closed after the last."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Fleet, Held, until
from timers.core.model import Timer
from timers.engine.supervisor import Lifespans
from timers.errors import ConfigurationError
from timers.processor import BlockingContext, Context, Lifespan, Processor, Registry, processor


class Pool:
    """Counts how often it is opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.used_by: list[str] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator["Pool"]:
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    def processor(self, prefix: str) -> Processor:
        @processor(prefix, lifespan=self.lifespan)
        async def use(timer: Timer, context: Context[Pool]) -> None:
            assert context.state.opened > context.state.closed
            context.state.used_by.append(timer.prefix)

        return use

    def in_thread(self, prefix: str) -> Processor:
        @processor(prefix, lifespan=self.lifespan)
        def use(timer: Timer, context: BlockingContext[Pool]) -> None:
            context.state.used_by.append(timer.prefix)

        return use


async def test_it_is_opened_once_per_pod_and_shared(fleet: Fleet) -> None:
    pool = Pool()
    pod = await fleet.pod(pool.processor("one"), pool.in_thread("two"))
    assert (pool.opened, pool.closed) == (1, 0)
    for prefix in ("one", "two"):
        await fleet.client.create(prefix, "a", delay=0)
        await fleet.completed("a", prefix)
    assert sorted(pool.used_by) == ["one", "two"]
    await fleet.drain(pod)
    assert (pool.opened, pool.closed) == (1, 1)


async def test_a_drain_closes_it_after_the_last_run(fleet: Fleet) -> None:
    closed_before_the_end: list[bool] = []
    held = Held()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        closed_before_the_end.append(held.cancelled == 0)

    @processor("note", lifespan=lifespan)
    async def hold(timer: Timer, context: Context) -> None:
        await held.call(timer, context)

    pod = await fleet.pod(hold, drain_timeout_ms=0)
    await fleet.client.create("note", "a", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.drain(pod)
    assert closed_before_the_end == [False]


def _serving(lifespan: Lifespan[None]) -> Processor:
    @processor("note", lifespan=lifespan)
    async def serve(timer: Timer, context: Context) -> None:
        raise AssertionError

    return serve


async def _no_database() -> None:
    raise OSError("no database")


async def test_a_pod_that_cannot_open_it_does_not_start_and_names_the_processor(fleet: Fleet) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await _no_database()
        yield

    pool = Pool()
    with pytest.raises(ConfigurationError, match=r"lifespan of the processor .*serve failed: OSError: no database$"):
        await fleet.pod(pool.processor("a-first"), _serving(lifespan))
    assert (pool.opened, pool.closed) == (1, 1)


@pytest.mark.parametrize("failure", [asyncio.CancelledError("gave up"), SystemExit("gave up")], ids=type)
async def test_one_that_is_cancelled_or_exits_is_named_too(failure: BaseException) -> None:
    async def fail() -> None:
        raise failure

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await fail()
        yield

    pool = Pool()
    lifespans = Lifespans([pool.processor("a-first"), _serving(lifespan)])
    with pytest.raises(ConfigurationError, match=r"lifespan of the processor .*serve failed: \w+: gave up$"):
        await lifespans.open()
    assert (pool.opened, pool.closed) == (1, 1)


async def test_one_that_takes_long_is_named_and_left_when_the_pod_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.engine.supervisor.OPENING_SECONDS", 0)
    left = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.set()

    with capture_logs() as lines:
        opening = asyncio.create_task(Lifespans([_serving(lifespan)]).open())
        await until(lambda: lines, "it is named")
    (line,) = lines
    assert line["event"] == "the lifespan of a processor is not open yet"
    assert line["processor"].endswith("serve")
    opening.cancel()
    await left.wait()


async def test_a_pod_that_is_limited_to_other_prefixes_does_not_open_it() -> None:
    pool = Pool()
    lifespans = Lifespans(Registry([pool.processor("one")], only=["two"]).processors)
    await lifespans.open()
    await lifespans.close()
    assert pool.opened == 0


async def test_a_lifespan_that_fails_to_close_is_logged_and_ends_nothing_else() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise OSError("gone already")

    lifespans = Lifespans([_serving(lifespan)])
    await lifespans.open()
    with capture_logs() as lines:
        await lifespans.close()
    assert [line["event"] for line in lines] == ["the lifespan of a processor could not be closed"]
