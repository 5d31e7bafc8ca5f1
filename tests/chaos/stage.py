"""All that a run needs: a server of its own, pods, a client that reports to the witness, the verdict at the end."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from redis.asyncio import Redis

from tests import postgres
from tests.chaos import effects, endings, starvation
from tests.chaos.calls import Calls
from tests.chaos.checker import check
from tests.chaos.findings import Report
from tests.chaos.hooks import LOOPBACK, Receiver, existing, told
from tests.chaos.over_http import HttpClient
from tests.chaos.pods import Pods, until
from tests.chaos.primaries import Primaries, Sharded, Watched
from tests.chaos.processors import CAP, CAPPED, MAX_ATTEMPTS, PREFIX
from tests.chaos.proxy import Proxy
from tests.chaos.server import Server
from tests.chaos.timeline import EVERY_POD
from tests.chaos.versions import unpacked
from tests.chaos.witness import Event, Kind, Witness, read_history
from tests.waiting import DEADLINE_SECONDS, patient
from timers import TimerClient
from timers.client import open_store
from timers.embedded import Family
from timers.engine.pod import taken_lease_ms
from timers.ledger.database import Database
from timers.store.callers import Quota
from timers.store.following import behind
from timers.store.servers import connect

_QUOTA: Final = Quota(CAP, (CAPPED,), most_prefixes=1)
_CAPPED_CALLERS: Final = 3

_START_TIMEOUT_S: Final = DEADLINE_SECONDS

Ledger = Literal["", "sqlite", "postgresql"]
"""The database of a run's ledger; empty: there is none."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a stage needs besides a server and pods: further server arguments, a drain timeout, a proxy between pods,
    client and server, or one for each pod alone, an API on each pod, a receiver of hooks, a number of shards, a
    ledger, a database for effects that happen once, pods of an earlier version to begin with, and what the server is:
    one, one with replicas behind Sentinels, or a cluster."""

    server_options: tuple[str, ...] = ()
    drain_timeout_ms: int = 25_000
    proxy: bool = False
    gated: bool = False
    http: bool = False
    hooks: bool = False
    shards: int = 1
    ledger: Ledger = ""
    server: type[Server | Watched | Sharded] = Server
    once: Ledger = ""
    past: bool = False


NOTHING: Final = Needs()


@dataclass(frozen=True, slots=True)
class Stage:
    """What a run works with. `redis` connects directly to the server. `by_http` are calls to the pods' API, if they
    have one; `capped` those of callers that share a quota. `lines` is the folder with the witness files and the logs of
    the pods."""

    server: Server | Primaries
    redis: Redis
    proxy: Proxy | None
    client: TimerClient
    witness: Witness
    calls: Calls
    by_http: Calls
    capped: Sequence[Calls]
    pods: Pods
    lines: Path
    lease_ms: int
    ledger: Database | None
    effects: Database | None
    receiver: Receiver | None

    @property
    def alone(self) -> Server:
        """The server, which has no replicas."""
        assert isinstance(self.server, Server)
        return self.server

    async def lag_ms(self) -> int:
        """By how much the ledger is behind: how old the oldest change is that it does not have."""
        connections = connect(patient(self.server.url))
        try:
            return (await behind(await open_store(connections)))[1]
        finally:
            await connections.close()

    async def started(self, *, attempt: int) -> Event:
        """Waits until the witness has the start of an attempt of the only timer."""
        found: list[Event] = []

        async def happened() -> bool:
            lines = read_history(self.lines)
            found[:] = [line for line in lines if line.kind is Kind.START and line.attempt == attempt]
            return bool(found)

        await until(happened, timeout_s=_START_TIMEOUT_S, what=f"the start of attempt {attempt}")
        return found[0]

    async def judge(self, ids: Sequence[str], *, drain_s: float) -> Report:
        """Waits for all pods and then for the end of all timers, and returns the verdict on the history.

        What has not ended within `drain_s` counts as lost. Raises PodDied if a pod ended by itself.
        """
        await self.pods.ready()
        await endings.drained(self.redis, timeout_s=drain_s)
        if self.receiver is not None:
            await told(self.redis, timeout_s=drain_s)
        history = read_history(self.lines)
        report = check(
            history,
            lease_ms=self.lease_ms,
            end_states=await endings.end_states(self.server.url, ids),
            counts=await endings.final_counts(self.redis),
            max_attempts=MAX_ATTEMPTS,
            complaints=self.pods.complaints(),
        )
        further = await effects.findings(self.effects, history) if self.effects else []
        if self.receiver is not None:
            further.extend(self.receiver.untold(await existing(self.client, ids)))
        return replace(report, findings=[*report.findings, *further])


@asynccontextmanager
async def stage(
    directory: Path, *, family: Family, pods: int, lease_ms: int, needs: Needs = NOTHING
) -> AsyncIterator[Stage]:
    """A server in `directory` and a number of working pods. All of it ends with the block."""
    settings = {
        "TIMERS_LEASE": f"{lease_ms}ms",
        "TIMERS_DRAIN_TIMEOUT": f"{needs.drain_timeout_ms}ms",
        "TIMERS_ADOPT_EVERY": "1s",
        "TIMERS_SHARDS": str(needs.shards),
        "TIMERS_ROLES": "api,worker" if needs.http else "worker",
    }
    lines = directory / "history"
    lines.mkdir()
    async with AsyncExitStack() as ends:
        witness = Witness(lines, "driver")
        ends.callback(witness.close)
        started = await needs.server.start(family, directory, needs.server_options)
        server: Server | Primaries = await ends.enter_async_context(started)
        direct = connect(patient(server.url))
        ends.push_async_callback(direct.close)
        redis = direct.commands
        proxy = await ends.enter_async_context(Proxy(server.url)) if needs.proxy else None
        url = proxy.url if proxy else server.url
        ledger = made = None
        if needs.ledger:
            ledger = await ends.enter_async_context(_database(directory / "ledger.db", needs.ledger))
            await ledger.upgrade()
            settings["TIMERS_LEDGER_URL"] = ledger.engine.url.render_as_string(hide_password=False)
        if needs.once:
            made = await ends.enter_async_context(_database(directory / "effects.db", needs.once))
            await effects.prepare(made)
            settings[effects.URL_VARIABLE] = made.engine.url.render_as_string(hide_password=False)
            settings["TIMERS_PROCESSORS"] = "tests.chaos.processors,tests.chaos.effects"
        receiver = await ends.enter_async_context(Receiver()) if needs.hooks else None
        if receiver is not None:
            settings |= {"TIMERS_HOOKS": f"all@{PREFIX}*={receiver.url}", "TIMERS_WEBHOOK_ALLOW": f"{LOOPBACK}/32"}
        client = await ends.enter_async_context(TimerClient(url, ledger=settings.get("TIMERS_LEDGER_URL")))
        plain = connect(patient(url))
        ends.push_async_callback(plain.close)
        others = [await ends.enter_async_context(TimerClient(url)) for _ in range(_CAPPED_CALLERS)]
        crew = await ends.enter_async_context(Pods(url, redis, lines, settings, gated=needs.gated))
        if needs.past:
            crew.past = unpacked(directory / "past")
        await crew.start(pods, some_narrow=True)
        calls = Calls(client, plain.commands, witness)
        by_http = calls
        capped = [Calls(other.acting(None, _QUOTA), plain.commands, witness) for other in others]
        if needs.http:
            http = await ends.enter_async_context(HttpClient(lambda: crew.live, random.Random(0)))
            by_http = Calls(http, plain.commands, witness)

        def processes() -> dict[str, int]:
            return {EVERY_POD: server.pid} | {pod.name: pod.pid for pod in crew.live}

        watching = asyncio.create_task(starvation.watch(witness, processes, lease_ms))
        ends.callback(watching.cancel)
        yield Stage(
            server,
            redis,
            proxy,
            client,
            witness,
            calls,
            by_http,
            capped,
            crew,
            lines,
            taken_lease_ms(lease_ms),
            ledger,
            made,
            receiver,
        )


@asynccontextmanager
async def _database(file: Path, dialect: Ledger) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{file}" if dialect == "sqlite" else postgres.new_database())
    yield database
    await database.close()
