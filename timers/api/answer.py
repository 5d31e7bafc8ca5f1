"""Owns the form of an answer: JSON in UTF-8."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import to_json

from timers.api.operations import JSON
from timers.store.turns import in_turns

T = TypeVar("T")


def answer(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
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
    return b",".join([encode(item) async for item in in_turns(items)])
