"""The kinds of trouble that a run can have, by their names in the table: each is a series of faults at given times."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos import faults, server_faults
from tests.chaos.primaries import HOWS, Primaries, Sharded, Watched
from tests.chaos.stage import NOTHING, Needs, Stage

Make = Callable[[Stage, random.Random], Awaitable[None]]
"""Makes one fault, and returns when it is over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble: its fault, what the stage needs for it, and its size in the long run."""

    make: Make
    timers: int = 20_000
    spread_s: float = 20.0
    times: int = 10
    even: bool = False
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
    """Kill a pod, but never the last that works: the lateness would then only show how long a pod takes to start."""
    victim = rng.choice(await on.pods.one_to_spare())
    await faults.kill(on.witness, victim)
    await on.pods.replace(victim)


async def _unhear(on: Stage, rng: random.Random) -> None:
    """Kill a pod while the receiver of hooks is dead as well."""
    assert on.receiver is not None
    await on.receiver.die()
    await _kill(on, rng)
    await on.receiver.live()


async def _black_out(on: Stage, _: random.Random) -> None:
    """Kill all pods at once."""
    victims = list(on.pods.live)
    await asyncio.gather(*(faults.kill(on.witness, victim) for victim in victims))
    for victim in victims:
        await on.pods.replace(victim)
    await on.pods.ready()


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
    await server_faults.freeze(on.witness, on.redis, seconds=rng.uniform(0.2, 1.5))
    await on.pods.healed()


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
    makes = (_kill, _pause, _roll, _restart, _freeze, _cut, _hang_up, _forget, _lose)
    await rng.choice(makes)(on, rng)


async def _flush(on: Stage, rng: random.Random) -> None:
    """FLUSHALL; then a pod dies, as likely as not the one that restores."""
    await on.pods.ready()
    await server_faults.empty(on.witness, on.redis)
    await _kill_soon(on, rng)


async def _start_empty(on: Stage, rng: random.Random) -> None:
    await on.pods.ready()
    await server_faults.go_back(on.witness, on.alone, None, down_s=rng.uniform(0.1, 1.0))
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
        await server_faults.go_back(on.witness, on.alone, folder, down_s=rng.uniform(0.1, 1.0))
        await _kill_soon(on, rng)


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
    "hooks": Trouble(_unhear, timers=3_000, times=6, needs=Needs(hooks=True)),
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
