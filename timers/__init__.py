"""A durable timer service for Redis: the public names."""

from timers.client import TimerClient
from timers.core.model import Status, Timer
from timers.core.outcome import Done, Fail, Rearm, Retry
from timers.core.policies import RetryPolicy
from timers.core.spec import NewTimer, TimerChange
from timers.errors import InvalidInput, TimersError
from timers.processor import BlockingContext, Context, Processor, processor

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
