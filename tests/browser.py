"""A page in a real browser, with its requests and console messages."""

import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@dataclass
class Watched:
    """A browser's page, with its requests and console messages."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def heard(self, message: ConsoleMessage) -> None:
        """Keep every console message: a correct page logs none."""
        self.complaints.append(f"{message.type}: {message.text}")

    def assert_quiet(self, base: str) -> None:
        """Raises AssertionError if there was a message, or a request to another host."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(f"{base}/")] == []


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no chromium on this machine; in CI there must be")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        seen = Watched(await browser.new_page())
        seen.page.set_default_timeout(60_000)  # the machine may be busy with other tests
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", seen.heard)
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        yield seen
        await browser.close()
