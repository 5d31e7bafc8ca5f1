"""Owns how errors leave: as `application/problem+json` (RFC 9457)."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.problem_types import HTTP_KINDS, Kind, kind_of
from timers.core.answers import BadField
from timers.errors import (
    FieldError,
    InvalidInput,
    RateLimited,
    TimersError,
    TooManyPending,
    Unauthorized,
    Unavailable,
)
from timers.logs import get_logger, request_id

TYPE_ROOT: Final = "urn:timers:problem:"
CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
"""A pod tries to reach a lost Redis at least this often, so trying earlier is useless."""

PENDING_RETRY_AFTER_SECONDS: Final = 60
"""Nobody knows when some of the waiting timers will have ended. Asking once a minute costs nothing."""

_REPEAT: Final = "repeat it with PUT, or with an id and if_exists 'keep'"

ERRORS_TOLD: Final = 20
"""The most entries in `errors[]`. A body can hold thousands of mistakes, and the answer must not be larger than the
request."""

_log = get_logger("timers.api")


def problem(kind: Kind, detail: str, **members: Any) -> web.Response:
    """A problem as a response. `members` are added to the JSON object."""
    return _response(_body(kind, detail, **members))


def _body(kind: Kind, detail: str, **members: Any) -> dict[str, Any]:
    return {"type": TYPE_ROOT + kind.slug, "title": kind.title, "status": kind.status, "detail": detail, **members}


def _response(body: dict[str, Any]) -> web.Response:
    answered = request_id.get()
    told = body if answered is None else {**body, "request_id": answered}
    response = web.Response(status=body["status"], body=json.dumps(told).encode(), content_type=CONTENT_TYPE)
    if body["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def field_json(error: FieldError) -> BadField:
    """One entry of `errors[]`: the dotted path, the value (perhaps shortened), what is accepted, and all of that as
    text."""
    return {"field": error.field, "value": error.value, "accepted": error.accepted, "message": str(error)}


def of_error(error: TimersError) -> web.Response:
    """The problem for an error of this package."""
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


def _in_doubt(error: Unavailable) -> Unavailable:
    """The same error, for a call that may have changed something before Redis went away."""
    known = "nothing was done" if error.nothing_done else f"the call may have taken effect: {_REPEAT}"
    return type(error)(f"{error}; {known}")


def problem_body(error: TimersError) -> dict[str, Any]:
    """The problem for an error of this package, as a JSON object."""
    fields = error.errors if isinstance(error, InvalidInput) else _fields_in(error)
    if not fields:
        return _body(kind_of(error), str(error))
    told = fields[:ERRORS_TOLD]
    rest = f"; and {len(fields) - len(told)} more" if len(fields) > len(told) else ""
    return _body(kind_of(error), "; ".join(map(str, told)) + rest, errors=[field_json(field) for field in told])


def _fields_in(error: TimersError) -> tuple[FieldError, ...]:
    """The fields of an error, if it was raised with a FieldError as its text."""
    return tuple(field for field in error.args if isinstance(field, FieldError))


def of_status(status: int, detail: str) -> web.Response:
    """The problem for a request that HTTP itself refuses."""
    unnamed = Kind(status, f"http-{status}", HTTPStatus(status).phrase)
    return problem(HTTP_KINDS.get(status, unnamed), detail)


def _of_http(request: web.Request, error: web.HTTPException) -> web.Response:
    """The problem for an error of aiohttp. If the error has no text, the problem says where it happened."""
    silent = not error.text or error.text == f"{error.status}: {error.reason}"
    response = of_status(error.status, _detail_of(request, error) if silent else str(error.text))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _detail_of(request: web.Request, error: web.HTTPException) -> str:
    where = f"{request.method} {request.path}"
    if "Allow" in error.headers:
        return f"{where} is not a call; this path takes {', '.join(error.headers['Allow'].split(','))}"
    return f"{where} is not a call; /docs lists them all"


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler into a problem. The details of an unexpected error go only to the log."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _of_http(request, error)
    except Unavailable as error:
        return of_error(error if request.method in ("GET", "HEAD") else _in_doubt(error))
    except TimersError as error:
        return of_error(error)
    except Exception:  # noqa: BLE001 (the connection must get an answer; the log gets the error)
        _log.exception("request failed", method=request.method, path=request.path)
        return of_status(500, "This pod's log has the reason; trying again may help.")
