"""Owns the types of problems: the one table from error class to HTTP status, with what the OpenAPI document says."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from timers.errors import (
    AlreadyExists,
    Busy,
    ConfigurationError,
    Denied,
    EditLocked,
    Forbidden,
    InvalidInput,
    NewerFormat,
    NoProcessor,
    NotFound,
    NotScheduled,
    RateLimited,
    RedisRights,
    Refused,
    Running,
    TimersError,
    TooManyPending,
    TooNew,
    Unauthorized,
    Unavailable,
    VersionMismatch,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of problem: its HTTP status, the stable end of its `type`, its `title`, when it occurs, and an example of
    its `detail`."""

    status: int
    slug: str
    title: str
    when: str = ""
    detail: str = ""


_INTERNAL: Final = Kind(
    500,
    "internal",
    "The service failed",
    "a fault of the service; its log has the reason",
    "This pod's log has the reason; trying again may help.",
)

_UNAVAILABLE: Final = Kind(
    503,
    "redis-unavailable",
    "Redis is not available",
    "Redis is down, slow or refuses writes. Unless `detail` says that nothing was done, the call may have "
    "taken effect: repeat it with PUT, or as a create with an id and `if_exists: keep`",
    "Redis is not available: Connection closed by server; the call may have taken effect: repeat it with "
    "PUT, or with an id and if_exists 'keep'",
)
"""Also for a db whose identity cannot be read: somebody wrote to it, or it belongs to another service."""

_NEWER_FORMAT: Final = Kind(
    503,
    "newer-format",
    "A later version has written this",
    "the timer or the db has a record format that only a later version reads, so nothing was done. Pods of "
    "that version answer; this one must be upgraded",
    "timer send-message:user-42 is kept in record format 2, and this process reads formats up to 1; ask a pod "
    "of the version that wrote it, or upgrade this one",
)

KINDS: Final[Mapping[type[TimersError], Kind]] = MappingProxyType(
    {
        InvalidInput: Kind(
            422,
            "invalid-input",
            "Some values are not accepted",
            "fields, parameters or headers are invalid; `errors` names each",
            "delay: 'soon' is not accepted; expected a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m",
        ),
        NoProcessor: Kind(
            422,
            "no-processor",
            "No processor serves the prefix",
            "no processor was ever declared for the prefix",
            "prefix: 'nobody' is not accepted; expected a prefix that a processor serves (send-message)",
        ),
        NotFound: Kind(
            404,
            "timer-not-found",
            "The timer does not exist",
            "no timer has that prefix and id",
            "timer send-message:user-42 does not exist",
        ),
        AlreadyExists: Kind(
            409,
            "already-exists",
            "The timer exists already",
            "the timer exists already, and the create has `if_exists: error`",
            "timer send-message:user-42 exists and is scheduled; use if_exists 'replace' to arm it again, or "
            "'keep' to get it",
        ),
        Running: Kind(
            409,
            "running",
            "The timer is running",
            "the timer is running, so it cannot be changed",
            "timer send-message:user-42 is running; wait until it has ended, or let its processor return Rearm",
        ),
        NotScheduled: Kind(
            409,
            "not-scheduled",
            "The timer's status does not allow it",
            "the timer's status does not allow it",
            "timer send-message:user-42 is completed; a create with if_exists 'replace' arms it again",
        ),
        EditLocked: Kind(
            409,
            "edit-locked",
            "The timer is too close to due",
            "the timer is due within `TIMERS_EDIT_LOCK`, so it can no longer be changed",
            "timer send-message:user-42 is due so soon that it can no longer be changed (TIMERS_EDIT_LOCK)",
        ),
        VersionMismatch: Kind(
            412,
            "version-mismatch",
            "The timer has changed in the meantime",
            "the timer has changed since the version in `If-Match`",
            "timer send-message:user-42 has version 4, not the expected one; read it again",
        ),
        Refused: Kind(
            409,
            "refused",
            "The state does not allow it",
            "the state of the timer or the prefix does not allow it, for another reason",
            "this is not possible now",
        ),
        Unauthorized: Kind(
            401,
            "unauthorized",
            "The caller is not known",
            "no key, a wrong or revoked key, or an invalid signature",
            "a key is needed: Authorization: Bearer KEY, or a request signed with the Standard Webhooks headers",
        ),
        Forbidden: Kind(
            403,
            "forbidden",
            "The key lacks the right",
            "the key lacks the right that the call needs",
            "this call needs the right 'write'",
        ),
        RateLimited: Kind(
            429,
            "rate-limited",
            "Too many calls",
            "more calls than the key's rate allows",
            "the key may make 100/s",
        ),
        TooManyPending: Kind(
            429,
            "too-many-pending",
            "Too many timers are waiting",
            "more waiting timers, or prefixes with timers, than the key's quota allows",
            "the prefixes of the key may have 100000 timers waiting",
        ),
        Denied: Kind(
            403,
            "denied",
            "The caller may not do this",
            "the caller may not do this, for another reason",
            "this is not allowed",
        ),
        Unavailable: _UNAVAILABLE,
        ConfigurationError: _UNAVAILABLE,
        RedisRights: Kind(
            503,
            "redis-rights",
            "The service's Redis user lacks a right",
            "the Redis user of the service may not touch the timer's keys, so nothing was done. An operator must "
            "change its ACL; calls about timers of other prefixes work",
            "the Redis user 'timers' may not SET log:{0}:x: its ACL needs +set and ~log*",
        ),
        NewerFormat: _NEWER_FORMAT,
        TooNew: _NEWER_FORMAT,
        Busy: Kind(
            503,
            "busy",
            "The pod is busy",
            "this pod is at its limit for calls of this kind; nothing was done",
            "this pod has 256 listeners, its maximum; try again later, or another pod",
        ),
        TimersError: _INTERNAL,
    }
)
"""Types by error class. An error of any other class has the type of its nearest base class."""

HTTP_KINDS: Final[Mapping[int, Kind]] = MappingProxyType(
    {
        kind.status: kind
        for kind in (
            Kind(
                400,
                "malformed-request",
                "The request cannot be read",
                "not HTTP, not JSON, or a write with a condition that it does not honour",
                "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
            ),
            Kind(
                404,
                "no-such-address",
                "There is no such path",
                "the API has no such path",
                "GET /v1/timer",
            ),
            Kind(
                405,
                "method-not-allowed",
                "The path does not take this method",
                "the path takes other methods; `Allow` names them",
                "PUT /v1/timers",
            ),
            Kind(
                408,
                "request-timeout",
                "The request took too long to arrive",
                "the request took too long to arrive",
                "the body did not arrive within 20 seconds",
            ),
            Kind(
                413,
                "too-large",
                "The request is too large",
                "the body is larger than the call accepts",
                "the body is too large; at most 262144 bytes are accepted",
            ),
            Kind(
                415,
                "unsupported-media-type",
                "The body's type is not accepted",
                "the call does not accept the body's type, charset or encoding",
                "Content-Type is 'text/plain'; send application/json",
            ),
            Kind(
                417,
                "expectation-failed",
                "The Expect header cannot be met",
                "an `Expect` header other than `100-continue`",
                "POST /v1/timers",
            ),
            _INTERNAL,
            Kind(
                503,
                "not-ready",
                "The pod is not ready",
                "`/readyz`: the pod cannot do its work now",
                "draining",
            ),
        )
    }
)
"""The types for what HTTP itself refuses, whether aiohttp noticed it or a reader of this package."""

KINDS_BY_SLUG: Final[Mapping[str, Kind]] = MappingProxyType(
    {kind.slug: kind for kind in (*KINDS.values(), *HTTP_KINDS.values())}
)


def kind_of(error: TimersError) -> Kind:
    """The type of an error's problem."""
    return next(KINDS[base] for base in type(error).__mro__ if base in KINDS)
