"""A durable timer service for Redis: the public names."""

from timers.client import TimerClient
from timers.errors import InvalidInput, TimersError
from timers.model import Status, Timer
from timers.outcome import Done, Fail, Rearm, Retry
from timers.policies import RetryPolicy
from timers.processor import BlockingContext, Context, Processor, processor
from timers.spec import NewTimer, TimerChange

__all__ = [
    "BlockingContext",
    "Context",
    "Done",
    "Fail",
    "InvalidInput",
    "NewTimer",
    "Processor",
    "Rearm",
    "Retry",
    "RetryPolicy",
    "Status",
    "Timer",
    "TimerChange",
    "TimerClient",
    "TimersError",
    "processor",
]
