"""The caller's side: what the HTTP API, the command line and other programs do with timers, directly on Redis."""

from timers.client.answers import Armed
from timers.client.blocking import BlockingTimerClient
from timers.client.client import BATCH_LIMIT, TimerClient, client_over, open_redis, open_store

__all__ = ["BATCH_LIMIT", "Armed", "BlockingTimerClient", "TimerClient", "client_over", "open_redis", "open_store"]
