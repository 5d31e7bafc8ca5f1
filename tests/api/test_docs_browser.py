"""The page of the document in a real browser: it renders every call, asks no other host, and complains of nothing."""

import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

from tests.api.harness import Api
from timers.api.openapi import document

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@dataclass
class Watched:
    """A page, what it asked for, and what it complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no chromium on this machine; in CI there must be")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        seen = Watched(await browser.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", seen.heard)
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        yield seen
        await browser.close()


async def test_the_page_renders_every_call_and_asks_nobody_else(api: Api, watched: Watched) -> None:
    page, base = watched.page, api.server.url
    await page.goto(f"{base}/docs")
    await page.wait_for_selector(".opblock")
    shown = {(await block.inner_text()).split()[0:2][-1] for block in await page.query_selector_all(".opblock-summary")}
    calls = [call for path in document()["paths"].values() for call in path.values()]
    assert await page.locator(".opblock").count() == len(calls)
    assert {path.replace("\u200b", "") for path in shown} == set(document()["paths"])

    await page.click("#operations-timers-createTimer .opblock-summary-control")
    await page.wait_for_selector("#operations-timers-createTimer .response")
    assert "ada@example.org" in await page.inner_text("#operations-timers-createTimer .opblock-section-request-body")

    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((f"{base}/", "data:"))] == []
    assert f"{base}/openapi.json" in watched.requests
