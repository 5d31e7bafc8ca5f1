"""Owns putting a pod together: makes connections, worker and API from settings, starts them in order, ends them in
reverse."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from aiohttp import web

from timers.api.auth import Auth
from timers.api.health import HealthRoutes
from timers.api.server import all_routes, application, listening, probe_application, waiting_application
from timers.client import TimerClient, client_of, open_redis
from timers.client.opening import check_setting
from timers.dashboard import all_pages
from timers.dashboard.render import prepare
from timers.dashboard.site import Guard
from timers.embedded import EmbeddedServer, is_owned
from timers.engine.peers import Peers
from timers.engine.pod import WorkerOptions
from timers.engine.spans import Spans
from timers.engine.worker import Worker
from timers.errors import ConfigurationError, LedgerUnavailable, Moving, Unavailable
from timers.logs import get_logger
from timers.metrics import Metrics
from timers.processor import DISTRIBUTION, Registry, load
from timers.setting_values import redacted
from timers.settings import Settings
from timers.store.callers import Callers
from timers.store.cooperative import set_within
from timers.store.membership import VERSION, Member, Membership
from timers.store.scripts import load_all
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.ledger.database import Database

T = TypeVar("T")

TRY_AGAIN_SECONDS: Final = 0.2
"""The pause between two tries to reach Redis, and the ledger, while a pod starts."""

WATCH_SECONDS: Final = 2.0
"""How often `timers dev` looks whether its data folder is in its place."""

END_SECONDS: Final = 0.5
"""How long the threads of a pod that ends have to end by themselves."""

PROBE_CONNECTIONS: Final = 64
"""The most connections to the probe port: kubelets and scrapers are few."""

_log = get_logger("timers.app")


Announce = Callable[[str | None, str, str | None], None]
"""Called when a pod is up: with the URL of its API (None without that role), what its Redis is, and the URL of its
probe port if it has one."""


class Stopping:
    """What signals ask for: the first an orderly end, the second not to wait for runs, the third to end at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry: Callable[[], None] | None = lambda: None
        """What the second signal calls; None after that."""
        self._main = asyncio.current_task()
        self.reason: ConfigurationError | None = None
        """Why this pod ends without being asked to."""

    def disagreed(self, error: ConfigurationError) -> None:
        """This pod can no longer work with the db, so it ends in order."""
        self.reason = error
        self.asked.set()

    def ask(self) -> None:
        """Called at each signal."""
        if not self.asked.is_set():
            self.asked.set()
        elif self.hurry is not None:
            self.hurry()
            self.hurry = None
        elif self._main is not None:
            self._main.cancel()


@contextmanager
def stopped_by_signals() -> Iterator[Stopping]:
    """While the context lasts, SIGTERM and SIGINT ask the pod to stop; and SIGHUP, which comes when its terminal ends,
    unless `nohup` has it ignored."""
    loop, stopping = asyncio.get_running_loop(), Stopping()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stopping.ask)
    try:
        yield stopping
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _tried(attempt: Callable[[], Awaitable[T]], settings: Settings, stopping: Stopping) -> T | None:
    """What the attempt returns. It is repeated for TIMERS_START_TIMEOUT while Redis or the ledger is away; meanwhile
    the pod is alive but not ready. None if the pod is stopped first."""
    began, waiting, for_ledger = time.monotonic(), False, False
    app = partial(waiting_application, lambda: for_ledger)
    async with AsyncExitStack() as ends:
        while not stopping.asked.is_set():
            try:
                return await attempt()
            except ConfigurationError as error:
                waited = time.monotonic() - began
                if not isinstance(error.__cause__, Unavailable | LedgerUnavailable):
                    raise
                if waited >= settings.start_timeout_ms / 1000:
                    tried = f"; tried for {waited:.0f} s (TIMERS_START_TIMEOUT)" if waiting else ""
                    raise ConfigurationError(f"{error}{tried}") from error
                for_ledger = isinstance(error.__cause__, LedgerUnavailable)
            if not waiting:
                waiting = True
                if "api" in settings.roles:
                    await ends.enter_async_context(listening(app(), settings.http_host, settings.http_port))
                await _probes(settings, app(), ends)
            await set_within(stopping.asked, TRY_AGAIN_SECONDS)
        return None


async def _check(ledger: "Database", store: Store) -> None:
    """Make sure that the ledger can be used. Raises ConfigurationError, also while another db uses it, or Redis is away
    again; and Moving."""
    from timers.engine.following import claim_ledger  # noqa: PLC0415 (what it needs is an extra)

    try:
        await ledger.check()
        await claim_ledger(store, ledger)
    except LedgerUnavailable as error:
        raise ConfigurationError(f"TIMERS_LEDGER_URL: {error}") from error
    except Moving:
        raise
    except Unavailable as error:
        raise ConfigurationError(f"TIMERS_REDIS_URL: {error}") from error


async def serve(settings: Settings, announce: Announce) -> int:
    """Run one pod against the configured Redis until a signal ends it; returns the exit code."""
    if settings.redis_url is None:
        raise ConfigurationError(
            "TIMERS_REDIS_URL is not set; set it to a server such as redis://127.0.0.1:6379/5, "
            "or use `timers dev`, which starts one"
        )
    with stopped_by_signals() as stopping:
        return await _serve(settings, settings.redis_url, redacted(settings.redis_url), announce, stopping)


async def dev(settings: Settings, announce: Announce) -> int:
    """As `serve`, with an embedded server if none is configured."""
    with stopped_by_signals() as stopping:
        settings = settings.model_copy(update={"start_timeout_ms": 0})
        if settings.redis_url is not None:
            return await _serve(settings, settings.redis_url, redacted(settings.redis_url), announce, stopping)
        data = settings.data_dir.absolute()
        async with await EmbeddedServer.start(data, settings.server_binary) as server:
            watching = asyncio.create_task(_watch(data, stopping))
            try:
                redis = f"{server.family} {server.version}, embedded, data in {data}"
                return await _serve(settings, server.url, redis, announce, stopping)
            finally:
                watching.cancel()


async def _watch(data: Path, stopping: Stopping) -> None:
    """Say it if the folder of the embedded server is removed or moved before the pod stops."""
    while is_owned(data):
        if await set_within(stopping.asked, WATCH_SECONDS):
            return
    _log.error("the data folder was removed or moved while its server runs", folder=str(data))


async def _serve(settings: Settings, url: str, redis: str, announce: Announce, stopping: Stopping) -> int:
    targets = dict(settings.webhook_targets)
    registry = load(settings.processors, only=settings.served, builtin=settings.loaded, targets=targets)
    load_all()
    async with AsyncExitStack() as ends:
        join = partial(open_redis, url, settings, joins="worker" in settings.roles)
        store = await _tried(join, settings, stopping)
        if store is None:
            return 0
        ends.push_async_callback(store.connections.close)
        client = client_of(store, settings)
        if client.ledger is not None:
            ends.push_async_callback(client.ledger.close)
            await _tried(partial(_check, client.ledger, store), settings, stopping)
        metrics = Metrics()
        await check_setting(store, settings.durability)
        store.called, store.confirmed = metrics.called, metrics.confirmed
        worker = _worker(settings, store, registry, client, metrics, stopping=stopping)
        health = HealthRoutes(store, client, worker, metrics)
        auth = _auth(settings, Callers(store), client.ledger)
        routes = (*all_pages(store, client, auth), *all_routes(client, health))
        probes = await _probes(settings, probe_application(health), ends)
        api = None
        if "api" in settings.roles:
            app = application(routes, auth, Guard(store.connections).check, ledger=client.ledger)
            api = await ends.enter_async_context(listening(app, settings.http_host, settings.http_port))
            preparing = asyncio.get_running_loop().run_in_executor(None, prepare)
            ends.push_async_callback(asyncio.wait, [preparing])  # or its thread might look like one that hangs
            # Ends before the API, which waits for its answers: event streams do not end by themselves.
            ends.push_async_callback(client.end_events)
        if worker is not None:
            stopping.hurry = partial(_hurry, worker)
            ends.push_async_callback(worker.drain)
            await _started(worker, stopping)
        else:
            peers = _peers(settings, store, stopping)
            ends.push_async_callback(peers.stop)
            await _started(peers, stopping)
        if not stopping.asked.is_set():
            announce(api, redis, probes)
        await stopping.asked.wait()
        health.drain()
        _log.info("stopping; a second signal hands running timers back at once")
    if stopping.reason is not None:
        raise stopping.reason
    return 0


def _peers(settings: Settings, store: Store, stopping: Stopping) -> Peers:
    """The signs of life of a pod without a worker."""
    me = Member(
        settings.pod, roles=tuple(sorted(settings.roles)), settings=_fleet_wide(settings), format=store.identity.newest
    )
    return Peers(Membership(store), me, disagreed=stopping.disagreed)


def _worker(
    settings: Settings,
    store: Store,
    registry: Registry,
    client: TimerClient,
    metrics: Metrics,
    *,
    stopping: Stopping,
) -> Worker | None:
    if "worker" not in settings.roles:
        return None
    registry.check_only()
    if settings.shard_subset and settings.shard_subset[-1] >= store.shards:
        rule = f"shards of this db, 0 to {store.shards - 1}"
        raise ConfigurationError.of("TIMERS_SHARD_SUBSET", settings.shard_subset[-1], rule)
    options = WorkerOptions(
        pod=settings.pod,
        roles=tuple(sorted(settings.roles)),
        concurrency=settings.concurrency,
        lease_ms=settings.lease_ms,
        retention_ms=settings.retention_ms,
        retention_failed_ms=settings.retention_failed_ms,
        drain_timeout_ms=settings.drain_timeout_ms,
        shard_subset=settings.shard_subset or None,
        adopt_every_ms=settings.adopt_every_ms,
        settings=_fleet_wide(settings),
        hooks=settings.requested_hooks,
        public_url=settings.public_url,
        spans=Spans.configured(settings.pod),
        ledger=client.ledger,
        durability=settings.durability or "fast",
    )
    return Worker(store, registry, client, options, metrics, disagreed=stopping.disagreed)


async def _started(pod: Worker | Peers, stopping: Stopping) -> None:
    """Start it, unless it is stopped before: what processors open may take for ever."""
    starting, stopped = asyncio.create_task(pod.start()), asyncio.create_task(stopping.asked.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
    except Unavailable as error:
        raise ConfigurationError(f"TIMERS_REDIS_URL: the server went away while the pod started: {error}") from error
    except LedgerUnavailable as error:
        raise ConfigurationError(f"TIMERS_LEDGER_URL: it went away while the pod started: {error}") from error
    finally:
        starting.cancel()
        stopped.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)


def _fleet_wide(settings: Settings) -> dict[str, str]:
    return {VERSION: version(DISTRIBUTION), **settings.fleet_wide}


async def _probes(settings: Settings, app: web.Application, ends: AsyncExitStack) -> str | None:
    if settings.probe_port is None:
        return None
    place = settings.http_host, settings.probe_port
    probes = listening(app, *place, setting="TIMERS_PROBE_PORT", limit=PROBE_CONNECTIONS)
    return await ends.enter_async_context(probes)


def _auth(settings: Settings, callers: Callers, ledger: "Database | None") -> Auth:
    keys = None if settings.api_keys is None else settings.api_keys.get_secret_value()
    secrets = [secret.get_secret_value() for secret in settings.signing_secrets]
    return Auth(callers, keys, secrets, insecure=settings.insecure, ledger=ledger)


def _hurry(worker: Worker) -> None:
    _log.warning("handing running timers back at once; a third signal ends this process as it is")
    worker.shorten_drain()


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a pod in its own event loop, uvloop's if it is installed; returns the pod's exit code."""
    _fill_standard_streams()
    collect_garbage_rarely()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        idle = ThreadPoolExecutor(thread_name_prefix="timers")
        runner.get_loop().set_default_executor(idle)
        code = _run_on(runner, runner.get_loop().create_task(main))
        idle.shutdown(wait=False, cancel_futures=True)
        if asyncio.all_tasks(runner.get_loop()) or _threads_hang():
            _exit_now(code)
    return code


def _fill_standard_streams() -> None:
    """Open each of stdin, stdout and stderr that this process was started without. The event loop would get its number,
    and uvloop aborts the process when it closes one of these."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def _run_on(runner: asyncio.Runner, pod: asyncio.Task[int]) -> int:
    """Run until the pod ends. A SystemExit in any task stops the loop, even in one that a processor made."""
    while True:
        try:
            return runner.run(_result_of(pod))
        except SystemExit as error:
            if pod.done():
                raise
            _log.error("a task asked the process to exit; the pod continues", exc_info=error)


async def _result_of(pod: asyncio.Task[int]) -> int:
    try:
        return await pod
    except asyncio.CancelledError:
        return 1


def collect_garbage_rarely() -> None:
    """Keep what is loaded by now out of the garbage collector, and let it run less often. Looking through everything
    took a fifth of a batch, and a pause of many milliseconds makes timers late."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 (Linux and macOS have it, with CPython)
    except ImportError:
        return None
    return uvloop.new_event_loop


def _threads_hang() -> bool:
    """Whether some thread would keep this process alive. An idle one ends at once."""
    deadline = time.monotonic() + END_SECONDS
    threads = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _exit_now(code: int) -> NoReturn:
    """End without waiting for processors that hang. Everything of ours is closed by now, and their timers are handed
    back."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
