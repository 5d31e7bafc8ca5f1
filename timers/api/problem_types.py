"""Owns the descriptions of the types of problems: when each occurs, and an example of its `detail`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from timers.api.problems import HTTP_KINDS, KINDS, Kind


@dataclass(frozen=True, slots=True)
class ProblemText:
    """When a problem occurs, and an example of its `detail`."""

    when: str
    detail: str


PROBLEM_TEXTS: Final[Mapping[str, ProblemText]] = MappingProxyType(
    {
        "malformed-request": ProblemText(
            "not HTTP, not JSON, or a write with a condition that it does not honour",
            "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
        "no-such-address": ProblemText("the API has no such path", "GET /v1/timer"),
        "timer-not-found": ProblemText("no timer has that prefix and id", "timer send-message:user-42 does not exist"),
        "method-not-allowed": ProblemText("the path takes other methods; `Allow` names them", "PUT /v1/timers"),
        "request-timeout": ProblemText(
            "the request took too long to arrive", "the body did not arrive within 20 seconds"
        ),
        "already-exists": ProblemText(
            "the timer exists already, and the create has `if_exists: error`",
            "timer send-message:user-42 exists and is scheduled; use if_exists 'replace' to arm it again, or "
            "'keep' to get it",
        ),
        "running": ProblemText(
            "the timer is running, so it cannot be changed",
            "timer send-message:user-42 is running; wait until it has ended, or let its processor return Rearm",
        ),
        "not-scheduled": ProblemText(
            "the timer's status does not allow it",
            "timer send-message:user-42 is completed; a create with if_exists 'replace' arms it again",
        ),
        "edit-locked": ProblemText(
            "the timer is due within `TIMERS_EDIT_LOCK`, so it can no longer be changed",
            "timer send-message:user-42 is due so soon that it can no longer be changed (TIMERS_EDIT_LOCK)",
        ),
        "refused": ProblemText(
            "the state of the timer or the prefix does not allow it, for another reason", "this is not possible now"
        ),
        "version-mismatch": ProblemText(
            "the timer has changed since the version in `If-Match`",
            "timer send-message:user-42 has version 4, not the expected one; read it again",
        ),
        "too-large": ProblemText(
            "the body is larger than the call accepts", "the body is too large; at most 262144 bytes are accepted"
        ),
        "unsupported-media-type": ProblemText(
            "the call does not accept the body's type, charset or encoding",
            "Content-Type is 'text/plain'; send application/json",
        ),
        "expectation-failed": ProblemText("an `Expect` header other than `100-continue`", "POST /v1/timers"),
        "invalid-input": ProblemText(
            "fields, parameters or headers are invalid; `errors` names each",
            "delay: 'soon' is not accepted; expected a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m",
        ),
        "no-processor": ProblemText(
            "no processor was ever declared for the prefix",
            "prefix: 'nobody' is not accepted; expected a prefix that a processor serves (send-message)",
        ),
        "internal": ProblemText(
            "a fault of the service; its log has the reason",
            "This pod's log has the reason; trying again may help.",
        ),
        "unauthorized": ProblemText(
            "no key, a wrong or revoked key, or an invalid signature",
            "a key is needed: Authorization: Bearer KEY, or a request signed with the Standard Webhooks headers",
        ),
        "forbidden": ProblemText("the key lacks the right that the call needs", "this call needs the right 'write'"),
        "denied": ProblemText("the caller may not do this, for another reason", "this is not allowed"),
        "rate-limited": ProblemText("more calls than the key's rate allows", "the key may make 100/s"),
        "too-many-pending": ProblemText(
            "more waiting timers, or prefixes with timers, than the key's quota allows",
            "the prefixes of the key may have 100000 timers waiting",
        ),
        "redis-unavailable": ProblemText(
            "Redis is down, slow or refuses writes. Unless `detail` says that nothing was done, the call may "
            "have taken effect: repeat it with PUT, or as a create with an id and `if_exists: keep`",
            "Redis is not available: Connection closed by server; the call may have taken effect: repeat it "
            "with PUT, or with an id and if_exists 'keep'",
        ),
        "busy": ProblemText(
            "this pod is at its limit for calls of this kind; nothing was done",
            "this pod has 256 listeners, its maximum; try again later, or another pod",
        ),
        "not-ready": ProblemText("`/readyz`: the pod cannot do its work now", "draining"),
    }
)

KINDS_BY_SLUG: Final[Mapping[str, Kind]] = MappingProxyType(
    {kind.slug: kind for kind in (*KINDS.values(), *HTTP_KINDS.values())}
)
