"""Bytes per timer for the record layouts that were considered, and in all: `python -m tests.bench.memory [TIMERS]`.

Each layout is written by a script, as the service writes, into an empty server without an append-only file; the figure
is what `used_memory` grew by, divided by the timers.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from redis.asyncio import Redis

from tests.servers import FAMILIES, ServerHandle, start_server
from timers.core.decide import Transition
from timers.core.durations import format_time
from timers.core.model import Progress, Status, Timer
from timers.store.servers import connect
from timers.store.store import Arming, Settlement, Store

TIMERS: Final = 200_000
CHUNK: Final = 1000
PREFIX: Final = "send-message"
PAYLOAD: Final = "x" * 58
"""60 bytes as JSON."""
DUE_MS: Final = 4_102_444_800_000

_EACH: Final = """
for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  local id = string.format('user-%011d', i)
  local member = 'send-message:' .. id
  local record = '2 s' .. struct.pack('>I4I4I4I4I8I8I8', 1, 0, 0, 1, 0, 1795000000000 + i % 1000, {due}) .. '{spec}\\n'
  {write}
end
"""

WRITES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "record: one string key each": "redis.call('SET', 'timers:{0}:rec:' .. member, record)",
        "record: field of 256 hashes (chosen)": (
            "redis.call('HSET', 'timers:{0}:rec:' .. string.sub(redis.sha1hex(member), 1, 2), member, record)"
        ),
        "record: field of 4096 hashes": (
            "redis.call('HSET', 'timers:{0}:rec:' .. string.sub(redis.sha1hex(member), 1, 3), member, record)"
        ),
        "record: hash of fields": (
            "redis.call('HSET', 'timers:{0}:rec:' .. member, 'status', 's', 'version', 1, 'token', 0, 'attempt', 0, "
            "'failures', 0, 'occurrence', 1, 'due', '{due}', 'created', string.format('1795000000%03d', i % 1000), "
            "'entries', 0, 'spec', '{spec}', 'progress', '', 'history', '')"
        ),
        "trigger key": "redis.call('SET', 'send-message:{0}:' .. id, 1, 'PXAT', '{due}')",
        "due entry": "redis.call('ZADD', 'timers:{0}:due:send-message', '{due}', id)",
    }
)
"""Layout → how a script writes timer `i` of it."""

Fill = Callable[[Store, int, int], Awaitable[object]]
"""Writes so many timers, counted from a number on."""


def _written_by(write: str) -> Fill:
    spec = f'{{"payload":"{PAYLOAD}"}}'
    source = _EACH.replace("{write}", write).replace("{due}", str(DUE_MS)).replace("{spec}", spec)

    async def fill(store: Store, start: int, count: int) -> None:
        await store.connections.commands.eval(source, 0, start, count)

    return fill


async def _armed(store: Store, start: int, count: int) -> None:
    due = f"@{DUE_MS}"
    await store.arm([Arming(PREFIX, f"user-{i:011d}", due, {"payload": PAYLOAD}) for i in range(start, start + count)])


def _error(timer: Timer) -> dict[str, Any]:
    """The last error of a failed timer, with a traceback of three frames."""
    frame = '  File "/app/processors/send_message.py", line 42, in send\n    await post(address, body, timeout=30)\n'
    reason = "cannot connect to smtp.example.org:587"
    return {
        "type": "ConnectionRefusedError",
        "reason": reason,
        "detail": f"{3 * frame}ConnectionRefusedError: {reason}",
        "where": "/app/processors/send_message.py:42 in send",
        "at": format_time(timer.due_ms),
        "attempt": timer.attempt,
    }


async def _failed(store: Store, start: int, count: int) -> None:
    """Timers that failed at their third try, as the service keeps them."""
    await store.arm([Arming(PREFIX, f"user-{i:011d}", "+0", {"payload": PAYLOAD}) for i in range(start, start + count)])
    for failures in (1, 2, 3):
        await store.now_ms()
        timers = (await store.claim(0, [(PREFIX, count)], pod="worker-1", lease_ms=60_000, cause="event")).timers
        assert len(timers) == count
        ends = []
        for timer in timers:
            error = _error(timer)
            cause = ("failed" if failures == 3 else "retry", f"{error['type']}: {error['reason']}")
            status = Status.FAILED if failures == 3 else Status.SCHEDULED
            progress = Progress(last_error=error)
            ends.append(
                Settlement(timer, Transition(status, timer.due_ms, timer.attempt, failures, 1, progress, cause))
            )
        await store.settle(0, ends, pod="worker-1", retention_ms=60_000)


async def settled_memory(redis: Redis) -> int:
    """`used_memory` once the server's background work (rehashing) no longer changes it."""
    before, now = -1, int((await redis.info("memory"))["used_memory"])
    while abs(now - before) > 1024:
        await asyncio.sleep(0.3)
        before, now = now, int((await redis.info("memory"))["used_memory"])
    return now


async def _bytes_each(store: Store, timers: int, fill: Fill) -> float:
    redis = store.connections.commands
    await redis.flushall()
    before = await settled_memory(redis)
    for start in range(0, timers, CHUNK):
        await fill(store, start, min(CHUNK, timers - start))
    return (await settled_memory(redis) - before) / timers


async def measure(server: ServerHandle, timers: int) -> dict[str, float]:
    """Bytes per timer by layout, and for timers that the service itself has armed."""
    connections = connect(server.url)
    try:
        store = Store(connections)
        fills = {layout: _written_by(write) for layout, write in WRITES.items()} | {
            "armed by the service": _armed,
            "failed after three tries, kept by the service": _failed,
        }
        return {layout: await _bytes_each(store, timers, fill) for layout, fill in fills.items()}
    finally:
        await connections.close()


async def main(timers: int) -> None:
    """Measure on each family that is there and print one table a server."""
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            async with await start_server(family, Path(folder), "--appendonly", "no") as server:
                print(f"\n{family} {server.version}, {timers} timers, bytes each")
                for layout, size in (await measure(server, timers)).items():
                    print(f"{size:8.0f}  {layout}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMERS))
