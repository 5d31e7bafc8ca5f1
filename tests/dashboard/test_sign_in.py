"""Who may see the dashboard: sessions, revoked keys, other sites' forms, and what pages may load."""

import re
import time

import pytest

from tests.api.harness import Api, running_api
from tests.dashboard.conftest import EVERYTHING, EVERYTHING_KEY, PROCESSORS, READS, READS_KEY, Visitor
from tests.waiting import eventually
from timers.api.operations import PAGES
from timers.api.session import COOKIE
from timers.embedded import EmbeddedServer

POLICY = {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"}


async def test_a_guest_is_sent_to_the_form_and_from_there_to_the_page(guest: Visitor) -> None:
    sent = await guest.get("/?")
    assert (sent.status, sent.where) == (303, "/ui/sign-in?to=%2F")
    assert 'name="to" value="/"' in (await guest.get(sent.where)).text
    signed_in = await guest.sign_in(EVERYTHING, to="/ui/timers?status=failed")
    assert (signed_in.status, signed_in.where) == (303, "/ui/timers?status=failed")
    assert (await guest.get("/")).status == 200


async def test_a_program_that_asks_for_the_first_page_without_a_key_gets_a_problem(guarded: Api) -> None:
    (await guarded.call("GET", "/")).problem(401, "unauthorized")


@pytest.mark.parametrize("page", [p for p in PAGES if p.right], ids=lambda page: page.id)
async def test_no_page_opens_and_no_form_works_without_a_session(guest: Visitor, page: object) -> None:
    path = re.sub(r"{\w+}", "x", page.path)  # type: ignore[attr-defined]
    shown = await (guest.get(path) if page.method == "GET" else guest.post(path))  # type: ignore[attr-defined]
    assert (shown.status, shown.where.partition("?")[0]) == (303, "/ui/sign-in")


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(guest: Visitor) -> None:
    cookie = (await guest.sign_in(READS)).headers.getall("Set-Cookie")[0]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    assert READS not in cookie
    behind_tls = await guest.post("/ui/sign-in", {"key": READS}, **{"X-Forwarded-Proto": "https"})
    assert "Secure" in behind_tls.headers.getall("Set-Cookie")[0]


async def test_a_wrong_key_shows_the_form_again(guest: Visitor) -> None:
    shown = await guest.sign_in("tmk_none_nothing")
    assert shown.status == 403
    assert "unknown or was revoked" in shown.text
    assert guest.cookies == {}


@pytest.mark.parametrize("tampered", ["key", "end", "signature", "expired", "garbage"])
async def test_a_session_that_was_changed_or_is_over_opens_nothing(guest: Visitor, tampered: str) -> None:
    await guest.sign_in(READS)
    key_id, end, signature = guest.cookies[COOKIE].split(".")
    guest.cookies[COOKIE] = {
        "key": f"{EVERYTHING_KEY.id}.{end}.{signature}",
        "end": f"{key_id}.{int(end) + 1}.{signature}",
        "signature": f"{key_id}.{end}.{signature[::-1]}",
        "expired": f"{key_id}.{int(time.time()) - 1}.{signature}",
        "garbage": "..\u00e4.",
    }[tampered]
    assert (await guest.get("/")).status == 303


async def test_a_session_opens_every_pod(guest: Visitor, server: EmbeddedServer) -> None:
    await guest.sign_in(READS)
    async with running_api(server.url, PROCESSORS, keys=READS_KEY.entry) as other:
        assert (await Visitor(other, dict(guest.cookies)).get("/")).status == 200


async def test_a_session_ends_with_its_key(guest: Visitor) -> None:
    await guest.sign_in(READS)
    assert (await guest.get("/")).status == 200
    await guest.api.store.connections.commands.hset("timers:keys", READS_KEY.id, "revoked")

    async def sent_away() -> bool:
        return (await guest.get("/")).status == 303

    await eventually(sent_away, "the session of a revoked key ends")


async def test_a_page_that_is_open_when_its_session_ends_goes_to_the_form(guest: Visitor) -> None:
    shown = await guest.get("/", **{"HX-Request": "true"})
    assert (shown.status, shown.headers["HX-Redirect"]) == (200, "/ui/sign-in?to=%2F")


async def test_signing_out_forgets_the_session(guest: Visitor) -> None:
    await guest.sign_in(READS)
    assert (await guest.post("/ui/sign-out")).where == "/ui/sign-in"
    assert COOKIE not in guest.cookies
    assert (await guest.get("/")).status == 303


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "/ui/\r\nSet-Cookie: a=b"]
)
async def test_signing_in_leads_nowhere_else(guest: Visitor, to: str) -> None:
    assert (await guest.sign_in(READS, to=to)).where == "/"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
async def test_a_form_of_another_site_does_nothing(visitor: Visitor, origin: str) -> None:
    shown = await visitor.post("/ui/read-only", {"wanted": "yes"}, Origin=origin)
    assert shown.status == 403
    assert visitor.cookies == {}


async def test_where_no_key_is_asked_for_there_is_nothing_to_sign_in_to(visitor: Visitor) -> None:
    assert (await visitor.get("/ui/sign-in")).where == "/"
    assert (await visitor.get("/", Host="timers.evil.example")).status == 403


async def test_every_page_says_that_nothing_inline_and_nothing_else_may_be_loaded(visitor: Visitor) -> None:
    shown = await visitor.get("/")
    assert set(shown.headers["Content-Security-Policy"].split("; ")) >= POLICY
    assert "unsafe" not in shown.headers["Content-Security-Policy"]
    assert shown.headers["X-Content-Type-Options"] == "nosniff"
    assert shown.headers["Cache-Control"] == "no-store"
    assert not re.search(r"<style|<script(?! defer src=)| style=| on\w+=", shown.text)


async def test_the_first_page_with_all_that_it_loads_is_under_100_kb(visitor: Visitor) -> None:
    first = (await visitor.get("/")).text
    assets = [(await visitor.get(path)) for path in set(re.findall(r'"(/ui/static/[^"]+)"', first))]
    assert len(assets) == 4
    assert all("immutable" in asset.headers["Cache-Control"] for asset in assets)
    assert len(first.encode()) + sum(len(asset.text.encode()) for asset in assets) < 100_000


async def test_a_static_file_of_another_version_is_not_there(visitor: Visitor) -> None:
    assert (await visitor.get("/ui/static/dashboard.000000000000.css")).status == 404


async def test_a_timers_life_names_the_key_that_changed_it(guest: Visitor) -> None:
    await guest.api.client.create("mine", "one", delay="1h")
    await guest.sign_in(EVERYTHING)
    await guest.post("/ui/timers/mine/one/cancel")
    assert (await guest.api.client.get("mine", "one")).history[0].by == EVERYTHING_KEY.id
    assert f'<span class="gap">by {EVERYTHING_KEY.id}</span>' in (await guest.get("/ui/timers/mine/one")).text
