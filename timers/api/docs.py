"""Owns serving the document: `/openapi.json`, and a page for it that loads nothing from other hosts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aiohttp import web

from timers.api.answer import encoded, of_bytes
from timers.api.body import refuse_query
from timers.api.openapi import Json, document
from timers.api.operations import CSS, HTML, JAVASCRIPT, route

_VENDOR: Final = Path(__file__).parent / "vendor"

_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
)

_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>timers · HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

_START: Final = """\
SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});
"""


@cache
def _vendored(name: str) -> str:
    return (_VENDOR / name).read_text("utf-8")


_FILES: Final = (
    ("getDocs", HTML, lambda: _PAGE),
    ("getDocsStyle", CSS, partial(_vendored, "swagger-ui.css")),
    ("getDocsProgram", JAVASCRIPT, partial(_vendored, "swagger-ui-bundle.js")),
    ("getDocsStart", JAVASCRIPT, lambda: _START),
)
"""The page and what it loads: the call, the media type, and what gives the text."""


async def _send(media_type: str, text: Callable[[], str], request: web.Request) -> web.Response:
    refuse_query(request)
    return web.Response(text=text(), content_type=media_type, charset="utf-8", headers=_HEADERS)


def docs_routes(make: Callable[[], Json] = document) -> Sequence[web.RouteDef]:
    """The routes to add to an application, which serve the document to programs and to people."""
    making, made = asyncio.Lock(), b""

    async def send_document(request: web.Request) -> web.Response:
        """Answers 200 with OpenAPI 3.1, made at the first request, and in a thread, because that takes a while."""
        nonlocal made
        refuse_query(request)
        async with making:
            made = made or await asyncio.to_thread(lambda: encoded(make()))
        return of_bytes(made)

    pages = (route(name, partial(_send, media_type, text)) for name, media_type, text in _FILES)
    return (route("getDocument", send_document), *pages)
