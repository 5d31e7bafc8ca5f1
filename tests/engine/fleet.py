"""Pods in the test's own process. Each has its own connections, so that a test can kill one of them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

from redis.asyncio import Redis
from sqlalchemy import event

from tests.conservation import conserved
from tests.engine.own_tasks import OwnTasks
from tests.members import declare
from tests.waiting import DEADLINE_SECONDS, eventually, patient
from timers.client import client_over, open_store
from timers.core.model import Status, Timer
from timers.engine.pod import Counted, Observer, WorkerOptions
from timers.engine.worker import Worker
from timers.ledger.database import Database
from timers.processor import Context, Processor, Registry, Result, processor
from timers.store import keys
from timers.store.servers import ANSWER_TIMEOUT_SECONDS, connect
from timers.store.store import Store

CALM_LEASE_MS: Final = 30_000
"""A lease that no busy machine can let expire; tests about leases choose their own."""

DAY_MS: Final = 86_400_000

Act = Callable[[Timer, Context], Awaitable[Result]]


class Calls:
    """A processor that records its calls. `act` decides how a call goes; without it every run is done."""

    def __init__(self, prefix: str = "note", act: Act | None = None, **options: Any) -> None:
        self.timers: list[Timer] = []
        self.contexts: list[Context] = []
        self._act = act
        self.processor: Processor = processor(prefix, **options)(self.call)

    async def call(self, timer: Timer, context: Context) -> Result:
        """The processor itself."""
        self.timers.append(timer)
        self.contexts.append(context)
        return None if self._act is None else await self._act(timer, context)

    def __len__(self) -> int:
        return len(self.timers)

    @property
    def ids(self) -> list[str]:
        """The ids in the order of the calls."""
        return [timer.id for timer in self.timers]

    @property
    def attempts(self) -> list[int]:
        """The attempt numbers in the order of the calls."""
        return [timer.attempt for timer in self.timers]


class Held(Calls):
    """A processor whose calls last until the test calls `release.set()`."""

    def __init__(self, prefix: str = "note", **options: Any) -> None:
        super().__init__(prefix, self._hold, **options)
        self.release = asyncio.Event()
        self.cancelled = 0

    async def _hold(self, _timer: Timer, _context: Context) -> None:
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Seen(Observer):
    """Counts what tests want to know of a pod."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[str] = []
        self.rescues: list[str] = []
        self.bare_keys: list[str] = []
        self.subscriptions = 0.0
        self.left_out = 0.0
        self.inbox = Counter[str]()
        self.drift = Counter[str]()

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        match what:
            case "refused":
                self.refusals += labels
            case "rescued":
                self.rescues += labels
            case "bare_keys":
                self.bare_keys += labels
            case "subscriptions":
                self.subscriptions += by
            case "ledger_drift":
                self.drift.update(dict.fromkeys(labels, int(by)))
            case "unposted":
                self.left_out += by
            case "inbox":
                self.inbox[labels[0]] += int(by)
            case _:
                pass


def options_of(pod: str = "a", **given: Any) -> WorkerOptions:
    """The options of a pod on a calm machine."""
    defaults = {"concurrency": 100, "lease_ms": CALM_LEASE_MS, "retention_ms": DAY_MS, "drain_timeout_ms": 10_000}
    return WorkerOptions(pod=pod, **{**defaults, **given})


class OwnDatabase(Database):
    """A pod's own connections to the ledger."""

    def __init__(self, shared: Database) -> None:
        super().__init__(shared.engine.url.render_as_string(hide_password=False))
        self._opened: list[Any] = []
        self._records: list[Any] = []

        def opened(connection: Any, record: Any) -> None:
            self._opened.append(connection)
            self._records.append(record)

        event.listen(self.engine.sync_engine, "connect", opened)

    def forget(self) -> None:
        """Expect no connection back that is in use, as a dead process gives none back to its pool."""
        for record in self._records:
            if record.fairy_ref is not None and (used := record.fairy_ref()) is not None:
                used._finalizer.detach()

    async def abort(self) -> None:
        """End the connections as those of a dead process."""
        self.forget()
        for connection in self._opened:
            driver = connection.driver_connection
            if self.dialect == "sqlite":
                driver.stop()
                await asyncio.to_thread(driver._thread.join)
            else:
                driver.terminate()
        await asyncio.sleep(0)


class Pod:
    """One pod: a worker with its own connections."""

    def __init__(self, store: Store, registry: Registry, options: WorkerOptions) -> None:
        self.name, self.store = options.pod, store
        self.client = client_over(store)
        self.seen = Seen()
        self._tasks = OwnTasks()
        self.ledger = None if options.ledger is None else OwnDatabase(options.ledger)
        options = replace(options, ledger=self.ledger)
        self.worker = Worker(store, registry, self.client, options, self.seen)

    def hears(self) -> bool:
        """Whether it has subscribed to the expiries of each primary, for the first time."""
        return self.seen.subscriptions == len(self.store.connections.nodes)

    async def drain(self) -> None:
        """Drain the pod and close its connections."""
        await self.worker.drain()
        await self.store.connections.close()
        if self.ledger is not None:
            await self.ledger.close()

    async def start(self) -> None:
        """Start."""
        with self._tasks.creating():
            await self.worker.start()

    async def freeze(self) -> None:
        """Cut this pod off from Redis, as SIGSTOP would; its processors only wait. What writes ends is stopped
        first, so that no end gets out."""
        for services in reversed(self.worker.supervisors):
            await services.stop()

    def thaw(self) -> None:
        """Continue as after SIGCONT."""
        with self._tasks.creating():
            for services in self.worker.supervisors:
                services.start()

    async def kill(self) -> None:
        """End as under SIGKILL: nothing is finished, handed back or signed off."""
        await self.worker.supervisors[-1].stop()  # what extends leases has its own loop
        if self.ledger is not None:
            self.ledger.forget()
        await self._tasks.kill()
        if self.ledger is not None:
            await self.ledger.abort()
        self.worker.runner.close()
        await self.store.connections.close()


class Fleet:
    """The pods of one test, and a client and a store that belong to no pod."""

    def __init__(self, url: str, store: Store, pods_url: str) -> None:
        self.url, self.store, self.pods_url = url, store, pods_url
        self.client = client_over(store)
        self.answer_timeout_seconds = ANSWER_TIMEOUT_SECONDS
        """How long the server may take to answer pods that are started from now on."""
        self._alive: list[Pod] = []

    @classmethod
    async def over(cls, url: str, *, shards: int = 1, pods_url: str | None = None) -> Self:
        """A fleet without pods, in which the prefix `note` was declared. `pods_url` is the pods' URL if the test itself
        has more rights."""
        # On a busy machine an answer may take longer than a pod's own limit.
        store = await joined(url, shards=shards, answer_timeout_seconds=DEADLINE_SECONDS)
        fleet = cls(url, store, pods_url or url)
        await declare(fleet.store, "note")
        return fleet

    @property
    def redis(self) -> Redis:
        """The test's own connection, which returns bytes."""
        return self.store.connections.commands

    async def pod(self, *calls: Calls | Processor, name: str = "a", only: Iterable[str] = (), **options: Any) -> Pod:
        """Start a pod with these processors, limited to the prefixes of `only` (`TIMERS_PREFIXES`) if there are any."""
        registry = Registry([each.processor if isinstance(each, Calls) else each for each in calls], only)
        store = await joined(self.pods_url, answer_timeout_seconds=self.answer_timeout_seconds)
        pod = Pod(store, registry, options_of(name, **{"beat_ms": 50, **options}))
        self._alive.append(pod)
        await pod.start()
        return pod

    async def drain(self, pod: Pod) -> None:
        """Drain a pod."""
        self._alive.remove(pod)
        await pod.drain()

    async def kill(self, pod: Pod) -> None:
        """Kill a pod."""
        self._alive.remove(pod)
        await pod.kill()

    async def expire_lease(self, timer_id: str, prefix: str = "note") -> None:
        """End a lease now, as if its time had passed and nobody had extended it: the sweepers come then."""
        shard, member = self.store.shard_of(prefix, timer_id), f"{prefix}:{timer_id}"
        root, now_ms = keys.root(shard), await self.store.now_ms()
        await self.redis.zadd(f"{root}leases", {member: now_ms}, xx=True)
        assert await self.redis.pexpire(f"{root}lease:{member}", 1)
        await self.announce(shard, now_ms + 2)

    async def announce(self, shard: int, due_ms: int) -> None:
        """Tell the sweepers of a shard of a due time, as scripts do."""
        connections, said = self.store.connections, f"{{{shard}}} {due_ms}"
        if connections.is_spread:
            redis: Any = connections.node_of(keys.root(shard)).commands
            await redis.execute_command("SPUBLISH", f"{keys.root(shard)}{keys.OWN_WAKE}", said)
        else:
            await self.redis.publish(keys.wake_channel(connections.db), said)

    async def reached(self, status: Status, timer_id: str, prefix: str = "note") -> Timer:
        """The timer, once it has this status."""

        async def look() -> Timer | None:
            (timer,) = await self.store.get([(prefix, timer_id)])
            return timer if timer is not None and timer.status is status else None

        timer = await eventually(look, f"{prefix}:{timer_id} is {status}")
        assert timer is not None
        return timer

    async def completed(self, timer_id: str, prefix: str = "note") -> Timer:
        """The timer, once it is completed."""
        return await self.reached(Status.COMPLETED, timer_id, prefix)

    async def failed(self, timer_id: str, prefix: str = "note") -> Timer:
        """The timer, once it has failed."""
        return await self.reached(Status.FAILED, timer_id, prefix)

    async def close(self) -> None:
        """Drain the remaining pods and check that nothing is left."""
        await asyncio.gather(*[self.drain(pod) for pod in list(self._alive)])
        await conserved(self.store)
        await self.store.connections.close()


async def joined(
    url: str, *, shards: int | None = None, answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
) -> Store:
    """Open a store as a pod does."""
    connections = connect(patient(url), answer_timeout_seconds=answer_timeout_seconds)
    try:
        store = await open_store(connections, shards=shards)
        await store.identity.join()
    except BaseException:
        await connections.close()
        raise
    return store


async def stubbornly(let_go: asyncio.Event) -> None:
    """Wait like a processor that swallows every cancellation."""
    while not let_go.is_set():
        with suppress(asyncio.CancelledError):
            await let_go.wait()


async def until(so: Callable[[], object], what: str) -> None:
    """Return once `so()` is true. Otherwise fail the test, saying that `what` did not happen."""

    async def look() -> bool:
        return bool(so())

    await eventually(look, what)


def notes(timer: Timer) -> list[str]:
    """The notes of the timer's history, oldest first."""
    return [entry.note for entry in reversed(timer.history)]
