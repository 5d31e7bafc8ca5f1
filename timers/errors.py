"""Every error the package raises on purpose, as one tree. The text of each leaf says what the caller can do next.

::

    TimersError
    ├── InvalidInput (ValueError)   the caller's data is wrong; `errors` names each bad field
    ├── Refused                     the data is fine, the state of the timer is not
    │   ├── NotFound
    │   ├── AlreadyExists
    │   ├── Running                 a run is in progress, so the timer cannot be changed
    │   ├── NotScheduled            the wanted change needs another status
    │   ├── EditLocked              too close to due
    │   ├── VersionMismatch         somebody else changed it first
    │   └── NoProcessor             no processor was ever declared for the prefix
    ├── Denied                      the caller may not do this, or not now
    │   ├── Unauthorized            no key, a wrong one, or a signature that does not hold
    │   ├── Forbidden               the key lacks the right
    │   ├── RateLimited             more calls than the key's rate allows
    │   └── TooManyPending          more timers waiting, or in more prefixes, than the key's quota allows
    ├── Unavailable                 Redis cannot be reached or refuses writes; try again later
    │   ├── Full                    Redis has no memory left for new timers
    │   ├── RedisRights             the Redis user may not do this; names what its ACL lacks
    │   └── NewerFormat             a later version has written this in a format that this one does not read
    ├── Busy                        this pod is doing as many of these as it may; try again soon, or another pod
    ├── RunOver                     a plain function outlived its run and uses `context.timers`
    └── ConfigurationError          a setting, a plugin or the server is unusable; names it
        └── TooNew                  the db has a record format that only a later version reads
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

Value = TypeVar("Value")
Checked = TypeVar("Checked")


class TimersError(Exception):
    """Base of all errors of this package."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One bad field: its dotted path (empty for the whole input), what was given (shortened), and what would be
    accepted."""

    field: str
    value: str
    accepted: str

    def __str__(self) -> str:
        named = f"{self.field}: " if self.field else ""
        return f"{named}{self.value} is not accepted; expected {self.accepted}"


_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """The value as it may appear in an error: its repr, shortened so that a huge input cannot flood a log."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints, or endless nesting
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class InvalidInput(TimersError, ValueError):
    """The caller's data is wrong. `errors` has at least one entry."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(str(error) for error in self.errors))

    @classmethod
    def of(cls, field: str, value: object, accepted: str) -> "InvalidInput":
        """The common case: one bad field."""
        return cls((FieldError(field, shown(value), accepted),))

    def under(self, field: str) -> "InvalidInput":
        """The same errors with their paths below `field`, for a value nested in a larger one."""
        return InvalidInput(
            [FieldError(f"{field}.{e.field}" if e.field else field, e.value, e.accepted) for e in self.errors]
        )


class Checks:
    """Checks several values and reports all that are wrong, not only the first."""

    def __init__(self) -> None:
        self._errors: list[FieldError] = []

    def of(self, check: Callable[[Value], Checked], value: Value) -> Checked:
        """What the check makes of the value. If the check raises InvalidInput, the result is unusable, and `end` will
        raise."""
        try:
            return check(value)
        except InvalidInput as error:
            self._errors += error.errors
            return cast("Checked", None)

    def end(self) -> None:
        """Raises InvalidInput if any of the values was wrong."""
        if self._errors:
            raise InvalidInput(self._errors)


class Refused(TimersError):
    """The request is well formed but the timer's state does not allow it."""


class NotFound(Refused):
    """No timer with that prefix and id."""


class AlreadyExists(Refused):
    """The identity is taken and the caller asked for an error in that case."""


class Running(Refused):
    """A run holds the timer's lease."""


class NotScheduled(Refused):
    """The change is possible only in another status."""


class EditLocked(Refused):
    """The timer is due so soon that it can no longer be changed (`TIMERS_EDIT_LOCK`)."""


class VersionMismatch(Refused):
    """The caller's expected version is not the current one."""


class NoProcessor(Refused):
    """No processor serves the prefix, and none was ever declared for it."""


class Denied(TimersError):
    """The caller may not do this, or not now."""


class Unauthorized(Denied):
    """The caller is not known."""


class Forbidden(Denied):
    """The caller is known but lacks the right."""


class RateLimited(Denied):
    """Too many calls; the next is allowed in `retry_after_ms`."""

    def __init__(self, text: str, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(text)


class TooManyPending(Denied):
    """The key's quota is used up: either too many timers wait, until some have ended, or too many prefixes have
    timers."""


class Unavailable(TimersError):
    """Redis is down, overloaded or refuses writes. The request may or may not have been carried out, for each timer
    fully or not at all. A create may be repeated with an id and `if_exists: keep`. `nothing_done` is set if it is known
    that nothing was done."""

    def __init__(self, text: str, *, nothing_done: bool = False) -> None:
        self.nothing_done = nothing_done
        super().__init__(text)


class Full(Unavailable):
    """Redis has reached `maxmemory`: it takes no new timers. Everything else continues."""


class RedisRights(Unavailable):
    """The Redis user of this process lacks a right; an operator must change its ACL. `command` is what was refused,
    with its key, if that is known."""

    def __init__(self, text: str, command: str | None = None) -> None:
        self.command = command
        super().__init__(text, nothing_done=True)


class NewerFormat(Unavailable):
    """The timer, or the whole db, has a record format that only a later version reads. Nothing was done; upgrade this
    process, or ask a pod of that version."""

    def __init__(self, text: str) -> None:
        super().__init__(text, nothing_done=True)


class Busy(TimersError):
    """This pod is doing as many of these as it may. Nothing was done; try again soon, or ask another pod."""


class RunOver(TimersError):
    """The run that makes this call has ended, by its timeout or otherwise, and may no longer arm or cancel timers."""


class ConfigurationError(TimersError):
    """Something the operator set is unusable. The text names the setting and says what would work."""


class TooNew(ConfigurationError):
    """The db has a record format that only a later version reads."""
