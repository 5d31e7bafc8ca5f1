"""The caller's side: what the HTTP API, the command line and other programs do to timers, straight on Redis."""

from timers.client.answers import Armed
from timers.client.client import BATCH_LIMIT, LIST_LIMIT, TimerClient, open_store

__all__ = ["BATCH_LIMIT", "LIST_LIMIT", "Armed", "TimerClient", "open_store"]
