"""A durable timer service for Redis: the public names. `timers.errors` has the tree of errors."""

from timers.client import Armed, BlockingTimerClient, TimerClient
from timers.client.actions import Counts
from timers.client.feed import Dropped, Gap, Open
from timers.client.fleet import PrefixView, Stats
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
    NoProcessor,
    NotFound,
    NotPermitted,
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
from timers.store.filters import Filter
from timers.store.listing import Page
from timers.store.membership import Member
from timers.store.queries import Change

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
    "NoProcessor",
    "NotFound",
    "NotPermitted",
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
