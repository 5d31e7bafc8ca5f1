"""The page `/docs`: what it consists of, and that it requests nothing from other hosts."""

import asyncio
import hashlib
import re
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest

import timers.api.openapi
from tests.api.harness import Api, other_server
from tests.waiting import DEADLINE_SECONDS
from timers.api.health import HealthRoutes
from timers.api.openapi import DocsRoutes, document
from timers.api.operations import routes_of
from timers.metrics import Metrics

VENDOR = Path(timers.api.openapi.__file__).parent / "vendor"


class References(HTMLParser):
    """Collects the URLs that a page makes a browser load, and the text of its inline scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for name in ("src", "href", "action") if (value := given.get(name))]
        self.inline += tag == "style" or (tag == "script" and "src" not in given) or "style" in given
        self.inline += any(name.startswith("on") for name in given)


def test_vendored_files_are_those_of_the_list() -> None:
    listed = {name: digest for digest, name in map(str.split, (VENDOR / "SHA256SUMS").read_text().splitlines())}
    present = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "VERSION"}
    assert set(listed) == present
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


async def test_the_page_loads_only_from_the_service_itself(api: Api) -> None:
    async with api.session.get(api.server.url + "/docs") as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = response.headers["Content-Security-Policy"]
        page = References()
        page.feed(await response.text())
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:|\*", policy)
    assert page.inline == 0
    assert [address for address in page.addresses if address != "data:,"] == [
        "docs/swagger-ui.css",
        "docs/swagger-ui-bundle.js",
        "docs/start.js",
    ]


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/docs/swagger-ui.css", "text/css"),
        ("/docs/swagger-ui-bundle.js", "text/javascript"),
        ("/docs/start.js", "text/javascript"),
    ],
)
async def test_the_parts_of_the_page_are_there_as_utf_8(api: Api, path: str, media_type: str) -> None:
    async with api.session.get(api.server.url + path) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, f"{media_type}; charset=utf-8")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert await response.text()


def test_the_style_loads_nothing() -> None:
    text = (VENDOR / "swagger-ui.css").read_text()
    assert "@import" not in text
    assert re.findall(r"url\((?!['\"]?(?:data:|#))[^)]*\)", text) == []


async def test_the_pod_keeps_working_while_the_document_is_built_once(api: Api) -> None:
    others_answered, made = threading.Event(), list[int]()

    def slow() -> dict[str, object]:
        assert others_answered.wait(DEADLINE_SECONDS)
        made.append(1)
        return document()

    routes = (*routes_of(DocsRoutes(slow)), *routes_of(HealthRoutes(api.store, api.client, None, Metrics())))
    async with other_server(api, routes) as other:
        asking = [asyncio.create_task(other.call("GET", "/openapi.json")) for _ in range(3)]
        for _ in range(3):
            assert (await other.call("GET", "/healthz")).status == 200
        others_answered.set()
        assert [reply.body == document() for reply in await asyncio.gather(*asking)] == [True] * 3
        assert made == [1]
