"""Every error the package raises on purpose, as one tree. The text of each says what the caller can do next."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

One = TypeVar("One")
Other = TypeVar("Other")


class ProblemType(NamedTuple):
    """A type of problem in the HTTP API (RFC 9457): its status, the stable end of its `type`, its `title`, when it
    occurs, and an example of its `detail`."""

    status: int
    slug: str
    title: str
    when: str = ""
    detail: str = ""


class TimersError(Exception):
    """Base of all errors of this package. `problem` is what the HTTP API answers; a class that does not say it has
    that of its base. The first paragraph of its docstring says when it occurs, and its name gives the slug. `says` is
    what a text says of the timer after its name; with `{status}` and `{version}` for those of the timer."""

    problem: ClassVar[ProblemType] = ProblemType(
        500,
        "internal",
        "The service failed",
        "A fault of the service; its log has the reason.",
        "This pod's log has the reason; trying again may help.",
    )
    says: ClassVar[str] = ""

    def __init_subclass__(
        cls, status: int = 0, slug: str = "", title: str = "", detail: str = "", says: str = ""
    ) -> None:
        cls.says = says
        if title:
            detail = detail or f"timer send-message:user-42 {says.format(status='scheduled', version=4)}"
            slug = slug or re.sub(r"\B([A-Z])", r"-\1", cls.__name__).lower()
            when = cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
            cls.problem = ProblemType(status or cls.problem.status, slug, title, when, detail)


NOTHING: Final = "nothing"
"""How a value is shown that was not given, or was null."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One bad field: its dotted path (empty for the whole input), what was given (shortened), and what would be
    accepted."""

    field: str
    value: str
    accepted: str

    def __str__(self) -> str:
        named = f"{self.field}: " if self.field else ""
        said = "nothing was given" if self.value == NOTHING else f"{self.value} is not accepted"
        return f"{named}{said}; expected {self.accepted}"


_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """The value as it may appear in an error, whether it came as JSON, from Python or from a command line: its repr,
    shortened so that a huge input cannot flood a log."""
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else str(value).lower()
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints, or endless nesting
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class InvalidInput(
    TimersError,
    ValueError,
    status=422,
    title="Some values are not accepted",
    detail="delay: 'soon' is not accepted; expected a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m",
):
    """Fields, parameters or headers are invalid; `errors` names each.

    There is at least one."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(str(error) for error in self.errors))

    def __reduce__(self) -> tuple[type[Self], tuple[Sequence[FieldError]], dict[str, Any]]:
        """To be sent to another process, or copied. An exception would be made again from its text."""
        return type(self), (self.errors,), vars(self)

    @classmethod
    def of(cls, field: str, value: object, accepted: str) -> "InvalidInput":
        """The common case: one bad field."""
        return cls((FieldError(field, shown(value), accepted),))

    def under(self, field: str) -> "InvalidInput":
        """The same errors with their paths below `field`, for a value nested in a larger one."""
        return InvalidInput(
            [FieldError(f"{field}.{e.field}" if e.field else field, e.value, e.accepted) for e in self.errors]
        )


def both(one: Callable[[], One], other: Callable[[], Other]) -> tuple[One, Other]:
    """What two checks give. Raises InvalidInput with everything that is wrong, not only what the first finds."""
    try:
        first = one()
    except InvalidInput as error:
        try:
            other()
        except InvalidInput as more:
            raise InvalidInput([*error.errors, *more.errors]) from None
        raise
    return first, other()


class Refused(
    TimersError,
    status=409,
    title="The state does not allow it",
    detail="this is not possible now",
):
    """The state of the timer or the prefix does not allow it, for another reason."""


class NotFound(
    Refused,
    status=404,
    slug="timer-not-found",
    title="The timer does not exist",
    says="does not exist",
):
    """No timer has that prefix and id."""


class AlreadyExists(
    Refused,
    title="The timer exists already",
    says="exists and is {status}; use if_exists 'replace' to arm it again, or 'keep' to get it",
):
    """The timer exists already, and the create has `if_exists: error`."""


class Running(
    Refused,
    title="The timer is running",
    says="is running; wait until it has ended, or let its processor return Rearm",
):
    """The timer is running, so it cannot be changed."""


class NotScheduled(
    Refused,
    title="The timer's status does not allow it",
    detail="timer send-message:user-42 is completed; a create with if_exists 'replace' arms it again",
):
    """The timer's status does not allow it."""


class EditLocked(
    Refused,
    title="The timer is too close to due",
    says="is due so soon that it can no longer be changed (TIMERS_EDIT_LOCK)",
):
    """The timer is due within `TIMERS_EDIT_LOCK`, so it can no longer be changed."""


class VersionMismatch(
    Refused,
    status=412,
    title="The timer has changed in the meantime",
    says="has version {version}, not the expected one; read it again",
):
    """The timer has changed since the version in `If-Match`."""


class NoProcessor(
    Refused,
    status=422,
    title="No processor serves the prefix",
    detail="prefix: 'nobody' is not accepted; expected a prefix that a processor serves (send-message)",
):
    """No processor was ever declared for the prefix."""


class Denied(
    TimersError, status=403, title="The caller may not do this", detail="a page of another site may change nothing here"
):
    """The call came from a page of another site, under an unsafe host name, or with an insufficient signature."""


class Unauthorized(
    Denied,
    status=401,
    title="The caller is not known",
    detail="a key is needed: Authorization: Bearer KEY, or a request signed with the Standard Webhooks headers",
):
    """No key, a wrong or revoked key, or an invalid signature."""


class Forbidden(Denied, title="The key lacks the right", detail="this call needs the right 'write'"):
    """The key lacks the right that the call needs."""


class RateLimited(Denied, status=429, title="Too many calls", detail="the key may make 100/s"):
    """More calls than the key's rate allows.

    The next is allowed in `retry_after_ms`."""

    def __init__(self, text: str, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(text)

    def __reduce__(self) -> tuple[type[Self], tuple[str, int], dict[str, Any]]:
        """As InvalidInput's."""
        return type(self), (str(self), self.retry_after_ms), vars(self)


class TooManyPending(
    Denied,
    status=429,
    title="Too many timers are waiting",
    detail="the prefixes of the key may have 100000 timers waiting",
):
    """More waiting timers, or prefixes with timers, than the key's quota allows."""


class Unavailable(
    TimersError,
    status=503,
    title="Redis is not available",
    detail="Redis is not available: Connection closed by server; the call may have taken effect: repeat it with PUT, "
    "or with an id and if_exists 'keep'",
):
    """Redis is down, slow or refuses writes. Unless `detail` says that nothing was done, the call may have taken
    effect: repeat it with PUT, or as a create with an id and `if_exists: keep`.

    Each timer of the call was done fully or not at all. `nothing_done` is set if it is known that nothing was done. The
    identity of the db may also be what cannot be read, because another program wrote to it."""

    nothing_done = False

    def __init__(self, text: str, *, nothing_done: bool | None = None) -> None:
        if nothing_done is not None:
            self.nothing_done = nothing_done
        super().__init__(text)


class Full(Unavailable):
    """Redis has reached `maxmemory`: it takes no new timers. Everything else continues."""


class RedisRights(
    Unavailable,
    title="The service's Redis user lacks a right",
    detail="the Redis user 'timers' may not SET log:{0}:x: its ACL needs +set and ~log*",
):
    """The Redis user of the service may not touch the timer's keys, so nothing was done. An operator must change its
    ACL; calls about timers of other prefixes work.

    `command` is what was refused, with its key, if that is known."""

    nothing_done = True

    def __init__(self, text: str, command: str | None = None) -> None:
        self.command = command
        super().__init__(text)


class NewerFormat(
    Unavailable,
    title="A later version has written this",
    detail="timer send-message:user-42 is kept in record format 2, and this process reads formats up to 1; ask a pod "
    "of the version that wrote it, or upgrade this one",
):
    """The timer or the db has a record format that only a later version reads, so nothing was done. Pods of that
    version answer; this one must be upgraded."""

    nothing_done = True


class Moving(
    Unavailable,
    title="The service is being moved, or has moved",
    detail="the service is being moved to redis://redis-2:6379/5; repeat the call in a while",
):
    """The timers are being moved to another place, or have moved there, so nothing was done."""

    nothing_done = True

    @classmethod
    def of(cls, phase: str, place: str) -> "Moving":
        """What a db in this phase of a move says; `place` is where the other db is."""
        if phase == "moved":
            return cls(f"the service has moved to {place}; connect there")
        way = "here from" if phase == "arriving" else "to"
        return cls(f"the service is being moved {way} {place}; repeat the call in a while")


class LedgerUnavailable(
    TimersError,
    status=503,
    slug="ledger-unavailable",
    title="The ledger is not available",
    detail="the ledger is not available: connection refused",
):
    """The database of the ledger (`TIMERS_LEDGER_URL`) is down or slow. Unless `detail` says that nothing was done, a
    create is not armed yet, but may be written and be armed later, and any other call may have taken effect."""


class Busy(
    TimersError,
    status=503,
    title="The pod is busy",
    detail="this pod has 256 listeners, its maximum; try again later, or another pod",
):
    """This pod is at its limit for calls of this kind; nothing was done."""


class RunOver(TimersError):
    """The run that makes this call has ended, by its timeout or otherwise, and may no longer arm or cancel timers."""


class ConfigurationError(TimersError):
    """Something the operator set is unusable. The text names the setting and says what would work."""

    problem = Unavailable.problem

    @classmethod
    def of(cls, setting: str, value: object, accepted: str) -> "ConfigurationError":
        """One bad setting, which is not confidential."""
        return cls(str(FieldError(setting, shown(value), accepted)))


class TooNew(ConfigurationError):
    """The db has a record format that only a later version reads."""

    problem = NewerFormat.problem
