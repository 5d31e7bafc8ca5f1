"""Owns a world: pods, callers and a server in one process, from a seed to a verdict."""

import asyncio
import gc
import json
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from random import Random
from typing import Any, Final
from unittest.mock import patch

import structlog

from tests.conservation import disorder, state_of
from tests.simulation import faults
from tests.simulation.faults import Fault, Faults
from tests.simulation.ledger import Ledger, SimulatedDatabase
from tests.simulation.lives import Call, Key
from tests.simulation.loop import START_SECONDS, Actor, VirtualLoop, WorldStands, acting, of_actor, run, unwind
from tests.simulation.lua import Lua
from tests.simulation.network import Network, Wires
from tests.simulation.oracle import Finding, Oracle
from tests.simulation.server import CYCLE_SECONDS, Server
from tests.simulation.workload import (
    APPLICATION,
    CALLERS,
    OTHER,
    OWN,
    OWNERS,
    PLAIN,
    SINGLE,
    Act,
    Plan,
    plan_of,
    processors,
)
from timers import Done, Fail, Rearm, Retry
from timers.client import TimerClient, client_over
from timers.core.clock import ServerClock
from timers.core.model import Timer
from timers.engine.pod import WorkerOptions, taken_lease_ms
from timers.engine.supervisor import Supervisor
from timers.engine.worker import Worker
from timers.errors import LedgerUnavailable, TimersError, Unavailable
from timers.ledger import requests
from timers.processor import Registry, Result
from timers.store.store import Store

TROUBLE_SECONDS: Final = 2.0
"""After that nothing goes wrong any more."""

END_SECONDS: Final = 25.0
"""What has not ended by then is lost. It is less than a sweep sleeps, so that nothing may wait for that."""

COPY_SECONDS: Final = 15.0
"""By then the ledger has everything, also what pods copied that have died."""

PATIENCE_SECONDS: Final = 2.0
"""How long a pod waits for an answer."""

BEHIND_SECONDS: Final = 1.5
"""By how much the clocks of pods and callers are behind that of the server."""

LOOK_SECONDS: Final = 0.1
QUIET_LOOKS: Final = 3
"""How often in a row it must have been quiet: what is started twice starts soon after the first time."""

AGAIN: Final = 4
"""How often a caller asks again who was not answered."""


@dataclass(frozen=True, slots=True)
class World:
    """How a world ended: what was wrong, what had gone wrong, and all that happened, as (second, who, what, …).
    `moments` are the numbers of those that could go wrong, by actor and call."""

    seed: int
    plan: Plan
    findings: list[Finding]
    faults: list[Fault]
    trace: list[tuple[Any, ...]]
    moments: Mapping[tuple[str, str], int]

    @property
    def digest(self) -> str:
        """The same for the same trace."""
        return sha1(repr(self.trace).encode(), usedforsecurity=False).hexdigest()


class _Pod(Actor):
    """A pod; `kind` says what it serves."""

    def __init__(self, name: str, oracle: Oracle) -> None:
        super().__init__(name)
        self.kind, self.oracle = name[0], oracle
        self.is_dead = False
        self.worker: Worker | None = None


@cache
def _lua() -> Lua:
    return Lua()


class _Stage:
    """A world while it lasts."""

    def __init__(self, seed: int, plan: Plan, chosen: Iterable[Fault] | None, texts: Mapping[str, str]) -> None:
        self.plan, self.trace = plan, list[tuple[Any, ...]]()
        self.loop = VirtualLoop()
        self.loop.until = START_SECONDS + 2 * END_SECONDS
        self.rng = Random(f"world {seed}")
        self.server = Server(_lua(), self.loop.time, texts)
        self.faults = Faults(f"faults {seed}", plan.share, chosen)
        self.network = Network(self.loop, self.server, self.faults, Random(f"network {seed}"))
        self.network.executed, self.network.says = self._executed, self._wrong
        self.network.die, self.network.freeze = self._die, self._freeze
        self.world, self.application = Actor("world"), Actor(APPLICATION)
        self.ledger = Ledger(self.network) if plan.ledger else None
        self.applications = None if self.ledger is None else SimulatedDatabase(self.ledger, self.application)
        self.oracle = Oracle(self.server.keys, taken_lease_ms(plan.lease_ms), now=self.loop.time, note=self._note)
        self.oracle.has_ledger = plan.ledger
        if (ledger := self.ledger) is not None:
            self.oracle.ledger_away_until = lambda: ledger.away_until
        self.oracle.limits = {each.prefix: each.limits for each in processors(OWNERS[0], _process)}
        self.oracle.may_run = lambda pod, prefix: prefix != OWN or pod[0] in OWNERS
        self.pods: list[_Pod] = []
        self.callers = [Actor(name) for name in CALLERS]
        self._made = self._asking = 0

    # What happens.

    def _note(self, *what: Any) -> None:
        self.trace.append((self.loop.time(), *what))

    def _executed(self, actor: Actor, name: str, command: tuple[bytes, ...], reply: object) -> None:
        self._note(actor.name, name, command[2:], reply)
        self.oracle.executed(actor, name, command, reply)

    def _wrong(self, fault: Fault) -> None:
        self._note("fault", str(fault))
        self.oracle.is_calm = False
        if fault.costs_leases:
            waits = max(self.server.stalled_until - self.loop.time(), 0.0)  # it happens when the server goes on
            where = "server" if fault.kind in (faults.STALL, faults.AWAY, faults.REFUSES) else fault.actor
            self.oracle.trouble(where, waits + fault.seconds)

    def _die(self, actor: Actor) -> None:
        if not isinstance(actor, _Pod) or actor.is_dead:
            return
        actor.stopped = actor.is_dead = True
        self._hang_up(actor)
        self._note(actor.name, "dies")
        self.oracle.trouble(actor.name, END_SECONDS)
        again = self.loop.time() + self.rng.uniform(0.1, 1.0)
        self.network.at(again, self._start_pod, actor.kind)

    def _hang_up(self, pod: _Pod) -> None:
        self.network.hang_up(pod)
        if self.ledger is not None:
            self.ledger.hang_up(pod)

    def _freeze(self, actor: Actor, seconds: float) -> None:
        if isinstance(actor, _Pod) and not actor.stopped:
            actor.stopped = True
            self.network.at(self.loop.time() + seconds, self._thaw, actor)

    def _thaw(self, actor: _Pod) -> None:
        if not actor.is_dead:
            self._note(actor.name, "goes on")
            self.loop.resume(actor)

    def _expire(self) -> None:
        self.server.look_for_expired()
        self.network.at(self.loop.time() + CYCLE_SECONDS * self.rng.uniform(0.5, 2), self._expire)

    # Pods.

    def _start_pod(self, kind: str) -> None:
        self._made += 1
        pod = _Pod(f"{kind}{self._made}", self.oracle)
        self.pods.append(pod)
        self._note(pod.name, "starts")
        self.loop.create_task(self._run_pod(pod), context=of_actor(pod))

    async def _run_pod(self, pod: _Pod) -> None:
        while pod.worker is None:
            try:
                store = await self._joined(Wires.of(self.network, pod, PATIENCE_SECONDS))
                options = WorkerOptions(
                    pod.name,
                    concurrency=10,
                    lease_ms=self.plan.lease_ms,
                    retention_ms=3_600_000,
                    drain_timeout_ms=500,
                    adopt_every_ms=300 if self.plan.adopts else None,
                    ledger=None if self.ledger is None else SimulatedDatabase(self.ledger, pod),
                )
                registry = Registry(processors(pod.kind, _process))
                worker = Worker(store, registry, self._client(store, pod), options)
                await worker.start()
                pod.worker = worker
            except TimersError:
                await asyncio.sleep(0.2)

    async def _joined(self, wires: Wires) -> Store:
        store = Store(wires, shards=self.plan.shards, clock=ServerClock(self.loop.time))
        await store.identity.refresh()
        await store.identity.join()
        return store

    def _client(self, store: Store, actor: Actor) -> TimerClient:
        client = client_over(store)
        if self.ledger is not None:
            client._database, client._durability = SimulatedDatabase(self.ledger, actor), "ledger"
            client._use(store)
        return client

    # The acts.

    async def play(self) -> None:
        """Everything, from the first pod to the verdict."""
        for kind in self.plan.pods:
            self._start_pod(kind)
        self._expire()
        # Declarations outlive pods: that somebody has a processor of OWN is known from the beginning.
        self.server.keys.run(b"HSET", b"timers:{pods}:declared", OWN.encode(), b"0 b0")
        if self.ledger is not None:
            for prefix in (PLAIN, SINGLE, OWN):
                self.ledger.know("declared", prefix, "0 b0")
        shards = Store(Wires.of(self.network, self.world), shards=self.plan.shards)
        for identity in self.plan.timers:
            if identity[0]:
                self.oracle.watch(identity, shards.shard_of(*identity))
        clients = {
            caller.name: self._client(Store(Wires.of(self.network, caller), clock=ServerClock(self.loop.time)), caller)
            for caller in self.callers
        }
        while not all(pod.worker or pod.is_dead for pod in self.pods):  # noqa: ASYNC110 (time costs nothing here)
            await asyncio.sleep(0.02)
        began = self.loop.time()
        self._began_ms = self.server.keys.now_ms
        for act in self.plan.acts:
            await asyncio.sleep(began + act.at - self.loop.time())
            self._do(act, clients)
        quiet = 0
        while quiet < QUIET_LOOKS and self.loop.time() < began + END_SECONDS:
            self.faults.over = self.loop.time() > began + TROUBLE_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            is_up = self.loop.time() > self.server.works_from
            is_done = not self._asking and self.oracle.is_quiet and not (self.ledger and self.ledger.waiting())
            quiet = quiet + 1 if is_up and is_done else 0
        self.faults.over = True
        if self.ledger is not None:
            await self._copied(self.ledger)
        self.oracle.finish()
        await self._look_for_leftovers()

    async def _copied(self, ledger: Ledger) -> None:
        """The ledger gets what the server has."""
        until, wrong = self.loop.time() + COPY_SECONDS, list[Finding]()
        while self.loop.time() < until:
            wrong = self.oracle.unlike(ledger.rows(), ledger.waiting())
            if not wrong:
                break
            await asyncio.sleep(LOOK_SECONDS)
        self.oracle.findings += wrong

    async def _look_for_leftovers(self) -> None:
        store = await self._joined(Wires.of(self.network, self.world))
        for shard in range(self.plan.shards):
            for said in disorder(await state_of(store, shard)):
                self.oracle.findings.append(Finding("indexes agree", "", said))

    def _do(self, act: Act, clients: Mapping[str, TimerClient]) -> None:
        self._note(act.actor, str(act))
        if act.actor == OTHER:
            self._do_bare(act)
        elif act.verb == "drain":
            self._drain(act.timer[1])
        elif act.verb == "outage":
            self.oracle.trouble("server", act.given["seconds"])
            self.server.restart(act.given["seconds"])
        elif act.verb == "wipe" and self.ledger is not None:
            self.oracle.trouble("server", END_SECONDS)
            self.oracle.lose(self.ledger.rows())
            self.server.keys.wipe()
        elif act.actor == APPLICATION and self.applications is not None:
            self._asking += 1
            written = self.loop.create_task(self._write(self.applications, act), context=of_actor(self.application))
            written.add_done_callback(self._asked)
        else:
            (actor,) = (caller for caller in self.callers if caller.name == act.actor)
            self._asking += 1
            asked = self.loop.create_task(self._ask(clients[act.actor], act), context=of_actor(actor))
            asked.add_done_callback(self._asked)

    def _asked(self, _task: object) -> None:
        self._asking -= 1

    def _do_bare(self, act: Act) -> None:
        life = self.oracle.lives[act.timer]
        key, keys = ":".join(act.timer).encode(), life.keys
        is_there = self.server.keys.peek(key) is not None
        if keys and (is_there or self.server.keys.now_ms <= keys[-1].deadline_ms):
            keys[-1].is_replaced = True
        if act.verb == "delete":
            self.server.keys.run(b"DEL", key)
        else:
            px, value = act.given["px"], {"takes": 0, "ends": ["done"], "by": "attempt", "key": len(keys)}
            self.server.keys.run(b"SET", key, json.dumps(value).encode(), b"PX", b"%d" % px)
            is_late = life.state is not None and life.state.cause == "bare-due"
            keys.append(Key(self.server.keys.now_ms + px, is_late))

    def _drain(self, kind: str) -> None:
        for pod in [pod for pod in self.pods if pod.kind == kind and not pod.is_dead and pod.worker][:1]:
            self.oracle.trouble(pod.name, 2.0)
            self.loop.create_task(self._drained(pod), context=of_actor(pod))

    async def _drained(self, pod: _Pod) -> None:
        assert pod.worker is not None
        await pod.worker.drain()
        pod.stopped = pod.is_dead = True
        self._hang_up(pod)
        self._note(pod.name, "has drained")
        self._start_pod(pod.kind)

    async def _write(self, database: SimulatedDatabase, act: Act) -> None:
        """A row for the inbox, in a transaction of the application's own."""
        given = dict(act.given)
        if "due" in given:
            given["due_at"] = self._began_ms + round(given.pop("due") * 1000)
            self.oracle.rows[act.timer] += 1
        try:
            async with database.transaction() as transaction:
                await getattr(requests, act.verb)(transaction, *act.timer, **given)
        except LedgerUnavailable:
            return
        self._note(act.actor, "hears", act.verb, ":".join(act.timer), "committed")
        if act.verb == "arm" and "if_exists" not in given:
            self.oracle.written(act.timer, given["due_at"])

    async def _ask(self, client: TimerClient, act: Act) -> None:
        """One call. A caller who is not answered asks again, and then takes what is there."""
        given = dict(act.given)
        if "due" in given:
            given["due_at"] = self._began_ms + round(given.pop("due") * 1000)
        for _ in range(AGAIN):
            call = Call(act.actor, act.verb, act.timer, given, self.loop.time())
            self.oracle.calls.append(call)
            self.oracle.rows[act.timer] += given.get("if_exists") == "replace"  # it may become a row of the inbox
            try:
                call.heard = await getattr(client, act.verb)(*act.timer, **given)
            except Exception as error:  # noqa: BLE001 (the oracle judges it)
                call.heard = error
            self.oracle.heard(call)
            self._note(act.actor, "hears", act.verb, ":".join(act.timer), _said(call.heard))
            if not isinstance(call.heard, Unavailable | LedgerUnavailable):
                return
            await asyncio.sleep(0.2)
            if act.verb == "create" and "if_exists" not in given:
                given["if_exists"] = "keep"


def _said(heard: object) -> str:
    if isinstance(heard, Timer):
        return f"{heard.status} version {heard.version}, due {heard.due_ms}"
    return f"{type(heard).__name__}: {heard}"


async def _process(timer: Timer, _context: Any) -> Result:
    """The processor of every prefix; the payload says what it does."""
    pod = acting()
    assert isinstance(pod, _Pod)
    oracle = pod.oracle
    run = oracle.started(pod, timer)
    payload: Any = timer.payload or {"takes": 0, "ends": ["done"], "by": "attempt"}
    try:
        if payload["takes"]:
            await asyncio.sleep(payload["takes"])
    except BaseException:
        if not pod.stopped:
            oracle.ended(run, "stopped")
        raise
    turn = timer.occurrence if payload["by"] == "occurrence" else timer.attempt
    how = payload["ends"][min(turn, len(payload["ends"])) - 1]
    oracle.ended(run, how)
    if how == "fail":
        raise ValueError("on purpose")
    if how == "give up":
        raise Fail("on purpose")
    if how == "snooze":
        raise Retry("on purpose", after="0.1s", snooze=True)
    return Rearm(after="0.15s") if how == "rearm" else Done(result=timer.token)


@contextmanager
def simulated() -> Iterator[None]:
    """In here, worlds can be played: clocks, chance and threads are theirs."""
    with ExitStack() as patches:
        patches.enter_context(patch("timers.engine.worker.ThreadSupervisor", Supervisor))
        patches.enter_context(patch("timers.engine.supervisor.ThreadSupervisor", Supervisor))
        before = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        patches.callback(lambda: structlog.configure(**before))
        gc.freeze()  # so that what a world leaves behind is collected soon after it, and nothing else is looked at
        gc.disable()
        patches.callback(gc.enable)
        yield


@contextmanager
def _of_stage(stage: _Stage, seed: int) -> Iterator[None]:
    chance = Random(f"chance {seed}")
    with ExitStack() as patches:
        for name in ("monotonic", "perf_counter"):
            patches.enter_context(patch.object(time, name, stage.loop.time))
        patches.enter_context(patch.object(time, "time", lambda: stage.server.now_us() / 1e6 - BEHIND_SECONDS))
        patches.enter_context(
            patch.object(secrets, "token_hex", lambda number=16: f"{chance.getrandbits(8 * number):0{2 * number}x}")
        )
        patches.enter_context(patch("timers.engine.runner.Random", lambda: Random(chance.getrandbits(64))))
        yield


def play(
    seed: int,
    *,
    plan: Plan | None = None,
    chosen: Iterable[Fault] | None = None,
    texts: Mapping[str, str] | None = None,
    ledger: bool = False,
) -> World:
    """Play the world of a seed inside `simulated()`, or the one that has a ledger; with `plan` or `chosen` another plan
    or only these faults. `texts` replaces scripts."""
    plan = plan or plan_of(seed, ledger=ledger)
    stage = _Stage(seed, plan, chosen, texts or {})
    with _of_stage(stage, seed):
        try:
            run(stage.loop, stage.play)
        except WorldStands:
            stage.oracle.findings.append(Finding("the world goes on", "", "nothing happens any more"))
        # What follows is no part of the world.
        findings, stage.oracle.findings = stage.oracle.findings, []
        trace, stage.trace = stage.trace, []
        unwind(stage.loop, [*stage.pods, *stage.callers, stage.application])
        if stage.ledger is not None:
            stage.ledger.close()
    world = World(seed, plan, findings, stage.faults.happened, trace, stage.faults.moments)
    del stage
    gc.collect(0)
    return world


def each_alone(seed: int, call: str, texts: Mapping[str, str] | None = None) -> Iterator[World]:
    """The world of a seed, time and again, with one fault and no other: each call of this name fails in turn. Whoever
    fails alone is not helped by others who clear up after their own faults."""
    quiet = play(seed, chosen=(), texts=texts)
    for (actor, called), moments in quiet.moments.items():
        for number in range(1, moments + 1) if called == call else ():
            for kind, seconds in ((faults.LOST_REQUEST, 0.0), (faults.REFUSES, 0.3)):
                yield play(seed, chosen=[Fault(actor, call, number, kind, seconds)], texts=texts)


def each_cut(seed: int, texts: Mapping[str, str] | None = None) -> Iterator[World]:
    """The world of a seed, time and again, with one fault and no other: at each message in turn all pods lose their
    subscriptions, and again with the next eight, so that nobody hears them."""
    heard = {
        actor: n for (actor, call), n in play(seed, chosen=(), texts=texts).moments.items() if call == faults.EVENT
    }
    for first in range(1, max(heard.values(), default=0) + 1):
        cut = [Fault(actor, faults.EVENT, n, faults.EVENT_CUT) for actor in heard for n in range(first, first + 9)]
        yield play(seed, chosen=cut, texts=texts)
