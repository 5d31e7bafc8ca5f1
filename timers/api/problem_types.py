"""Owns the descriptions of the types of problems: when each comes, and an example of its `detail`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from timers.api.problems import HTTP_KINDS, KINDS, Kind


@dataclass(frozen=True, slots=True)
class Told:
    """When a problem comes, and an example of its `detail`."""

    when: str
    detail: str


TOLD: Final[Mapping[str, Told]] = MappingProxyType(
    {
        "malformed-request": Told(
            "not HTTP, not JSON, or a write with a condition that it does not honour",
            "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
        "no-such-address": Told("nothing is at this address", "GET /v1/timer"),
        "timer-not-found": Told("no timer has that prefix and id", "timer send-message:user-42 does not exist"),
        "method-not-allowed": Told("the address takes other methods; `Allow` names them", "PUT /v1/timers"),
        "request-timeout": Told("the request took too long to arrive", "the body did not arrive within 20 seconds"),
        "already-exists": Told(
            "a create with `if_exists: error` found the timer there",
            "timer send-message:user-42 exists and is scheduled; "
            "use if_exists 'replace' to arm it anew, or 'keep' to get it",
        ),
        "running": Told(
            "the timer is running, so it cannot be changed",
            "timer send-message:user-42 is running; wait until it has ended, or let its processor return Rearm",
        ),
        "not-scheduled": Told(
            "the timer's status does not allow it",
            "timer send-message:user-42 is completed, and this is not possible then",
        ),
        "edit-locked": Told(
            "due within `TIMERS_EDIT_LOCK`, so changes are no longer taken",
            "timer send-message:user-42 is too close to due to be changed (TIMERS_EDIT_LOCK)",
        ),
        "refused": Told(
            "the state of the timer or the prefix does not allow it, for another reason", "this is not possible now"
        ),
        "version-mismatch": Told(
            "the timer has changed since the version in `If-Match`",
            "timer send-message:user-42 has version 4, another than expected; read it again",
        ),
        "too-large": Told("the body is larger than the call takes", "the body may have 262144 bytes at most"),
        "unsupported-media-type": Told(
            "the body is of another type, charset or encoding", "Content-Type is 'text/plain'; send application/json"
        ),
        "expectation-failed": Told("an `Expect` header other than `100-continue`", "POST /v1/timers"),
        "invalid-input": Told(
            "fields, parameters or headers are not accepted; `errors` names each",
            "delay: 'soon' is not accepted; expected a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m",
        ),
        "no-processor": Told(
            "no processor was ever declared for the prefix",
            "prefix: 'nobody' is not accepted; expected a prefix that a processor serves (send-message)",
        ),
        "internal": Told(
            "a fault of the service; its log has the reason",
            "The log of this pod says what happened; repeating may help.",
        ),
        "unauthorized": Told(
            "no key, a wrong or revoked one, or a signature that does not hold",
            "a key is needed: Authorization: Bearer KEY, or a request signed with the Standard Webhooks headers",
        ),
        "forbidden": Told("the key has not the right that the call needs", "this call needs the right 'write'"),
        "denied": Told("the caller may not do this, for another reason", "this is not allowed"),
        "rate-limited": Told("more calls than the key's rate allows", "the key may make 100/s"),
        "too-many-pending": Told(
            "more timers waiting, or in more prefixes, than the key's quota allows",
            "the prefixes of the key may have 100000 timers waiting",
        ),
        "redis-unavailable": Told(
            "Redis is away, slow or takes no writes; where `detail` does not say that nothing was done, the call may "
            "or may not have been done: repeat it with PUT, or a create with an id and `if_exists: keep`",
            "Redis is not available: Connection closed by server; this may or may not have been done: "
            "repeat it with PUT, or with an id and if_exists 'keep'",
        ),
        "busy": Told(
            "this pod does as much of this at a time as it may; nothing was done",
            "256 listeners follow the events of this pod, as many as it takes; try again later, or another pod",
        ),
        "not-ready": Told("`/readyz`: the pod cannot do its work now", "draining"),
    }
)

KINDS_BY_SLUG: Final[Mapping[str, Kind]] = MappingProxyType(
    {kind.slug: kind for kind in (*KINDS.values(), *HTTP_KINDS.values())}
)
