"""Owns what monitors ask a pod: whether the process lives, whether it can do its work now, and its metrics."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from timers.api.answer import HTTP_PROBLEMS, answer, problem
from timers.api.auth import AUTH, visible_to
from timers.api.operations import call
from timers.api.requests import refuse_query
from timers.client import TimerClient, aside, held_ms
from timers.client.fleet import ALL_SERVED, Fleet, HeldBy, Unserved, read_fleet
from timers.client.opening import ask_ledger
from timers.core.model import Status
from timers.doctor.checks import any_full, away_from, partly_away
from timers.doctor.examining import unacknowledged
from timers.engine.pod import UNDECLARED
from timers.engine.worker import PodHealth, Worker
from timers.errors import LedgerUnavailable, Moving, Unavailable
from timers.logs import get_logger
from timers.metrics import CONTENT_TYPE, Figures, Metrics
from timers.store.cooperative import CachedRead, cooperatively
from timers.store.filters import Visible
from timers.store.scripts import FULL
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.core.shapes import RedisState

T = TypeVar("T")

ANSWER_SECONDS: Final = 0.6
"""How long Redis, and the ledger, may take to answer for a probe or a scrape. Probes usually give up after a second,
and a scrape gets the pod's own metrics then."""

FRESH_SECONDS: Final = 1.0
"""How long an answer from Redis counts. One read a second serves all probes."""

BEHIND_SECONDS: Final = 60.0
"""A ledger this far behind is told of. The pod stays ready: its timers run, and nothing is lost."""

_log = get_logger("timers.api")


class HealthRoutes:
    """`/healthz`, `/readyz` and `/metrics` of one pod. `worker` is None if the pod does not have that role."""

    def __init__(
        self,
        store: Store,
        client: TimerClient,
        worker: Worker | None,
        metrics: Metrics,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._store, self._client, self._worker, self._metrics = store, client, worker, metrics
        self._connections, self._ledger, self._answer_seconds = store.connections, client.ledger, answer_seconds
        self._seen = CachedRead(self._refresh, fresh_seconds)
        self._asked = CachedRead(partial(ask_ledger, client.ledger), fresh_seconds)
        self._inbox = None if self._ledger is None else CachedRead(self._ledger.inbox_seconds, FRESH_SECONDS)
        self._draining = False
        self._partly = ""
        """What is out of reach, while a part of a cluster answers."""

    def drain(self) -> None:
        """Answer "not ready" from now on, so that no new work is sent here."""
        self._draining = True

    @call("getHealth")
    async def healthz(self, _request: web.Request) -> web.Response:
        """Answers 200: a process that answers lives."""
        return answer({"status": "ok"})

    @call("getReadiness")
    async def readyz(self, request: web.Request) -> web.Response:
        """Answers 200 if Redis and every part work, else 503 with the reasons; a pod without a worker also while only
        its ledger works. Anonymous callers see no names."""
        asked = _within(self._answer_seconds, self._asked)
        (trouble, is_full, unserved), _ = await asyncio.gather(self._seen.get(), asked)
        visible = visible_to(request)
        bare, takes_creates = visible is not None, self._takes_creates
        redis: RedisState = "away" if trouble else "full" if is_full else "partly away" if self._partly else "ok"
        state: dict[str, Any] = {"redis": trouble if trouble and not takes_creates else redis}
        waits, health = list[str](), None
        if self._worker is not None:
            health = self._worker.health()
            services, waits = health.services, [*health.warnings]
            state |= {
                "notifications": health.notifications,
                "services": {name: said.partition(":")[0] if bare else said for name, said in services.items()},
            }
            if not bare or AUTH not in request.app:  # the probe port's metrics tell it to everybody
                state |= {"running": health.running, "queues_waiting": health.queues_waiting}
        problems = list(dict.fromkeys(self._problems(trouble, health, anonymous=bare)))
        if trouble and takes_creates:
            waits.append(f"{trouble}; only new timers are taken, for the ledger")
        for said in filter(None, (self._partly, self._connections.unwatched)):
            waits.append(said.partition(":")[0] if bare else said)
        waits += dict.fromkeys(self._lacks(visible))
        waits += self._ledger_warnings(health, anonymous=bare)
        full = [FULL] if is_full else []
        warnings = [*full, *unacknowledged(self._store), *unserved.warnings(visible), *waits]
        state = {"ready": not problems, **state, "warnings": warnings, "problems": problems}
        if problems:
            return problem(HTTP_PROBLEMS[503], "; ".join(problems), **state)
        return answer(state)

    @property
    def _takes_creates(self) -> bool:
        """Whether new timers are taken without Redis. A pod that also works has to be unready while Redis is away,
        although the ledger takes new timers."""
        return self._worker is None and self._ledger is not None and self._ledger.trouble is None

    def _problems(self, trouble: str, health: PodHealth | None, *, anonymous: bool = False) -> Iterator[str]:
        """Why this pod is not ready. `trouble` is Redis's."""
        if trouble and not self._takes_creates:
            yield trouble
        if (moving := self._store.identity.moving) is not None:
            said = str(moving.error)
            yield said.partition(f" to {moving.place}")[0] if anonymous else said
        for said in () if health is None else health.problems:
            # The reason for a restart may contain any name.
            yield ": ".join(said.split(": ")[:2]) if anonymous else said
        if self._draining:
            yield "draining"

    def _lacks(self, visible: Visible | None) -> Iterator[str]:
        """What this pod's Redis user was refused of late. The reason names a prefix and a timer."""
        for prefix, said in self._store.refusals.lacks.items():
            yield said if visible is None or visible(prefix) else "the Redis user lacks a right"

    def _ledger_warnings(self, health: PodHealth | None, *, anonymous: bool) -> Iterator[str]:
        """What is wrong with the ledger. The reason may contain the name of a host."""
        trouble = None if self._ledger is None else self._ledger.trouble
        if trouble is not None:
            yield trouble.partition(":")[0] if anonymous else trouble
        known = None if health is None else health.ledger
        if known is not None and known.lag_seconds > BEHIND_SECONDS:
            yield f"the ledger is {known.lag_seconds:.0f} s behind; {known.waiting} changes wait for this pod"

    async def _refresh(self) -> tuple[str, bool, Unserved]:
        """Read from Redis what is wrong with it, whether it is full, and what no pod takes. Whatever it answers,
        there is something to tell the probes."""
        self._partly, connections = "", self._connections
        try:
            found, away = await asyncio.gather(self._read(), away_from(connections, self._answer_seconds))
        except Exception as error:  # noqa: BLE001 (a probe gets an answer, whatever lies in Redis)
            _log.error("data for the probes cannot be read", exc_info=error)
            said = f"the data in Redis cannot be read ({type(error).__name__}); this pod's log says more"
            return said, False, ALL_SERVED
        trouble, is_full, unserved = found
        if trouble and len(away) < len(connections.nodes) > 1:
            self._partly = partly_away(connections, away) or f"a part of the cluster is out of reach: {trouble}"
            trouble = ""
        return trouble, is_full, unserved

    async def _read(self) -> tuple[str, bool, Unserved]:
        """As `_refresh`, but of data that can be read."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                is_full = await any_full(self._connections)
                return "", is_full, (await read_fleet(self._store)).unserved
        except TimeoutError:
            trouble = f"Redis does not answer within {self._answer_seconds:g} seconds"
        except Unavailable as error:
            trouble = str(error)
        return trouble, False, ALL_SERVED

    @call("getMetrics")
    async def metrics(self, request: web.Request) -> web.Response:
        """Answers 200 with the exposition text."""
        refuse_query(request)
        health = None if self._worker is None else self._worker.health()
        losses, dropped = len(self._client.losses), self._client.events_dropped
        seconds, nodes = self._answer_seconds, self._connections.nodes
        waited = _within(seconds, self._inbox)
        asked = _within(seconds, self._asked)
        figures, inbox_seconds, away, (trouble, is_full, _), _ = await asyncio.gather(
            _db_figures(self._client, seconds), waited, away_from(self._connections, seconds), self._seen.get(), asked
        )
        has_all = figures is not None
        lacks = [await _label(self._client, prefix) for prefix in (self._store.refusals.lacks if has_all else ())]
        text = self._metrics.render(
            None
            if figures is None
            else {
                **figures,
                "timers_redis_full": {(): is_full},
                "timers_rights_missing": {(prefix,): 1 for prefix in lacks},
            },
            health,
            ready=not any(self._problems(trouble, health)),
            servers={each.address: has_all or (len(nodes) > 1 and each.address not in away) for each in nodes},
            losses=losses,
            dropped=dropped,
            ledger_up=None if self._ledger is None else self._ledger.trouble is None,
            inbox_seconds=inbox_seconds,
        )
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def _within(seconds: float, told: CachedRead[T] | None) -> T | None:
    """What the ledger tells. None without a ledger, and while it is down or hangs."""
    if told is not None:
        with suppress(LedgerUnavailable, TimeoutError):
            async with asyncio.timeout(seconds):
                return await told.get()
    return None


async def _db_figures(client: TimerClient, seconds: float) -> Figures | None:
    """The gauges of what Redis tells, by declared prefix. None while Redis is down or frozen, which is when people look
    at a pod most; none of them where the service has left."""
    found = defaultdict[str, Counter[Status]](Counter)
    try:
        async with asyncio.timeout(seconds):
            fleet, counts = await client.fleet(), await client.counts(own=True)
            async for prefix, counted in cooperatively(counts.items()):
                found[await _label(client, prefix)].update(counted)
            beside = await aside(client)
            failing_ms = dict[str, int]()
            for prefix, _, ms in await client.retrying(own=True):
                label = await _label(client, prefix)
                failing_ms[label] = max(ms, failing_ms.get(label, 0))
            held = await _held_ms(client, fleet)
            unserved = Counter([await _label(client, prefix) for prefix in fleet.unserved.prefixes])
    except Moving:
        return {}
    except (Unavailable, TimeoutError):
        return None
    numbers = [(prefix, status, n) for prefix, counted in found.items() for status, n in counted.items()]
    return {
        # Among the scheduled ones, so that a sum counts each timer once.
        "timers_retrying": {(prefix,): n for prefix, status, n in numbers if status is Status.RETRYING},
        "timers_timers": {(prefix, status.value): n for prefix, status, n in numbers if status is not Status.RETRYING},
        "timers_retrying_seconds": {(prefix,): ms / 1000 for prefix, ms in failing_ms.items()},
        "timers_uncovered_shards": {(str(shard),): 1 for shard in fleet.unserved.shards},
        "timers_uncovered_prefixes": {(prefix,): n for prefix, n in unserved.items()},
        "timers_held_back_seconds": {key: ms / 1000 for key, ms in held.items()},
        "timers_overdue_seconds": {(): fleet.overdue_ms("ready") / 1000},
        "timers_outbox_entries": {(): beside.posted},
        "timers_outbox_seconds": {(): beside.posted_ms / 1000},
        "timers_quarantined": {(): beside.quarantined},
    }


async def _held_ms(client: TimerClient, fleet: Fleet) -> Mapping[tuple[str, HeldBy], int]:
    """As `held_ms` of the fleet, by declared prefix."""
    found = dict[tuple[str, HeldBy], int]()
    for (prefix, by), ms in (await held_ms(client, fleet)).items():
        key = await _label(client, prefix), by
        found[key] = max(ms, found.get(key, 0))
    return found


async def _label(client: TimerClient, prefix: str) -> str:
    return await client.owner(prefix) or UNDECLARED
