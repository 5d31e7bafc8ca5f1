"""Owns what has been used up: CPU time of pods and server, and what the server was asked to do."""

import time
from dataclasses import dataclass
from typing import Self

from redis.asyncio import Redis

from tests.bench.pods import Pods


@dataclass(frozen=True, slots=True)
class Usage:
    """Between two instants. `requests` are what clients sent, one for each read of a connection; `commands` are also
    those that scripts call; `scripts` are the script calls."""

    seconds: float
    pods_s: float
    server_s: float
    scripts: int
    commands: int
    requests: int

    @classmethod
    async def so_far(cls, redis: Redis, pods: Pods | None = None) -> Self:
        """Since pods and server were started. Its own question is one request, and no command."""
        pods_s = 0.0 if pods is None else await pods.cpu_s()
        told = await redis.info("cpu", "commandstats", "stats")
        calls = {name: int(at["calls"]) for name, at in told.items() if name.startswith("cmdstat_")}
        return cls(
            seconds=time.perf_counter(),
            pods_s=pods_s,
            server_s=float(told["used_cpu_user"]) + float(told["used_cpu_sys"]),
            scripts=calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0),
            commands=sum(calls.values()) - calls.get("cmdstat_info", 0),
            requests=int(told["total_reads_processed"]),
        )

    def since(self, before: "Usage") -> "Usage":
        """What was used from then on, without the question that this was the answer to."""
        return Usage(
            self.seconds - before.seconds,
            self.pods_s - before.pods_s,
            self.server_s - before.server_s,
            self.scripts - before.scripts,
            self.commands - before.commands,
            self.requests - before.requests - 1,
        )
