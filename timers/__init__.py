"""A durable timer service for Redis: the public names. `timers.errors` has the tree of errors.

Modules that talk to Redis are imported on first use: a module of processors, or `timers --version`, does not need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from timers.core.keywords import Action, IfExists, StatusName
from timers.core.model import HistoryEntry, Lease, Status, Timer
from timers.core.outcome import Done, Fail, Rearm, Retry
from timers.core.policies import Repeat, RetryPolicy
from timers.core.spec import NewTimer, TimerChange
from timers.errors import (
    AlreadyExists,
    Busy,
    ConfigurationError,
    Denied,
    EditLocked,
    FieldError,
    Forbidden,
    Full,
    InvalidInput,
    NewerFormat,
    NoProcessor,
    NotFound,
    NotScheduled,
    RateLimited,
    Refused,
    Running,
    RunOver,
    TimersError,
    TooManyPending,
    Unauthorized,
    Unavailable,
    VersionMismatch,
)
from timers.processor import BlockingContext, Context, Processor, processor

if TYPE_CHECKING:
    from timers.client import Armed, BlockingTimerClient, TimerClient
    from timers.client.actions import Counts
    from timers.client.feed import Dropped, Gap, Open
    from timers.client.fleet import PrefixView, Stats
    from timers.store.filters import Filter
    from timers.store.listing import Page
    from timers.store.membership import Member
    from timers.store.notifications import Change

__all__ = [
    "Action",
    "AlreadyExists",
    "Armed",
    "BlockingContext",
    "BlockingTimerClient",
    "Busy",
    "Change",
    "ConfigurationError",
    "Context",
    "Counts",
    "Denied",
    "Done",
    "Dropped",
    "EditLocked",
    "Fail",
    "FieldError",
    "Filter",
    "Forbidden",
    "Full",
    "Gap",
    "HistoryEntry",
    "IfExists",
    "InvalidInput",
    "Lease",
    "Member",
    "NewTimer",
    "NewerFormat",
    "NoProcessor",
    "NotFound",
    "NotScheduled",
    "Open",
    "Page",
    "PrefixView",
    "Processor",
    "RateLimited",
    "Rearm",
    "Refused",
    "Repeat",
    "Retry",
    "RetryPolicy",
    "RunOver",
    "Running",
    "Stats",
    "Status",
    "StatusName",
    "Timer",
    "TimerChange",
    "TimerClient",
    "TimersError",
    "TooManyPending",
    "Unauthorized",
    "Unavailable",
    "VersionMismatch",
    "processor",
]

_LATER: Final = {
    "Armed": "client",
    "BlockingTimerClient": "client",
    "Change": "store.notifications",
    "Counts": "client.actions",
    "Dropped": "client.feed",
    "Filter": "store.filters",
    "Gap": "client.feed",
    "Member": "store.membership",
    "Open": "client.feed",
    "Page": "store.listing",
    "PrefixView": "client.fleet",
    "Stats": "client.fleet",
    "TimerClient": "client",
}

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"timers.{_LATER[name]}"), name)
        globals()[name] = found
        return found
