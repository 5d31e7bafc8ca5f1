"""Owns conditional requests (RFC 9110 §13): which call honours which condition, and what an ETag condition asks for."""

import re
from collections.abc import Awaitable
from typing import Final

from aiohttp import web

from timers.api.operations import Operation, operation_of
from timers.api.tracing import Handler
from timers.core.model import Timer
from timers.errors import shown

CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")

_TAG: Final = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f]*"')
_TAGS: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")
_OURS: Final = re.compile(r'"(0|[1-9][0-9]{0,14})"')

_HONOURED: Final = "PATCH and DELETE of a timer honour If-Match, GET of a timer If-None-Match"


@web.middleware
def refuse_unchecked(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Answer 400 to a write with a condition that the call does not check, because the caller would believe that it was
    checked. A read may ignore its condition: it only answers more."""
    for name in CONDITIONS:
        if name in request.headers and not _may_have(operation_of(request), name):
            raise web.HTTPBadRequest(text=f"{name} is not honoured by this call; {_HONOURED}")
    return handler(request)


def _may_have(operation: Operation | None, condition: str) -> bool:
    return operation is None or operation.method == "GET" or condition in {each.name for each in operation.parameters}


def etag(timer: Timer) -> str:
    """A timer's entity tag: its version."""
    return f'"{timer.version}"'


def versions(request: web.Request) -> list[int] | None:
    """The versions of ours that If-Match names, or None if any version will do. Raises HTTP 400 if the header is
    malformed."""
    tags = _tags(request, "If-Match")
    if tags is None or tags == ["*"]:
        return None
    return [int(found[1]) for tag in tags if (found := _OURS.fullmatch(tag))]


def is_known(request: web.Request, timer: Timer) -> bool:
    """Whether If-None-Match says that the caller already has this version. Raises HTTP 400 if the header is
    malformed."""
    tags = _tags(request, "If-None-Match") or []
    return tags == ["*"] or etag(timer) in [tag.removeprefix("W/") for tag in tags]


def _tags(request: web.Request, name: str) -> list[str] | None:
    """The tags of a condition, `*` alone for any, or None without the header."""
    if name not in request.headers:
        return None
    text = ",".join(request.headers.getall(name))
    if text == "*":
        return ["*"]
    if not _TAGS.fullmatch(text):
        raise web.HTTPBadRequest(text=f'{name} is {shown(text)}; send ETags, as in "3" with the quotes, or * alone')
    return _TAG.findall(text)
