"""Owns the OpenAPI 3.1 document, made from the table of calls, the models of bodies and answers, and the problems."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from timers.api import schemas
from timers.api.operations import EVENTS, NDJSON, OPERATIONS, TEXT, Answer, Operation
from timers.api.parameters import Parameter
from timers.api.problem_types import KINDS_BY_SLUG, TOLD
from timers.api.problems import CONTENT_TYPE, TYPE_ROOT, Kind
from timers.core.shapes import NEW_TIMER_EXAMPLE
from timers.processor import DISTRIBUTION

Json = dict[str, Any]

_ALWAYS: Final = ("malformed-request", "internal")
_WITH_RIGHT: Final = ("unauthorized", "forbidden", "rate-limited", "invalid-input", "redis-unavailable", "busy")
_WITH_ADDRESS: Final = ("no-such-address",)
_WITH_BODY: Final = ("request-timeout", "too-large", "unsupported-media-type")
_READING_A_BODY: Final = ("POST", "PUT", "PATCH", "DELETE")

_DESCRIPTION: Final = """\
Timers that fire once: never early, never lost, one winner, cancel means cancel.

Every error is a problem (RFC 9457) with a stable `type`; a method that an address does not take is answered 405 with
`Allow`. Unknown fields and parameters are refused. Durations: `250ms`, `90s`, `15m`, `24h`, `7d`, a number of seconds,
or ISO 8601 (`PT24H`, `P1M`). Times: RFC 3339 with an offset, or epoch milliseconds."""

_TAGS: Final = {
    "timers": "One timer.",
    "many timers": "Lists, batches, actions by filter, events.",
    "operations": "What runs where, and how well.",
    "dashboard": "A page for people; a browser signs in with a key and has a session.",
    "probes": "The pod itself, and this document. No key is asked for.",
}

_HEADERS: Final[Json] = {
    "ETag": (
        "The timer's version; for `If-Match` and `If-None-Match`.",
        {"type": "string", "pattern": '^"[0-9]+"$'},
        '"1"',
    ),
    "Location": (
        "The timer's address.",
        {"type": "string", "pattern": "^/v1/timers/[^/]+/[^/]+$"},
        "/v1/timers/send-message/user-42",
    ),
    "Retry-After": ("Seconds until it is worth trying again.", {"type": "integer", "minimum": 0}, 1),
    "WWW-Authenticate": ("How to show who you are.", {"type": "string"}, "Bearer"),
    "X-Request-Id": ("Names this request in the log.", {"type": "string"}, "5d4e7c11a2b36f3f7c1d2e90"),
}
_PROBLEM_HEADERS: Final = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

_SCHEMES: Final[Json] = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key, as `timers keys` makes them."},
    "signatureId": {
        "type": "apiKey",
        "in": "header",
        "name": "webhook-id",
        "description": "Signed requests (Standard Webhooks): a name that no other request has.",
    },
    "signatureTime": {
        "type": "apiKey",
        "in": "header",
        "name": "webhook-timestamp",
        "description": "Unix seconds, at most 5 minutes off.",
    },
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "webhook-signature",
        "description": "`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; several with spaces between.",
    },
}
_KEY: Final[Json] = {"key": []}
_SIGNED: Final[Json] = {"signatureId": [], "signatureTime": [], "signature": []}


_CHANGE: Final = {
    "prefix": "send-message",
    "id": "user-42",
    "status": "completed",
    "version": 3,
    "attempt": 1,
    "due_at": "2026-11-22T20:00:00.000Z",
    "at": "2026-11-22T20:00:00.021Z",
    "processor": None,
    "cause": "completed",
    "note": "completed",
}
_TEXTS: Final = {
    EVENTS: f"event: open\ndata: {{}}\n\nevent: change\ndata: {json.dumps(_CHANGE)}\n\n",
    NDJSON: "".join(f"{json.dumps({**NEW_TIMER_EXAMPLE, 'id': name})}\n" for name in ("user-42", "user-43")),
    TEXT: 'timers_timers{prefix="send-message",status="scheduled"} 3.0\n',
}
"""Examples of what is no JSON."""


@cache
def document() -> Json:
    """The document. Treat it as read-only: it is made once."""
    models = {model for operation in OPERATIONS for model in _models(operation)} | {schemas.Problem}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timers",
            "version": version(DISTRIBUTION),
            "description": _DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "This service."}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": _paths(OPERATIONS),
        "components": {
            "schemas": definitions["$defs"],
            "headers": {name: _header(*told) for name, told in _HEADERS.items()},
            "securitySchemes": _SCHEMES,
        },
    }


def _models(operation: Operation) -> Iterable[type[BaseModel]]:
    yield from (model for model in operation.body.values() if model is not None)
    yield from (answer.body for answer in operation.answers if answer.body is not None)


def _header(description: str, schema: Json, example: object) -> Json:
    return {"description": description, "schema": schema, "example": example}


def _paths(operations: Iterable[Operation]) -> Json:
    paths: defaultdict[str, Json] = defaultdict(dict)
    for operation in operations:
        paths[operation.path][operation.method.lower()] = _operation(operation)
    return dict(paths)


def _operation(operation: Operation) -> Json:
    told: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": _security(operation),
        "parameters": [*map(_parameter, operation.parameters), *_query(operation.query)],
        "responses": {**_answers(operation.answers), **_problems(operation)},
    }
    if operation.right:
        told["description"] = f"Needs the right `{operation.right}`, where keys are in use."
    if operation.body:
        content = {media_type: _content(media_type, model) for media_type, model in operation.body.items()}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _security(operation: Operation) -> list[Json]:
    """A signature covers the body alone, so it opens only reads and what is asked for in a body."""
    if operation.right is None:
        return []
    return [_KEY, _SIGNED] if operation.body or operation.method == "GET" else [_KEY]


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
        "example": parameter.example,
    }


def _query(model: type[BaseModel] | None) -> Iterable[Json]:
    """The parameters of a query; one that may be a list is one, so that it may come several times."""
    for name, schema in model.model_json_schema()["properties"].items() if model is not None else ():
        whole = next((part for part in schema.get("anyOf", ()) if part.get("type") != "null"), schema)
        several = next((part for part in whole.get("anyOf", ()) if part.get("type") == "array"), whole)
        yield {
            "name": name,
            "in": "query",
            "description": whole["description"],
            "required": False,
            "schema": several,
            "example": whole["examples"][-1],
        }


def _content(media_type: str, model: type[BaseModel] | None) -> Json:
    if model is not None:
        return {"schema": _reference(model), "example": _example_of(model)}
    text: Json = {"schema": {"description": "A NewTimer a line."} if media_type == NDJSON else {"type": "string"}}
    return {**text, "example": _TEXTS[media_type]} if media_type in _TEXTS else text


def _example_of(model: type[BaseModel]) -> Any:
    """The first of those that its schema has: readers of the document look beside the schema."""
    return model.model_json_schema()["examples"][0]


def _reference(model: type[BaseModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _answers(answers: Iterable[Answer]) -> Json:
    told: Json = {}
    for answer in answers:
        one = told.setdefault(str(answer.status), {"description": answer.description})
        one["headers"] = _header_references((*answer.headers, "X-Request-Id"), required=answer.headers)
        if answer.media_type is not None:
            one.setdefault("content", {})[answer.media_type] = _content(answer.media_type, answer.body)
    return told


def _header_references(names: Iterable[str], required: Iterable[str]) -> Json:
    """References, or the header itself where it always comes: a reference cannot say so."""
    always = set(required)
    return {
        name: {**_header(*_HEADERS[name]), "required": True}
        if name in always
        else {"$ref": f"#/components/headers/{name}"}
        for name in names
    }


def _problems(operation: Operation) -> Json:
    by_status: defaultdict[int, list[Kind]] = defaultdict(list)
    for slug in dict.fromkeys(_slugs(operation)):
        by_status[KINDS_BY_SLUG[slug].status].append(KINDS_BY_SLUG[slug])
    return {str(status): _problem(status, by_status[status]) for status in sorted(by_status)}


def _slugs(operation: Operation) -> Iterable[str]:
    """The problems of a call: its own, and those of every call of its kind."""
    yield from operation.problems
    yield from _ALWAYS
    if operation.right:
        yield from _WITH_RIGHT
    if "{" in operation.path:
        yield from _WITH_ADDRESS
    if operation.method in _READING_A_BODY:
        yield from _WITH_BODY


def _problem(status: int, kinds: Sequence[Kind]) -> Json:
    types = {"properties": {"type": {"enum": [TYPE_ROOT + kind.slug for kind in kinds]}, "status": {"const": status}}}
    headers = _PROBLEM_HEADERS.get(status, ())
    return {
        "description": "; ".join(TOLD[kind.slug].when for kind in kinds),
        "headers": _header_references((*headers, "X-Request-Id"), required=headers),
        "content": {
            CONTENT_TYPE: {
                "schema": {"allOf": [_reference(schemas.Problem), types]},
                "examples": {kind.slug: {"summary": kind.title, "value": _example(kind)} for kind in kinds},
            }
        },
    }


def _example(kind: Kind) -> Json:
    told = {
        "type": TYPE_ROOT + kind.slug,
        "title": kind.title,
        "status": kind.status,
        "detail": TOLD[kind.slug].detail,
    }
    if kind.slug != "invalid-input":
        return told
    accepted = "a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m"
    error = {"field": "delay", "value": "'soon'", "accepted": accepted, "message": told["detail"]}
    return {**told, "errors": [error]}
