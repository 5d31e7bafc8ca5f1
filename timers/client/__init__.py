"""The caller's side: what the HTTP API, the command line and other programs do with timers, directly on Redis."""

from timers.client.blocking import BlockingTimerClient
from timers.client.client import BATCH_LIMIT, TimerClient, aside, client_of, client_over, feed_of, held_ms
from timers.client.opening import open_redis, open_store
from timers.client.planning import Results
from timers.core.calls import Armed

__all__ = [
    "BATCH_LIMIT",
    "Armed",
    "BlockingTimerClient",
    "Results",
    "TimerClient",
    "aside",
    "client_of",
    "client_over",
    "feed_of",
    "held_ms",
    "open_redis",
    "open_store",
]
