"""Owns why a timer changed: the history keeps a code that programs compare, which becomes English when it is shown."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

Cause = tuple[str, str]
"""A code and the details of this change (empty for none)."""

ACTS: Final = frozenset(("replaced", "changed", "rescheduled", "fired", "cancelled", "removed", "retried", "replayed"))
"""What callers do. The details of such a change are the name of the caller's API key."""

ENGLISH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "created": "created",
        "dropped": "{} older entries dropped",
        "replaced": "replaced",
        "changed": "changed",
        "rescheduled": "rescheduled",
        "fired": "fired on request",
        "cancelled": "cancelled",
        "removed": "cancelled and removed",
        "retried": "retried on request",
        "replayed": "replayed",
        "event": "event",
        "late-look": "late look",
        "sweep": "sweep",
        "sweep-start": "sweep at the start of its pod",
        "sweep-gap": "sweep after a lost subscription",
        "sweep-deaf": "sweep without notifications",
        "sweep-busy": "sweep when its pod had room",
        "room": "room",
        "rate": "rate",
        "rescue": "rescue",
        "completed": "{}",
        "skipped": "skipped: {}",
        "re-armed": "re-armed",
        "retry": "will retry after {}",
        "snoozed": "snoozed: {}",
        "handed-back": "handed back: {}",
        "failed": "gave up after {}",
        "unserved": "no live pod serves the prefix",
        "lost-unserved": "its pod died or lost the lease, and no live pod serves the prefix",
        "bare-adopted": "adopted from its bare key",
        "bare-set-again": "its bare key was set again",
        "bare-expired": "its bare key expired",
        "bare-due": "its bare key existed until its due time",
        "bare-deleted": "its bare key was deleted",
        "bare-lost-ttl": "its bare key lost its TTL",
    }
)
"""Each cause in English; `{}` stands for the details of the entry."""


def in_english(cause: str, text: str) -> str:
    """A cause and its details as people read them. An unknown cause is shown as it is."""
    template = ENGLISH.get(cause)
    return f"{cause} {text}".rstrip() if template is None else template.format(text or cause)
