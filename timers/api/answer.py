"""Owns the form of an answer: JSON in UTF-8, and for every error `application/problem+json` (RFC 9457)."""

import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic_core import to_json

from timers import errors
from timers.api.operations import JSON
from timers.core.answers import BadField
from timers.errors import (
    FieldError,
    InvalidInput,
    ProblemType,
    RateLimited,
    TimersError,
    TooManyPending,
    Unauthorized,
    Unavailable,
)
from timers.logs import get_logger, request_id
from timers.store.cooperative import cooperatively

T = TypeVar("T")


def answer(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return of_bytes(encoded(data), status=status, headers=headers)


def of_bytes(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer from JSON that is already encoded."""
    return web.Response(body=body, status=status, headers=headers, content_type=JSON, charset="utf-8")


def encoded(data: Any) -> bytes:
    """Encode a value as JSON. For a page or a batch this is the largest part of the work, and `to_json` takes a third
    of `json`'s time. `json` takes over for text with half a character (a lone surrogate), which UTF-8 cannot encode."""
    try:
        return to_json(data)
    except ValueError:
        return json.dumps(data).encode()


async def joined(items: Iterable[T], encode: Callable[[T], bytes]) -> bytes:
    """Join the members of a long array or object with commas, in turns, so that thousands of them do not block the
    loop."""
    return b",".join([encode(item) async for item in cooperatively(items)])


TYPE_ROOT: Final = "urn:timers:problem:"
CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
"""A pod tries to reach a lost Redis at least this often, so trying earlier is useless."""

PENDING_RETRY_AFTER_SECONDS: Final = 60
"""Nobody knows when some of the waiting timers will have ended. Asking once a minute costs nothing."""

_CREATES: Final = ("/v1/timers", "/v1/timers/batch")
_CREATE_AGAIN: Final = "repeat it with PUT, or with an id and if_exists 'keep'"
_ACTIONS: Final = "/v1/timers/actions"

ERRORS_SHOWN: Final = 20
"""The most entries in `errors[]`. A body can hold thousands of mistakes, and the answer must not be larger than the
request."""

HTTP_PROBLEMS: Final[Mapping[int, ProblemType]] = {
    problem.status: problem
    for problem in (
        ProblemType(
            400,
            "malformed-request",
            "The request cannot be read",
            "Not HTTP, not JSON, or a write with a condition that it does not honour.",
            "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
        ProblemType(404, "no-such-address", "There is no such path", "The API has no such path.", "GET /v1/timer"),
        ProblemType(
            405,
            "method-not-allowed",
            "The path does not take this method",
            "The path takes other methods; `Allow` names them.",
            "PUT /v1/timers",
        ),
        ProblemType(
            408,
            "request-timeout",
            "The request took too long to arrive",
            "The request took too long to arrive.",
            "the body did not arrive within 20 seconds",
        ),
        ProblemType(
            413,
            "too-large",
            "The request is too large",
            "The body is larger than the call accepts.",
            "the body is too large; at most 262144 bytes are accepted",
        ),
        ProblemType(
            415,
            "unsupported-media-type",
            "The body's type is not accepted",
            "The call does not accept the body's type, charset or encoding.",
            "Content-Type is 'text/plain'; send application/json",
        ),
        ProblemType(
            417,
            "expectation-failed",
            "The Expect header cannot be met",
            "An `Expect` header other than `100-continue`.",
            "POST /v1/timers",
        ),
        TimersError.problem,
        ProblemType(503, "not-ready", "The pod is not ready", "`/readyz`: the pod cannot do its work now.", "draining"),
    )
}
"""What HTTP itself refuses, by status, whether aiohttp noticed it or a reader of this package. The problems of errors
are in `timers.errors`."""

PROBLEMS: Final[Mapping[str, ProblemType]] = {
    problem.slug: problem
    for problem in (
        *(each.problem for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TimersError)),
        *HTTP_PROBLEMS.values(),
    )
}
"""Every type of problem, by the end of its `type`."""

_log = get_logger("timers.api")


def problem(kind: ProblemType, detail: str, **members: Any) -> web.Response:
    """A problem as a response. `members` are added to the JSON object."""
    return _response(body_of(kind, detail, **members))


def body_of(kind: ProblemType, detail: str, **members: Any) -> dict[str, Any]:
    """A problem as a JSON object, to which the `members` are added."""
    return {"type": TYPE_ROOT + kind.slug, "title": kind.title, "status": kind.status, "detail": detail, **members}


def _response(body: dict[str, Any]) -> web.Response:
    answered = request_id.get()
    shown = body if answered is None else {**body, "request_id": answered}
    response = web.Response(status=body["status"], body=json.dumps(shown).encode(), content_type=CONTENT_TYPE)
    if body["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def field_json(error: FieldError) -> BadField:
    """One entry of `errors[]`: the dotted path, the value (perhaps shortened), what is accepted, and all of that as
    text."""
    return {"field": error.field, "value": error.value, "accepted": error.accepted, "message": str(error)}


def of_error(error: TimersError) -> web.Response:
    response = _response(problem_body(error))
    response.headers.update(headers_of(error))
    return response


def headers_of(error: TimersError) -> Mapping[str, str]:
    """The headers of an answer to an error: how to get in, or when to try again."""
    match error:
        case Unauthorized():
            return {"WWW-Authenticate": 'Bearer realm="timers"'}
        case RateLimited():
            return {"Retry-After": str(-(-error.retry_after_ms // 1000))}
        case TooManyPending():
            return {"Retry-After": str(PENDING_RETRY_AFTER_SECONDS)}
    return {}


def _in_doubt(error: Unavailable, request: web.Request) -> Unavailable:
    """The same error, for a call that may have changed something before Redis went away."""
    again = "repeat it" if request.method != "POST" or request.path == _ACTIONS else "look before you repeat it"
    again = _CREATE_AGAIN if request.path in _CREATES else again
    known = "nothing was done" if error.nothing_done else f"the call may have taken effect: {again}"
    return type(error)(f"{error}; {known}")


def problem_body(error: TimersError) -> dict[str, Any]:
    """The problem for an error of this package, as a JSON object."""
    # Any error may be raised with a FieldError as its text.
    fields = error.errors if isinstance(error, InvalidInput) else [e for e in error.args if isinstance(e, FieldError)]
    if not fields:
        return body_of(error.problem, str(error))
    shown = fields[:ERRORS_SHOWN]
    rest = f"; and {len(fields) - len(shown)} more" if len(fields) > len(shown) else ""
    return body_of(error.problem, "; ".join(map(str, shown)) + rest, errors=[field_json(field) for field in shown])


def of_status(status: int, detail: str) -> web.Response:
    """The problem for a request that HTTP itself refuses."""
    unnamed = ProblemType(status, f"http-{status}", HTTPStatus(status).phrase)
    return problem(HTTP_PROBLEMS.get(status, unnamed), detail)


def _of_http(request: web.Request, error: web.HTTPException) -> web.Response:
    """The problem for an error of aiohttp. If the error has no text, the problem says where it happened."""
    allowed, text = error.headers.get("Allow"), error.text
    if not text or text == f"{error.status}: {error.reason}":
        takes = "/docs lists them all" if allowed is None else f"this path takes {', '.join(allowed.split(','))}"
        text = f"{request.method} {request.path} is not a call; {takes}"
    response = of_status(error.status, text)
    if allowed is not None:
        response.headers["Allow"] = allowed
    return response


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler into a problem. The details of an unexpected error go only to the log."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _of_http(request, error)
    except Unavailable as error:
        return of_error(error if request.method in ("GET", "HEAD") else _in_doubt(error, request))
    except TimersError as error:
        return of_error(error)
    except Exception:  # noqa: BLE001 (the connection must get an answer; the log gets the error)
        _log.exception("request failed", method=request.method, path=request.path)
        return of_status(500, "This pod's log has the reason; trying again may help.")
