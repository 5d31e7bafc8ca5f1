"""Who may see the dashboard: sessions, revoked keys, other sites' forms, and what pages may load."""

import itertools
import re
import time

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, running_api
from tests.dashboard.conftest import EVERYTHING, EVERYTHING_KEY, PROCESSORS, READS, READS_KEY, Visitor
from tests.waiting import eventually
from timers.api.auth import SIGN_INS
from timers.api.credentials import COOKIE, SESSION_SECONDS
from timers.dashboard import PAGES
from timers.embedded import EmbeddedServer
from timers.errors import RateLimited

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


@pytest.mark.parametrize("tampered", ["key", "end", "number", "signature", "expired", "garbage", "shorter"])
async def test_a_session_that_was_changed_or_is_over_opens_nothing(guest: Visitor, tampered: str) -> None:
    await guest.sign_in(READS)
    key_id, end, own, signature = guest.cookies[COOKIE].split(".")
    guest.cookies[COOKIE] = {
        "key": f"{EVERYTHING_KEY.id}.{end}.{own}.{signature}",
        "end": f"{key_id}.{int(end) + 1}.{own}.{signature}",
        "number": f"{key_id}.{end}.{own[::-1]}.{signature}",
        "signature": f"{key_id}.{end}.{own}.{signature[::-1]}",
        "expired": f"{key_id}.{int(time.time()) - 1}.{own}.{signature}",
        "garbage": "..\u00e4.",
        "shorter": f"{key_id}.{end}.{signature}",
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


async def test_a_copied_cookie_opens_nothing_after_signing_out(guest: Visitor, server: EmbeddedServer) -> None:
    """On no pod, and for no stream. Other sessions of the same key go on."""
    copy, neighbour = Visitor(guest.api), Visitor(guest.api)
    await guest.sign_in(READS)
    await neighbour.sign_in(READS)
    copy.cookies.update(guest.cookies)
    assert (await copy.get("/")).status == 200
    async with running_api(server.url, PROCESSORS, keys=READS_KEY.entry) as other:
        elsewhere = Visitor(other, dict(guest.cookies))
        assert (await elsewhere.get("/")).status == 200
        sent = {"Cookie": f"{COOKIE}={guest.cookies[COOKIE]}"}
        async with other.session.get(f"{other.server.url}/ui/live", headers=sent) as stream:
            assert stream.status == 200
            await guest.post("/ui/sign-out")
            await stream.read()  # to its end
        for visitor in (copy, elsewhere):
            for path in ("/", "/ui/timers", "/ui/live"):
                assert (await visitor.get(path)).where.startswith("/ui/sign-in"), path
    assert (await neighbour.get("/")).status == 200


async def test_only_a_session_of_ours_takes_room_when_it_ends(guest: Visitor, redis: Redis) -> None:
    await guest.sign_in(READS)
    for session in ("", "a.b.c", f"{READS_KEY.id}.9999999999.0.{'0' * 64}", guest.cookies[COOKIE] + "0"):
        await Visitor(guest.api, {COOKIE: session}).post("/ui/sign-out")
    assert await redis.keys("timers:{access}:ended:*") == []
    for _ in range(2):
        await Visitor(guest.api, dict(guest.cookies)).post("/ui/sign-out")
    (kept,) = await redis.keys("timers:{access}:ended:*")
    assert 0 < await redis.ttl(kept) <= SESSION_SECONDS


async def test_guessing_keys_is_throttled_over_all_pods(guest: Visitor, server: EmbeddedServer) -> None:
    async with running_api(server.url, PROCESSORS, keys=READS_KEY.entry) as other:
        pods = itertools.cycle((guest, Visitor(other)))
        tried = 0
        while (shown := await next(pods).sign_in("tmk_none_nothing")).status == 403:
            tried += 1
            assert tried < 500, "nobody is throttled"
        assert tried >= SIGN_INS.burst
        assert (shown.status, shown.headers["Retry-After"], "too many attempts" in shown.text) == (429, "1", True)
        assert (await next(pods).sign_in(READS)).status == 429

    async def signed_in() -> bool:
        return (await guest.sign_in(READS)).status == 303

    await eventually(signed_in, "the right key opens again")


@pytest.mark.parametrize("addresses", ["2001:db8::{:x}", "10.0.0.{}"], ids=["one subscriber", "everywhere"])
async def test_many_addresses_are_throttled_too_and_leave_little_behind(
    guest: Visitor, redis: Redis, addresses: str
) -> None:
    tried = 0
    try:
        for tried in range(10_000):
            await guest.api.auth.admit_sign_in(addresses.format(tried))
    except RateLimited:
        pass
    assert SIGN_INS.burst <= tried < 9_999
    longest_ms = SIGN_INS.burst * SIGN_INS.interval_us // 1000 + 1
    for key in await redis.keys("timers:{access}:rate:sign-in:*"):
        assert await redis.pttl(key) <= longest_ms  # -2 once it is gone


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
