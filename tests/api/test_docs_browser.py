"""The page `/docs` in a real browser: it shows every call, requests nothing from other hosts, and logs no message."""

from tests.api.harness import Api
from tests.browser import Watched, watched
from timers.api.openapi import document

__all__ = ["watched"]


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

    assert [said for said in watched.complaints if said.startswith(("error", "warning"))] == []
    assert [url for url in watched.requests if not url.startswith((f"{base}/", "data:"))] == []
    assert f"{base}/openapi.json" in watched.requests
