"""A durable timer service for Redis: the public names. `timers.errors` has the tree of errors.

Each name is imported when it is first used: a module of processors needs nothing that talks to Redis, and the help of
the command needs nothing at all.
"""

# ruff: noqa: F403, F405 (a star brings the names that `__all__` has)

import sys
from importlib import import_module  # noqa: TID251 (the names are ours)
from types import ModuleType
from typing import TYPE_CHECKING, Final

import timers.errors  # noqa: F401 (so that `timers.errors` can be used without importing it)

if TYPE_CHECKING:
    from timers.client import BlockingTimerClient, Results, TimerClient
    from timers.client.actions import BulkAction, Counts
    from timers.client.feed import Dropped, Event, Gap, Open
    from timers.client.fleet import Fleet, PrefixView, Stats
    from timers.core.answers import TimerAnswer
    from timers.core.calls import *
    from timers.core.model import HistoryEntry, Lease, Status, Timer
    from timers.core.outcome import Done, Fail, Rearm, Retry
    from timers.core.policies import Repeat, RetryPolicy
    from timers.core.shapes import Action, IfExists, StatusName
    from timers.core.spec import NewTimer, TimerChange
    from timers.errors import *
    from timers.processor import BlockingContext, Context, Processor, processor
    from timers.store.callers import Quota
    from timers.store.filters import Filter
    from timers.store.identity import Loss
    from timers.store.listing import Page, PageRequest
    from timers.store.membership import Member
    from timers.store.notifications import Change

__all__ = [
    "Action",
    "AlreadyExists",
    "Armed",
    "BlockingContext",
    "BlockingTimerClient",
    "BulkAction",
    "Busy",
    "Change",
    "ChangeFields",
    "ConfigurationError",
    "Context",
    "Counts",
    "Delay",
    "Denied",
    "Done",
    "Dropped",
    "EditLocked",
    "Event",
    "Fail",
    "FieldError",
    "Filter",
    "FilterFields",
    "Fleet",
    "Forbidden",
    "Full",
    "Gap",
    "HistoryEntry",
    "IfExists",
    "InvalidInput",
    "Lease",
    "LedgerUnavailable",
    "Loss",
    "Member",
    "Moving",
    "NewTimer",
    "NewTimerFields",
    "NewerFormat",
    "NoProcessor",
    "NotFound",
    "NotScheduled",
    "Open",
    "Page",
    "PageRequest",
    "PrefixView",
    "Processor",
    "Quota",
    "RateLimited",
    "Rearm",
    "RedisRights",
    "Refused",
    "Repeat",
    "RepeatFields",
    "Results",
    "Retry",
    "RetryFields",
    "RetryPolicy",
    "RunOver",
    "Running",
    "Stats",
    "Status",
    "StatusName",
    "Time",
    "Timer",
    "TimerAnswer",
    "TimerChange",
    "TimerClient",
    "TimersError",
    "TooManyPending",
    "TooNew",
    "Unauthorized",
    "Unavailable",
    "VersionMismatch",
    "processor",
]

_HOMES: Final = (
    *("errors", "core.shapes", "core.calls", "core.outcome", "core.model", "core.policies", "core.answers"),
    *("core.spec", "processor", "client", "client.actions", "client.feed", "client.fleet"),
    *("store.callers", "store.filters", "store.identity", "store.listing", "store.membership", "store.notifications"),
)
"""Where the names are, those that need least first; the first that has a name is where a type checker finds it, too."""


class _Package(ModuleType):
    """Keeps `timers.processor` the decorator, although Python sets a package's attribute to each module it imports."""

    def __setattr__(self, name: str, value: object) -> None:
        is_module = name == "processor" and isinstance(value, ModuleType)
        super().__setattr__(name, vars(value)[name] if is_module else value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        if name in __all__:
            homes = (import_module(f"timers.{home}") for home in _HOMES)
            return globals().setdefault(name, next(vars(home)[name] for home in homes if name in vars(home)))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
