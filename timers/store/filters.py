"""Owns which timers are wanted: the conditions of a list or an action, checked, and whether a timer meets them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from timers.core.durations import parse_time
from timers.core.fields import TimeInput, check_prefix
from timers.core.model import Status, Timer
from timers.core.spec import TAG_LIMIT_CHARACTERS
from timers.errors import Checks, InvalidInput


@dataclass(frozen=True, slots=True)
class Filter:
    """Which timers. None means any; `due_after_ms` is inclusive, `due_before_ms` exclusive. `visible` leaves out whole
    prefixes that the asker is not to see."""

    prefix: str | None = None
    status: Status | None = None
    tag: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    visible: Callable[[str], bool] | None = None

    @classmethod
    def parse(
        cls,
        *,
        prefix: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        due_after: TimeInput | datetime | None = None,
        due_before: TimeInput | datetime | None = None,
        visible: Callable[[str], bool] | None = None,
    ) -> Self:
        """From what a caller gives. Raises InvalidInput."""
        checks = Checks()
        wanted = cls(
            None if prefix is None else checks.of(check_prefix, prefix),
            None if status is None else checks.of(_checked_status, status),
            None if tag is None else checks.of(_checked_tag, tag),
            None if due_after is None else checks.of(lambda given: parse_time(given, "due_after"), due_after),
            None if due_before is None else checks.of(lambda given: parse_time(given, "due_before"), due_before),
            visible,
        )
        checks.end()
        return wanted

    @property
    def is_empty(self) -> bool:
        """Whether every timer that the asker may see passes."""
        return replace(self, visible=None) == Filter()

    def sees(self, prefix: str) -> bool:
        """Whether timers of a prefix may pass."""
        return self.visible is None or self.visible(prefix)

    def wants(self, timer: Timer) -> bool:
        """Whether a timer passes."""
        return (
            (self.prefix is None or timer.prefix == self.prefix)
            and self.sees(timer.prefix)
            and (self.status is None or timer.status is self.status)
            and (self.tag is None or self.tag in timer.tags)
            and (self.due_after_ms is None or timer.due_ms >= self.due_after_ms)
            and (self.due_before_ms is None or timer.due_ms < self.due_before_ms)
        )


def _checked_status(value: object) -> Status:
    if isinstance(value, str) and value in list(Status):
        return Status(value)
    raise InvalidInput.of("status", value, "one of " + ", ".join(status.value for status in Status))


def _checked_tag(value: object) -> str:
    if isinstance(value, str) and 1 <= len(value) <= TAG_LIMIT_CHARACTERS and value.isprintable():
        return value
    raise InvalidInput.of("tag", value, f"1 to {TAG_LIMIT_CHARACTERS} printable characters")
