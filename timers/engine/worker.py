"""Owns a pod's worker role: builds the services, starts them, reports their health, and drains them in order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from timers.bare.keys import BareKeys
from timers.bare.watch import BareWatch
from timers.client import TimerClient, client_over
from timers.core.calls import Timers
from timers.engine.canary import Canaries
from timers.engine.claimer import Claimer
from timers.engine.hooks import Hooks
from timers.engine.intake import Intake
from timers.engine.leases import Leases
from timers.engine.listener import Listener
from timers.engine.maintenance import REPORT_SECONDS, UNSERVED_SECONDS, Maintenance
from timers.engine.peers import Peers
from timers.engine.pod import Observer, Pod, WorkerOptions
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.engine.supervisor import Lifespans, Services, Supervisor, ThreadSupervisor, repeat
from timers.engine.sweeper import Sweeper
from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.processor import Registry
from timers.store.cooperative import cancelled
from timers.store.membership import LIMITS, Member, Membership
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.engine.following import Following
    from timers.engine.inbox import Inbox

LONG_WAIT_SECONDS: Final = 1.0
"""A queue that waits this long for a claim is told of: the pod has no room, or too much to claim."""

_FINE: Final = ("running", "waiting", "restarting: Redis cannot do this now: hash slot")
"""How the states of services begin that leave a pod ready. A full server takes no new timers, and a hash slot that is
being moved holds up its shards, but everything else continues."""

_log = get_logger("timers.worker")


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """What a pod knows of the ledger: how many changes it has yet to copy and how old the oldest may be, and how many
    rows of the inbox were refused (None: not counted yet). `share`, 0 to 1, of its shards was restored and copied."""

    waiting: int
    lag_seconds: float
    refused: int | None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PodHealth:
    """The state of a pod. `lag_seconds` is how long the newest canary's event took. `abandoned` counts plain functions
    that keep running in their threads after their runs ended. `problems` says why the pod is not ready.
    `queues_waiting` queues with due timers wait for a claim of this pod, the first for `claim_wait_seconds`. `newer`
    timers that it met lately have a record format that it cannot read. `ledger` is None without a ledger."""

    ready: bool
    notifications: str
    lag_seconds: float
    services: Mapping[str, str]
    running: int
    abandoned: int
    problems: tuple[str, ...]
    queues_waiting: int = 0
    claim_wait_seconds: float = 0.0
    newer: int = 0
    ledger: LedgerHealth | None = None
    away: Sequence[str] = ()

    @property
    def warnings(self) -> list[str]:
        """Sentences: which shards are out of reach, and if queues with due timers wait long for this pod to ask."""
        if self.claim_wait_seconds < LONG_WAIT_SECONDS:
            return [*self.away]
        first = f"the first for {self.claim_wait_seconds:.1f} s"
        return [*self.away, f"{self.queues_waiting} queues with due timers wait for a claim of this pod, {first}"]


class Worker:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        timers: Timers,
        options: WorkerOptions,
        observer: Observer | None = None,
        *,
        disagreed: Callable[[ConfigurationError], None] | None = None,
    ) -> None:
        """`disagreed` is called if the db has another number of shards by now, so that this pod must end."""
        self._options = options
        self._started = self._draining = False
        self._overdue = asyncio.Event()
        self.peers = self._build_peers(store, registry, disagreed)
        self._pod = pod = Pod(store, registry, options, observer or Observer(), self.peers.owner)
        pod.observer.serves(each.prefix for each in registry.processors)
        self._turns = deque(pod.shards)
        """Its shards, each time from another on: the first ones that are asked may take all the room."""
        self._canaries = Canaries(pod)
        self.intake = Intake(limited=registry.limits_fleet)
        self._runs = Runs(pod, self._ends_written)
        self._lifespans = Lifespans(registry.processors)
        self.runner = Runner(pod, self._runs, timers, self._lifespans)
        self.runner.resumed = self._resumed
        self._sweeper = Sweeper(pod, self.intake, self.peers, self._canaries)
        self._claimer = Claimer(pod, self.intake, self.runner)
        self._hooks = Hooks(pod, self.peers)
        bare = self._build_bare()
        self._listener = Listener(
            pod,
            self.intake,
            self._sweeper,
            peers=self.peers,
            canaries=self._canaries,
            hooks=self._hooks,
            bare=bare if options.adopt_every_ms is not None else None,
        )
        self.following: Following | None = None
        self._inbox: Inbox | None = None
        upkeep = Maintenance(pod, self.peers, self._sweeper.leaves_work)
        unserved_seconds = min(UNSERVED_SECONDS, options.unhandled_after_ms / 2000)
        # What finds and claims timers is stopped first.
        self._taking = Supervisor(
            {
                "listener": self._listener.run,
                "canary": self._canaries.run,
                "sweeper": self._sweeper.run,
                "claimer": self._claimer.run,
                "hooks": self._hooks.run,
                "alarms": partial(repeat, self._hooks.check_alarms, options.alarm_poll_ms / 1000),
                **bare.services,
                "janitor": upkeep.prune_all,
                "unserved": partial(repeat, upkeep.abandon_all, unserved_seconds),
                "auditor": upkeep.audit_all,
                **self._ledger_services(timers),
            }
        )
        # What runs until the last end is written.
        reporter = partial(repeat, upkeep.report_starts, REPORT_SECONDS)
        self._ending = Supervisor({"settler": self._runs.settle, "reporter": reporter})
        leases = Leases(pod, self._runs, self.runner)
        self._leasing = ThreadSupervisor({"heartbeat": leases.extend_all, "loop_watchdog": leases.watch})

    def _build_peers(
        self, store: Store, registry: Registry, disagreed: Callable[[ConfigurationError], None] | None
    ) -> Peers:
        options = self._options
        me = Member(
            options.pod,
            roles=options.roles,
            processors=frozenset(registry.declared),
            only=registry.only,
            shards=options.shard_subset,
            concurrency=options.concurrency,
            format=store.identity.newest,
            settings={**options.settings, **{f"{LIMITS}{p.prefix}": str(p.limits) for p in registry.processors}},
        )
        membership = Membership(store, forget_after_ms=options.forget_after_ms)
        return Peers(membership, me, self._state, beat_ms=options.beat_ms, disagreed=disagreed)

    def _ledger_services(self, timers: Timers) -> Services:
        """What this pod does for the ledger, if there is one."""
        if (database := self._options.ledger) is None:
            return {}
        from timers.engine.comparing import Comparing  # noqa: PLC0415 (the packages that it needs are an extra)
        from timers.engine.following import Following  # noqa: PLC0415
        from timers.engine.inbox import Inbox  # noqa: PLC0415

        client = timers.without_ledger() if isinstance(timers, TimerClient) else client_over(self._pod.store)
        self.following = Following(self._pod, self.peers, database)
        self._inbox = Inbox(self._pod, database, client)
        self._claimer.catch_up = self._inbox.catch_up
        comparing = Comparing(self._pod, self.peers, database, self.following.is_told)
        return {"ledger": self.following.run, **comparing.services, **self._inbox.services}

    def _build_bare(self) -> BareWatch:
        peers, pod = self.peers, self._pod
        every_ms = pod.options.adopt_every_ms
        return BareWatch(
            BareKeys(pod.store),
            leads=lambda: peers.rank(0, adopting=every_ms is not None) == 0,
            declared=lambda prefix: peers.owner(prefix) is not None,
            every_ms=every_ms,
            mark=self.intake.mark,
            count=partial(pod.observer.count, "bare_keys"),
            divide=self._canaries.soon.set,
        )

    async def start(self) -> None:
        """Start. The first sign of life comes before the first claim, so that other pods leave room for this one.
        Raises ConfigurationError if a processor cannot open what it needs."""
        await self._lifespans.open()
        if self.following is not None:
            await self.following.recall()
        await self.peers.start()
        await self._hooks.start()
        self._leasing.start()
        self._ending.start()
        self._taking.start()
        self._started = True
        _log.info("worker started", pod=self._options.pod, processors=list(self._pod.registry.declared))

    async def drain(self) -> None:
        """Stop claiming at once, let runs finish and their ends be written within the drain timeout, and hand the rest
        back. If Redis does not answer, each step waits at most `hand_back_seconds` longer."""
        self._draining, hand_back_seconds = True, self._options.hand_back_seconds
        time_out = asyncio.get_running_loop().call_later(self._options.drain_timeout_ms / 1000, self.shorten_drain)
        await self._taking.stop()
        signing_off = asyncio.create_task(self.peers.stop())
        await self._until_overdue(self._claimer.finish(), and_seconds=hand_back_seconds)
        await self._until_overdue(self.runner.finished())
        await self.runner.hand_back()
        written = asyncio.gather(self._runs.emptied(), signing_off)
        await self._until_overdue(written, and_seconds=hand_back_seconds)
        if self._runs.waiting:
            _log.error("ends not written; other pods will take these runs over", waiting=self._runs.waiting)
        await self._ending.stop()
        await self._until_overdue(self._claimer.resumed(), and_seconds=hand_back_seconds)
        await self._leasing.stop()
        await self._until_overdue(self._lifespans.close(), and_seconds=hand_back_seconds)
        if self._options.spans is not None:
            await self._until_overdue(asyncio.to_thread(self._options.spans.close), and_seconds=hand_back_seconds)
        self.runner.close()
        time_out.cancel()
        if self._started:
            _log.info("worker drained", pod=self._options.pod)

    def shorten_drain(self) -> None:
        self._overdue.set()

    async def _until_overdue(self, awaited: Awaitable[object], *, and_seconds: float = 0) -> None:
        """Wait until it is done, or until the drain timeout is over and then `and_seconds` longer; then cancel it."""
        waiting = asyncio.ensure_future(awaited)
        overdue = asyncio.create_task(self._overdue.wait())
        try:
            await asyncio.wait({waiting, overdue}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({waiting}, timeout=and_seconds)
        finally:
            await cancelled([waiting, overdue])

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The services of this pod, in groups that are stopped in this order."""
        return self._taking, self.peers.beating, self._ending, self._leasing

    def health(self) -> PodHealth:
        states = {name: state for each in self.supervisors for name, state in each.states.items()}
        fine = (*_FINE, "restarting: Redis") if self._pod.away.leaves_some else _FINE
        problems = [f"{name}: {state}" for name, state in states.items() if not state.startswith(fine)]
        if refusal := self._pod.away.refusal:
            problems.append(refusal)
        if unheard := self._canaries.unheard:
            problems.append(f"no subscription to {', '.join(unheard)}'s notifications")
        if self._canaries.delivery == "deaf":
            problems.append(f"notifications do not arrive, so only the sweep finds timers; {self._listener.flags}")
        if self.runner.abandoned >= self._options.concurrency:
            problems.append(
                f"no room: {self.runner.abandoned} functions keep running after their runs timed out or were lost"
            )
        if self._draining:
            problems.append("draining")
        waiting, wait_seconds = self.intake.waiting()
        ledger = None
        if (following := self.following) is not None and self._inbox is not None:
            ledger = LedgerHealth(following.waiting, following.lag_seconds, self._inbox.refused, following.share)
        return PodHealth(
            ready=not problems,
            # Canaries judge only now and then. A pod that drains listens no more, and misses nothing.
            notifications="deaf" if unheard and not self._draining else self._canaries.delivery,
            lag_seconds=self._canaries.lag_seconds,
            services=states,
            running=self.runner.executing,
            abandoned=self.runner.abandoned,
            problems=tuple(problems),
            queues_waiting=waiting,
            claim_wait_seconds=wait_seconds,
            newer=len(self._pod.store.refusals.newer),
            ledger=ledger,
            away=self._pod.away.warnings,
        )

    def _ends_written(self, runs: Sequence[Run]) -> None:
        """There is room again, on this pod and in queues with a concurrency limit, whatever their shard. A claim of a
        queue that runs one timer at a time finds the right shard by itself."""
        self.runner.room_changed()
        limits = {run.timer.prefix: run.processor.limits for run in runs}
        for prefix, limit in limits.items():
            if self._draining and limit.concurrency:
                self._claimer.resume(prefix)  # this pod takes nothing more, and nobody else knows of the room
            elif limit.bounds_concurrency:
                self._turns.rotate(-1)
                for shard in self._pod.shards[:1] if limit.in_order else self._turns:
                    self.intake.mark_all(shard, prefix, "room")

    def _resumed(self, prefix: str) -> None:
        """This pod no longer holds off with a prefix: what waits may start, and need not wait until it would have
        ended."""
        for shard in self._pod.shards:
            self.intake.mark_all(shard, prefix, "room")
        self._claimer.resume(prefix)

    def _state(self) -> Mapping[str, Any]:
        return {
            "running": self.runner.executing,
            "notifications": self._canaries.delivery,
            "lateness": self._pod.observer.recent_starts(),
        }
