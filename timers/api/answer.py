"""Owns the form of an answer: JSON as UTF-8."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import to_json

from timers.api.operations import JSON
from timers.store.turns import by_turns

T = TypeVar("T")


def answer(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return of_bytes(encoded(data), status=status, headers=headers)


def of_bytes(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of JSON that is encoded already."""
    return web.Response(body=body, status=status, headers=headers, content_type=JSON, charset="utf-8")


def encoded(data: Any) -> bytes:
    """The JSON of a value. Of a page or a batch the writing of it is the largest part, and this way takes a third of
    `json`'s time; `json` itself is asked where text has half a character, which it can write and UTF-8 cannot."""
    try:
        return to_json(data)
    except ValueError:
        return json.dumps(data).encode()


async def joined(things: Iterable[T], encode: Callable[[T], bytes]) -> bytes:
    """The members of a long array or object, with commas between. Thousands of them hold nobody up."""
    return b",".join([encode(thing) async for thing in by_turns(things)])
