"""The kinds of trouble that a run can have, by their names in the table: each is a series of faults at given times."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos import faults, server_faults
from tests.chaos.primaries import HOWS, Primaries, Sharded, Watched
from tests.chaos.proxy import MOMENTS, Moment
from tests.chaos.stage import NOTHING, Needs, Stage
from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind

Make = Callable[[Stage, random.Random], Awaitable[None]]
"""Makes one fault, and returns when it is over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble: its fault, what the stage needs for it, and its size in the long run. `loses` if data is
    lost for good: a bare key that comes back fires again."""

    make: Make
    timers: int = 20_000
    spread_s: float = 20.0
    times: int = 10
    even: bool = False
    loses: bool = False
    needs: Needs = NOTHING

    async def do(self, on: Stage, moments: Sequence[float], rng: random.Random) -> None:
        """Make one fault at each moment (seconds from now), or as soon as the previous one is over."""
        async for _ in _reached(moments):
            await self.make(on, rng)

    def moments(self, times: int, within_s: float, rng: random.Random) -> list[float]:
        """A number of moments within a span of time, random or evenly spread."""
        if self.even:
            return [within_s * number / times for number in range(times)]
        return sorted(rng.uniform(0, within_s) for _ in range(times))


async def _reached(moments: Sequence[float]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for at_s in moments:
        await asyncio.sleep(begin + at_s - loop.time())
        yield


async def _kill(on: Stage, rng: random.Random) -> None:
    """Kill a pod, but never the last that works, unless there is but one: the lateness would then only show how long a
    pod takes to start."""
    if len(on.pods.live) == 1:
        await _black_out(on, rng)
        return
    victim = rng.choice(await on.pods.one_to_spare())
    await faults.kill(on.witness, victim)
    await on.pods.replace(victim)


_MOSTLY_BEFORE: Final[Sequence[Moment]] = ("before", "before", *MOMENTS)
"""Only then it depends on the outbox whether anybody is told."""


async def _unhear(on: Stage, rng: random.Random) -> None:
    """Kill a pod while the receiver of hooks is dead as well: the one that arms a call, before or after that."""
    assert on.receiver is not None
    await on.receiver.die()
    await _kill_in(on, "arm", rng, _MOSTLY_BEFORE)
    await on.receiver.live()


async def _black_out(on: Stage, _: random.Random) -> None:
    """Kill all pods at once."""
    await on.pods.ready()
    victims = list(on.pods.live)
    nobody = on.witness.fault_on(FaultKind.ABSENT, EVERY_POD)
    await asyncio.gather(*(faults.kill(on.witness, victim) for victim in victims))
    for victim in victims:
        await on.pods.replace(victim)
    await on.pods.ready()
    on.witness.fault_off(nobody, f"{len(victims)} pods were dead")


async def _pause(on: Stage, rng: random.Random) -> None:
    await on.pods.ready()
    async with faults.paused(on.witness, rng.choice(on.pods.live)):
        await asyncio.sleep(rng.uniform(1.1, 1.5) * on.lease_ms / 1000)


async def _roll(on: Stage, _: random.Random) -> None:
    """Replace the oldest pod by a new one, which works before the old one stops."""
    oldest = on.pods.live[0]
    await on.pods.add(narrow=oldest.narrow)
    await on.pods.ready()
    await faults.stop(on.witness, oldest)
    on.pods.live.remove(oldest)


async def _restart(on: Stage, rng: random.Random) -> None:
    await on.pods.ready()
    await server_faults.restart(on.witness, on.alone, down_s=rng.uniform(0.1, 1.5))
    await on.pods.healed()


async def _outlast(on: Stage, rng: random.Random) -> None:
    """Pause a pod for longer than a lease: others may take over each of its runs, although it lives."""
    await on.pods.ready()
    await server_faults.restart(on.witness, on.alone, down_s=rng.uniform(1.1, 1.5) * on.lease_ms / 1000)
    await on.pods.healed()


async def _freeze(on: Stage, rng: random.Random) -> None:
    """The server answers nobody: it refuses to (CLIENT PAUSE), or it stands still (SIGSTOP)."""
    if rng.random() < 1 / 2:
        await server_faults.freeze(on.witness, on.redis, seconds=rng.uniform(0.2, 1.5))
    else:
        await server_faults.hold(on.witness, on.alone, seconds=rng.uniform(0.2, 1.5))
    await on.pods.healed()


async def _slow_down(on: Stage, rng: random.Random) -> None:
    assert on.proxy is not None
    delay_s, seconds = rng.uniform(0.05, 0.4), rng.uniform(1.0, 4.0)
    await server_faults.slow_down(on.witness, on.proxy, on.redis, delay_s=delay_s, seconds=seconds)
    await on.pods.healed()


async def _fill(on: Stage, rng: random.Random) -> None:
    await server_faults.fill(on.witness, on.redis, seconds=rng.uniform(0.5, 3.0))
    await on.pods.healed()


async def _refuse(on: Stage, rng: random.Random) -> None:
    await server_faults.refuse(on.witness, on.redis, seconds=rng.uniform(0.5, 3.0))
    await on.pods.healed()


async def _throttle(on: Stage, rng: random.Random) -> None:
    await on.pods.ready()
    async with faults.throttled(on.witness, rng.choice(on.pods.live)):
        await asyncio.sleep(rng.uniform(0.5, 1.5) * on.lease_ms / 1000)


async def _cut_off(on: Stage, rng: random.Random) -> None:
    """One pod cannot reach the server, for less than a lease or for longer."""
    await on.pods.ready()
    async with faults.cut_off(on.witness, rng.choice(on.pods.live)):
        await asyncio.sleep(rng.uniform(0.3, 2.0) * on.lease_ms / 1000)
    await on.pods.healed()


_STEPS: Final = (
    "claim",
    "settle",
    "extend",
    "touch",
    "rescue",
    "bare/adopt",
    "bare/resolve",
    "beat",
    "arm",
    "cancel",
    "reschedule",
)
"""The scripts at which a pod is killed: those with which it works, and those of its API's callers."""


async def _kill_at_step(on: Stage, rng: random.Random) -> None:
    """Kill a pod just before it calls a script, when the server has run it and the pod does not know, or just after
    that."""
    await _kill_in(on, rng.choice(_STEPS), rng)


async def _kill_in(on: Stage, script: str, rng: random.Random, moments: Sequence[Moment] = MOMENTS) -> None:
    pods = await on.pods.one_to_spare()
    rng.shuffle(pods)
    await on.pods.replace(await faults.kill_at(on.witness, pods, script, rng.choice(moments)))


async def _cut(on: Stage, _: random.Random) -> None:
    await server_faults.cut_subscribers(on.witness, on.redis)


async def _hang_up(on: Stage, _: random.Random) -> None:
    await on.pods.ready()
    await server_faults.hang_up(on.witness, on.redis)


async def _forget(on: Stage, _: random.Random) -> None:
    await server_faults.forget_scripts(on.witness, on.redis)


_LOST: Final = (
    "claim",
    "claim",
    "settle",
    "arm",
    "rescue",
    "extend",
    "touch",
    "beat",
    "cancel",
    "reschedule",
    "rearm",
)


async def _lose(on: Stage, rng: random.Random) -> None:
    assert on.proxy is not None
    await on.pods.ready()
    await server_faults.lose_reply(on.witness, on.proxy, rng.choice(_LOST))


async def _anything(on: Stage, rng: random.Random) -> None:
    of_pods = (_kill, _pause, _roll, _throttle)
    of_the_server = (_restart, _freeze, _cut, _hang_up, _forget, _lose, _slow_down, _fill, _refuse)
    await rng.choice((*of_pods, *of_the_server))(on, rng)


async def _flush(on: Stage, rng: random.Random) -> None:
    """FLUSHALL; then a pod dies, as likely as not the one that restores."""
    await on.pods.ready()
    await server_faults.empty(on.witness, on.redis, FaultKind.LOSS, lag_ms=await on.lag_ms())
    await _kill_soon(on, rng)


async def _wipe(on: Stage, rng: random.Random) -> None:
    """The same without a ledger: what was armed until then is lost, and nothing after it."""
    await on.pods.ready()
    await server_faults.empty(on.witness, on.redis, FaultKind.POWER)
    await _kill_soon(on, rng)


async def _start_empty(on: Stage, rng: random.Random) -> None:
    await on.pods.ready()
    lag_ms = await on.lag_ms()
    await server_faults.go_back(on.witness, on.alone, None, down_s=rng.uniform(0.1, 1.0), lag_ms=lag_ms)
    await _kill_soon(on, rng)


async def _go_back(on: Stage, rng: random.Random) -> None:
    """Another server, with a copy of the data that is a second or more old. Once in three all pods die with it."""
    folder = on.lines.parent / f"copy-{rng.random()}"
    on.alone.keep(folder)
    await asyncio.sleep(rng.uniform(1.0, 3.0))
    await on.pods.ready()
    if rng.random() < 1 / 3:
        victims = list(on.pods.live)
        await asyncio.gather(*(faults.kill(on.witness, victim) for victim in victims))
        await server_faults.go_back(on.witness, on.alone, folder, down_s=0.1)
        for victim in victims:
            await on.pods.replace(victim)
        await on.pods.ready()
    else:
        lag_ms = await on.lag_ms()
        await server_faults.go_back(on.witness, on.alone, folder, down_s=rng.uniform(0.1, 1.0), lag_ms=lag_ms)
        await _kill_soon(on, rng)


async def _lose_power(on: Stage, rng: random.Random) -> None:
    """The server's machine loses its power: what it answered in the last one or two seconds never reached the disk."""
    await on.pods.ready()
    folder = on.lines.parent / f"disk-{rng.random()}"
    lost = on.witness.fault_on(FaultKind.POWER, EVERY_POD)
    on.alone.keep(folder)
    await asyncio.sleep(rng.uniform(1.0, 2.0))
    away = on.witness.fault_on(FaultKind.PARTITION, EVERY_POD)
    before = on.server.pid
    await on.alone.return_with(folder, down_s=rng.uniform(0.1, 1.0))
    for fault in (away, lost):
        on.witness.fault_off(fault, f"pid {before} killed, pid {on.server.pid} in its place with what was on the disk")
    await on.pods.healed()


async def _replace_by_another_version(on: Stage, rng: random.Random) -> None:
    """A pod of the other version takes the place of one, which is killed or told to stop. One of the earlier version is
    always there: without it the others would begin to write what it cannot read."""
    leaving = rng.choice(await on.pods.one_to_spare())
    is_last = leaving.is_past and sum(pod.is_past for pod in on.pods.live) == 1
    await on.pods.add(narrow=leaving.narrow, past=is_last or not leaving.is_past)
    await on.pods.ready()
    await rng.choice((faults.kill, faults.stop))(on.witness, leaving)
    on.pods.live.remove(leaving)


async def _kill_soon(on: Stage, rng: random.Random) -> None:
    await asyncio.sleep(rng.uniform(0, 0.3))
    victim = rng.choice(on.pods.live)
    await faults.kill(on.witness, victim)
    await on.pods.replace(victim)
    await on.pods.ready()


async def _lose_anything(on: Stage, rng: random.Random) -> None:
    await rng.choice((_flush, _start_empty, _go_back))(on, rng)


async def _fail_over(on: Stage, rng: random.Random) -> None:
    assert isinstance(on.server, Primaries)
    await on.pods.ready()
    await on.server.fail(on.witness, rng.choice(HOWS), rng)
    await on.pods.healed()


_SHARDS: Final = 12
"""Four for each primary of a cluster."""


async def _reshard(on: Stage, rng: random.Random) -> None:
    assert isinstance(on.server, Sharded)
    await on.server.reshard(on.witness, _SHARDS, rng)


LEDGER_TROUBLES: Final = ("flushalls", "emptied", "older", "lost")
"""Those that only a ledger survives."""

TROUBLES: Final[Mapping[str, Trouble]] = {
    "kills": Trouble(_kill, timers=100_000, spread_s=90.0, times=60, needs=Needs(http=True)),
    "hooks": Trouble(_unhear, timers=3_000, times=6, needs=Needs(hooks=True, gated=True)),
    "steps": Trouble(_kill_at_step, spread_s=40.0, times=33, needs=Needs(gated=True, http=True)),
    "partitions": Trouble(_cut_off, spread_s=30.0, times=6, needs=Needs(gated=True, http=True)),
    "throttles": Trouble(_throttle, times=4),
    "slow": Trouble(_slow_down, times=6, needs=Needs(proxy=True, http=True)),
    "full": Trouble(_fill, times=6, needs=Needs(http=True)),
    "refusals": Trouble(_refuse, times=6, needs=Needs(http=True)),
    "blackouts": Trouble(_black_out, times=3),
    "cuts": Trouble(_cut, times=200, even=True),
    "pauses": Trouble(_pause, times=3),
    "rolls": Trouble(_roll, times=8, needs=Needs(drain_timeout_ms=100)),
    "restarts": Trouble(_restart, times=6, needs=Needs(server_options=("--appendfsync", "always"))),
    "outages": Trouble(_outlast, times=2, needs=Needs(server_options=("--appendfsync", "always"))),
    "freezes": Trouble(_freeze, times=8),
    "flushes": Trouble(_forget, times=100),
    "hangups": Trouble(_hang_up, times=40),
    "losses": Trouble(_lose, times=100, needs=Needs(proxy=True)),
    "failovers": Trouble(_fail_over, spread_s=60.0, times=5, needs=Needs(server=Watched)),
    "primaries": Trouble(_fail_over, spread_s=60.0, times=5, needs=Needs(server=Sharded, shards=_SHARDS)),
    "reshards": Trouble(_reshard, times=10, needs=Needs(server=Sharded, shards=_SHARDS)),
    "power": Trouble(_lose_power, timers=10_000, times=4, loses=True),
    "wipes": Trouble(_wipe, timers=10_000, times=3, loses=True),
    "versions": Trouble(_replace_by_another_version, timers=10_000, times=8, needs=Needs(http=True, past=True)),
    "flushalls": Trouble(_flush, timers=4_000, times=5),
    "emptied": Trouble(_start_empty, timers=4_000, times=5),
    "older": Trouble(_go_back, timers=4_000, times=4),
    "lost": Trouble(_lose_anything, timers=10_000, spread_s=40.0, times=10, needs=Needs(shards=3)),
    "mixed": Trouble(
        _anything,
        timers=40_000,
        spread_s=60.0,
        times=40,
        needs=Needs(proxy=True, http=True, shards=3, server_options=("--appendfsync", "always"), drain_timeout_ms=100),
    ),
}
