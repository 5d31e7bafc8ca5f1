"""Checks every reply that the tests get against the OpenAPI document: status, content type, headers and body."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import jsonschema_rs

from timers.api.answer import CONTENT_TYPE, TYPE_ROOT
from timers.api.openapi import document

Json = dict[str, Any]

OUTSIDE: Final = (400, 404, 405)
"""What a request is answered that asks for no documented call."""


def check(method: str, path: str, status: int, headers: Mapping[str, str], body: Any) -> None:
    """Raises AssertionError if the document does not allow the answer."""
    call = called("GET" if method == "HEAD" else method, path.partition("?")[0])
    told = f"{method} {path} answered {status}"
    media_type = headers.get("Content-Type", "").partition(";")[0]
    if call is None:
        assert status in OUTSIDE, f"{told}, which is not in the document"
        _check_body("Problem", {"$ref": "#/components/schemas/Problem"}, body, told)
        assert media_type == CONTENT_TYPE
        return
    assert str(status) in call["responses"], f"{told}; the document has {list(call['responses'])}"
    answer = call["responses"][str(status)]
    for name, header in answer["headers"].items():
        assert name in headers or not header.get("required"), f"{told} without {name}"
        if name in headers:
            _check_header(name, header, headers[name], told)
    if "content" not in answer:
        assert body is None, f"{told} with a body"
        return
    assert media_type in answer["content"], f"{told} as {media_type}"
    if method != "HEAD" and media_type.endswith("json"):
        _check_body(f"{call['operationId']} {status}", answer["content"][media_type]["schema"], body, told)
        if media_type == CONTENT_TYPE:
            assert body["status"] == status, told
            assert body["type"].removeprefix(TYPE_ROOT) in answer["content"][media_type]["examples"], told


@cache
def called(method: str, path: str) -> Json | None:
    """The operation of the document that a request calls. A fixed path wins over one with parameters."""
    for pattern in sorted(document()["paths"], key=lambda pattern: "{" in pattern):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")), path):
            call: Json | None = document()["paths"][pattern].get(method.lower())
            return call
    return None


def _check_header(name: str, header: Json, value: str, told: str) -> None:
    schema = header["schema"] if "schema" in header else document()["components"]["headers"][name]["schema"]
    given = int(value) if schema["type"] == "integer" else value
    assert _validator(name, schema).is_valid(given), f"{told} with {name}: {value}"


def _check_body(name: str, schema: Json, body: Any, told: str) -> None:
    errors = [f"{error.instance_path}: {error.message}" for error in _validator(name, schema).iter_errors(body)]
    assert not errors, f"{told}: {'; '.join(errors)}"


@cache
def _closed() -> Json:
    """The schemas without additional properties: the document must name every field of an answer. A problem may have
    members of its own (RFC 9457)."""
    schemas: Json = document()["components"]["schemas"]
    open_ones = ("Problem", "Document")
    return {
        name: {**schema, "additionalProperties": False} if "properties" in schema and name not in open_ones else schema
        for name, schema in schemas.items()
    }


_validators: Final[dict[str, jsonschema_rs.Draft202012Validator]] = {}


def _validator(name: str, schema: Json) -> jsonschema_rs.Draft202012Validator:
    if name not in _validators:
        whole = {**schema, "components": {"schemas": _closed()}}
        _validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
    return _validators[name]
