"""Owns the OpenAPI 3.1 document, made from the table of calls, the types of bodies and answers, and the problems; and
serving it: as `/openapi.json`, and as a page that loads nothing from other hosts."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, TypeAdapter

from timers.api import credentials
from timers.api.answer import CONTENT_TYPE, PROBLEMS, body_of, encoded, of_bytes, problem_body
from timers.api.operations import (
    CSS,
    EVENTS,
    HTML,
    JAVASCRIPT,
    LAST_EVENT_ID,
    NDJSON,
    OPERATIONS,
    TEXT,
    Answer,
    Operation,
    call,
)
from timers.api.requests import refuse_query
from timers.core import shapes
from timers.core.answers import ChangeAnswer, Problem
from timers.core.shapes import NEW_TIMER_EXAMPLE
from timers.errors import InvalidInput, ProblemType
from timers.processor import DISTRIBUTION
from timers.store.cooperative import CachedRead

Json = dict[str, Any]

_ROOT: Final = "#/components/schemas/"
_AS_IT_IS: Final = ("enum", "examples", "required", "x-rules")
_SAMPLES: Final[Mapping[str, Any]] = {"integer": 1, "number": 1, "boolean": False, "string": "text"}


_ALWAYS: Final = ("malformed-request", "internal")
_WITH_RIGHT: Final = (
    *("unauthorized", "forbidden", "denied", "rate-limited", "invalid-input", "redis-rights", "moving"),
    *("newer-format", "unavailable", "ledger-unavailable", "busy"),
)
_WITH_BODY: Final = ("request-timeout", "too-large", "unsupported-media-type")

_DESCRIPTION: Final = """\
Durable timers: never early, never lost, one winner, cancel means cancel.

Every error is a problem (RFC 9457) with a stable `type`. A method that a path does not take is answered 405 with
`Allow`. Unknown fields and parameters are refused. Durations: `250ms`, `90s`, `15m`, `24h`, `7d`, a number of seconds,
or ISO 8601 (`PT24H`, `P1M`). Times: RFC 3339 with an offset, or epoch milliseconds."""

_TAGS: Final = {
    "timers": "One timer.",
    "many timers": "Lists, batches, actions by filter, events.",
    "operations": "What runs where, pausing and forgetting prefixes, metrics.",
    "dashboard": "Pages for people. A browser signs in with a key and gets a session.",
    "probes": "The pod itself, and this document. These need no key.",
}

_TEXT: Final[Json] = {"type": "string"}

_PARAMETERS: Final[Mapping[str, tuple[str, Json, object]]] = {
    "prefix": ("The timer's prefix.", shapes.PREFIX, "send-message"),
    "id": ("The timer's id.", shapes.ID, "user-42"),
    "If-Match": ("Act only if the timer's ETag is one of these, else answer 412. `*` matches any.", _TEXT, '"3"'),
    "If-None-Match": (
        "Answer 304 without a body if the timer's ETag is one of these. `*` matches any.",
        _TEXT,
        '"3"',
    ),
    "traceparent": (
        "The W3C trace that the timer's runs are linked to.",
        _TEXT,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    LAST_EVENT_ID: (
        """The id of the last event that you read. The stream continues after it, as far as the pod remembers, and \
otherwise begins with `gap`.""",
        _TEXT,
        "9f2c51d07be0a3c4",
    ),
}
"""What a path or a header of a call holds: in words, its schema, and an example."""

_HEADERS: Final[Mapping[str, tuple[str, Json, object]]] = {
    "ETag": (
        "The timer's version, for `If-Match` and `If-None-Match`.",
        {"type": "string", "pattern": '^"[0-9]+"$'},
        '"1"',
    ),
    "Location": (
        "The timer's path.",
        {"type": "string", "pattern": "^/v1/timers/[^/]+/[^/]+$"},
        "/v1/timers/send-message/user-42",
    ),
    "Retry-After": ("Seconds to wait before trying again.", {"type": "integer", "minimum": 0}, 1),
    "WWW-Authenticate": ("How to authenticate.", {"type": "string"}, "Bearer"),
    "X-Request-Id": ("The request's id in the log.", {"type": "string"}, "5d4e7c11a2b36f3f7c1d2e90"),
}
_PROBLEM_HEADERS: Final = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

_SIGNATURE: Final = {
    "signatureId": (credentials.ID, "For signed requests (Standard Webhooks): an id that no other request has."),
    "signatureTime": (credentials.TIMESTAMP, "Unix seconds, at most 5 minutes from the server's time."),
    "signature": (
        credentials.SIGNATURE,
        "`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; several signatures are separated by spaces.",
    ),
}
"""The headers of a signed request, each with what it holds, by the name of its scheme."""

_SCHEMES: Final[Json] = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key, made with `timers keys make`."},
    **{
        scheme: {"type": "apiKey", "in": "header", "name": header, "description": text}
        for scheme, (header, text) in _SIGNATURE.items()
    },
}
_KEY: Final[Json] = {"key": []}
_SIGNED: Final[Json] = {scheme: [] for scheme in _SIGNATURE}

_TEXTS: Final[Mapping[str, Json]] = {
    EVENTS: {"type": "string", "description": "The data of a `change` is a ChangeAnswer."},
    NDJSON: {"description": "One NewTimer per line."},
}


@cache
def document() -> Json:
    """The document. It is made once, so treat it as read-only."""
    return _Document().whole()


class _Document:
    """Builds the document. Its schemas are made from the types of requests and answers, and its examples from theirs.

    Some valid schemas confuse generators of clients: a default makes a field required, a title becomes a type's name,
    and an inline schema gets a number as its name. So the document says the same without them."""

    def __init__(self) -> None:
        self._schemas: dict[str, Json] = {}
        types = [body for operation in OPERATIONS for body in operation.body.values() if body is not None]
        types += [answer.body for operation in OPERATIONS for answer in operation.answers if answer.body is not None]
        adapters = {each.__name__: TypeAdapter[Any](each) for each in [*types, ChangeAnswer, Problem]}
        _, made = TypeAdapter.json_schemas(
            [(name, "validation", adapters[name]) for name in sorted(adapters)], ref_template=_ROOT + "{model}"
        )
        for name, schema in made["$defs"].items():
            self._schemas[name] = self._plain(schema)
        change = json.dumps(self._example(reference("ChangeAnswer")))
        lines = [json.dumps({**NEW_TIMER_EXAMPLE, "id": name}) for name in ("user-42", "user-43")]
        self._texts = {
            EVENTS: f"event: open\ndata: {{}}\n\nevent: change\ndata: {change}\n\n",
            NDJSON: "".join(f"{line}\n" for line in lines),
            TEXT: 'timers_timers{prefix="send-message",status="scheduled"} 3.0\n',
        }

    def whole(self) -> Json:
        paths = defaultdict[str, Json](dict)
        for operation in OPERATIONS:
            paths[operation.path][operation.method.lower()] = self._operation(operation)
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
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self._schemas.items())),
                "headers": {name: _header(*described) for name, described in _HEADERS.items()},
                "securitySchemes": _SCHEMES,
            },
        }

    def _operation(self, operation: Operation) -> Json:
        described: Json = {
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [operation.tag],
            "security": _security(operation),
            "parameters": [*_parameters(operation), *self._query(operation.query)],
            "responses": {**self._answers(operation.answers), **_problems(operation)},
        }
        if operation.right:
            described["description"] = f"Needs the right `{operation.right}` if keys are in use."
        if operation.body:
            content = {media_type: self._content(media_type, body) for media_type, body in operation.body.items()}
            described["requestBody"] = {"required": True, "content": content}
        return described

    def _query(self, model: type[BaseModel] | None) -> Iterable[Json]:
        """The parameters of a query. One that may be a list is described as a list, so that it may come several
        times."""
        fields = {} if model is None else TypeAdapter[Any](model).json_schema().get("properties", {})
        for name, raw in fields.items():
            schema = self._plain(raw)
            whole = schema["anyOf"][0] if {"type": "null"} in schema.get("anyOf", ()) else schema
            described = self._resolved(whole)
            several = next((part for part in described.get("anyOf", ()) if part.get("type") == "array"), whole)
            yield {
                "name": name,
                "in": "query",
                "description": described["description"],
                "required": False,
                "schema": several,
                "example": described["examples"][-1],
            }

    def _answers(self, answers: Iterable[Answer]) -> Json:
        described: Json = {}
        for answer in answers:
            one = described.setdefault(str(answer.status), {"description": answer.description})
            one["headers"] = _headers(answer.headers)
            if answer.media_type is not None:
                one.setdefault("content", {})[answer.media_type] = self._content(answer.media_type, answer.body)
        return described

    def _content(self, media_type: str, body: type[Any] | None) -> Json:
        if body is not None:
            schema = reference(body.__name__)
            return {"schema": schema, "example": self._example(schema)}
        schema = _TEXTS.get(media_type, _TEXT)
        return {"schema": schema, **({"example": self._texts[media_type]} if media_type in self._texts else {})}

    def _plain(self, schema: Json) -> Json:
        """The schema without titles and defaults, and with references to named schemas."""
        plain = {
            name: self._part(name, part)
            for name, part in schema.items()
            if not (name == "title" and isinstance(part, str))
        }
        name, default = plain.pop("x-name", None), plain.pop("default", None)
        if "x-ref" in plain:
            plain = reference(plain["x-ref"])
        elif name is not None:
            self._schemas[name] = plain
            plain = reference(name)
        if default not in (None, [], {}):
            shown = str(default).lower() if isinstance(default, bool) else default
            plain["description"] = "; ".join([*filter(None, [plain.get("description")]), f"`{shown}` by default"])
        return plain

    def _part(self, name: str, part: Any) -> Any:
        if name in _AS_IT_IS:
            return part
        if name == "properties":
            return {inner: self._plain(schema) for inner, schema in part.items()}
        if isinstance(part, list):
            return [self._plain(each) if isinstance(each, dict) else each for each in part]
        return self._plain(part) if isinstance(part, dict) else part

    def _resolved(self, schema: Json) -> Json:
        """The schema behind a reference; any other schema unchanged."""
        return {**self._schemas[schema["$ref"].removeprefix(_ROOT)], **schema} if "$ref" in schema else schema

    def _example(self, schema: Json) -> Any:
        """An example value for a schema: the schema's first example, or a value made from the examples of its parts."""
        schema = self._resolved(schema)
        if "examples" in schema:
            return schema["examples"][0]
        if "anyOf" in schema:
            may_be_null = {"type": "null"} in schema["anyOf"]
            return None if may_be_null and "examples" not in schema["anyOf"][0] else self._example(schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "object":
            return {name: self._example(part) for name, part in schema.get("properties", {}).items()}
        if schema.get("type") == "array":
            return [self._example(schema["items"])]
        return _SAMPLES[schema["type"]]


def reference(name: str) -> Json:
    return {"$ref": _ROOT + name}


def _parameters(operation: Operation) -> Iterable[Json]:
    """What is in the path, which is required, and the headers, which are not."""
    path = [name for name in ("prefix", "id") if f"{{{name}}}" in operation.path]
    for name in (*path, *operation.headers):
        place: Json = {"name": name, "in": "path" if name in path else "header", "required": name in path}
        yield {**place, **_header(*_PARAMETERS[name])}


def _header(description: str, schema: Json, example: object) -> Json:
    return {"description": description, "schema": schema, "example": example}


def _security(operation: Operation) -> list[Json]:
    """The ways to authenticate a call. A signature covers only the body, so it opens only reads and calls that have a
    body."""
    if operation.right is None:
        return []
    return [_KEY, _SIGNED] if operation.body or operation.method == "GET" else [_KEY]


def _headers(always: Iterable[str]) -> Json:
    """The headers of an answer. Those that always come stand in it themselves, because a reference cannot say that."""
    required = {name: {**_header(*_HEADERS[name]), "required": True} for name in always}
    return {**required, "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}


def _problems(operation: Operation) -> Json:
    """A call's problems by status: its own, and those of every call of its kind."""
    slugs = [*operation.problems, *_ALWAYS]
    slugs += _WITH_RIGHT if operation.right else ()
    slugs += ["no-such-address"] if "{" in operation.path else ()
    slugs += _WITH_BODY if operation.method in ("POST", "PUT", "PATCH", "DELETE") else ()
    by_status: defaultdict[int, list[ProblemType]] = defaultdict(list)
    for slug in dict.fromkeys(slugs):
        by_status[PROBLEMS[slug].status].append(PROBLEMS[slug])
    return {str(status): _problem(status, by_status[status]) for status in sorted(by_status)}


def _problem(status: int, kinds: Sequence[ProblemType]) -> Json:
    return {
        "description": " ".join(kind.when for kind in kinds),
        "headers": _headers(_PROBLEM_HEADERS.get(status, ())),
        "content": {
            CONTENT_TYPE: {
                "schema": reference("Problem"),
                "examples": {kind.slug: {"summary": kind.title, "value": _problem_example(kind)} for kind in kinds},
            }
        },
    }


def _problem_example(kind: ProblemType) -> Json:
    if kind is InvalidInput.problem:
        return problem_body(InvalidInput.of("delay", "soon", "a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m"))
    return body_of(kind, kind.detail)


_PAGE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
)


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _file(operation_id: str, media_type: str, name: str) -> Callable[[Any, web.Request], Awaitable[web.Response]]:
    """A method that answers a call with a file."""

    @call(operation_id)
    async def send(_routes: object, request: web.Request) -> web.Response:
        refuse_query(request)
        return web.Response(text=_text(name), content_type=media_type, charset="utf-8", headers=_PAGE_HEADERS)

    return send


class DocsRoutes:
    """The document for programs, and a page for people with what it loads."""

    def __init__(self, make: Callable[[], Json] = document) -> None:
        self._made = CachedRead(lambda: asyncio.to_thread(lambda: encoded(make())), inf)

    @call("getDocument")
    async def document(self, request: web.Request) -> web.Response:
        """Answers 200 with OpenAPI 3.1, made at the first request, and in a thread, because that takes a while."""
        refuse_query(request)
        return of_bytes(await self._made.get())

    page = _file("getDocs", HTML, "page/docs.html")
    style = _file("getDocsStyle", CSS, "vendor/swagger-ui.css")
    program = _file("getDocsProgram", JAVASCRIPT, "vendor/swagger-ui-bundle.js")
    start = _file("getDocsStart", JAVASCRIPT, "page/start.js")
