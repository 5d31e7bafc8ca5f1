"""The processor `webhook` with real receivers: what arrives, and what each answer means."""

import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from tests.unit.samples import a_timer, run
from tests.webhooks.calling import asking, hook, outcome, result, secret, sent
from tests.webhooks.receivers import opened, receiving, settings
from timers import Done, Fail, Retry
from timers_processors.calling import ANSWER_BYTES
from timers_processors.webhook import processors


class TestRequest:
    async def test_posts_json_and_says_which_timer_it_is(self) -> None:
        got = await sent({"body": {"a": "ü"}}, id="a:b@c", occurrence=3, attempt=2, token=9)
        assert (got.method, got.path, got.body) == ("POST", "/", '{"a":"ü"}'.encode())
        assert got.headers["Content-Type"] == "application/json"
        named = {name: value for name, value in got.headers.items() if name.startswith("Timers-")}
        assert named == {
            "Timers-Prefix": "webhook",
            "Timers-Id": "a:b@c",
            "Timers-Occurrence": "3",
            "Timers-Attempt": "2",
            "Timers-Token": "9",
        }
        assert got.headers["User-Agent"].startswith("redis-timers/")

    async def test_method_headers_and_text_are_those_of_the_payload(self) -> None:
        got = await sent({"method": "PUT", "headers": {"x-shop": "7", "CONTENT-TYPE": "text/csv"}, "body": "a,b"})
        assert (got.method, got.headers["X-Shop"], got.body) == ("PUT", "7", b"a,b")
        assert got.headers.getall("Content-Type") == ["text/csv"]

    @pytest.mark.parametrize(("body", "text"), [(None, b"null"), ([1], b"[1]"), (0, b"0"), ("", b"")])
    async def test_a_body_of_any_json(self, body: Any, text: bytes) -> None:
        assert (await sent({"body": body})).body == text

    async def test_without_a_body_there_is_none(self) -> None:
        got = await sent({"method": "GET"})
        assert (got.method, got.body, "Content-Type" in got.headers) == ("GET", b"", False)

    async def test_an_account_in_the_url_is_its_authorization_and_is_not_shown(self) -> None:
        processor = hook()
        async with receiving(web.Response(status=500)) as receiver, opened(processor) as state:
            url = receiver.url.replace("://", "://ann:hidden@") + "/path?key=hidden"
            ended = await result(processor, asking({"url": url}), state)
        assert receiver.received[0].headers["Authorization"] == "Basic " + b64encode(b"ann:hidden").decode()
        assert "hidden" not in str(ended)

    @pytest.mark.parametrize(
        ("account", "headers"), [("ann:€", {}), ("a%3Ann:€", {}), ("ann:%E2%82%AC", {"authorization": "Bearer x"})]
    )
    async def test_an_account_that_cannot_be_sent_was_tried_for_a_day(self, account: str, headers: Any) -> None:
        processor = hook()
        async with receiving() as receiver, opened(processor) as state:
            url = receiver.url.replace("//", f"//{account}@")
            with pytest.raises(Fail, match=r"^url: its user and password cannot be sent") as caught:
                await run(processor, asking({"url": url, "headers": headers}), state)
        assert receiver.received == []
        assert "€" not in str(caught.value)

    async def test_a_mapped_prefix_posts_the_payload_to_its_url(self) -> None:
        async with receiving() as receiver:
            given = settings(webhook_targets=f"partner={receiver.url}/in?x=1, other={receiver.url}/other")
            _, partner, other = processors(given)
            assert (partner.prefix, other.prefix) == ("partner", "other")
            async with opened(partner) as state:
                await run(partner, a_timer(prefix="partner-x", spec={"payload": {"url": "https://else.where"}}), state)
        (got,) = receiver.received
        assert (got.method, got.path, json.loads(got.body)) == ("POST", "/in?x=1", {"url": "https://else.where"})
        assert got.headers["Timers-Prefix"] == "partner-x"

    @pytest.mark.parametrize(
        ("payload", "named"),
        [
            (None, "payload: expected an object"),
            ("https://example.org", "payload: expected an object"),
            ({}, "payload.url: expected"),
            ({"url": "example.org"}, "payload.url: expected"),
            ({"url": "ftp://example.org"}, "payload.url: expected"),
            ({"url": "https://"}, "payload.url: expected"),
            ({"url": "https://example.org:99999"}, "payload.url: expected"),
            ({"url": 7}, "payload.url: expected"),
            ({"url": "https://e.org", "metod": "PUT"}, "payload.metod: unknown; the fields are url, method, headers"),
            ({"url": "https://e.org", "method": "TRACE"}, "payload.method: 'TRACE' is not accepted; expected one of"),
            ({"url": "https://e.org", "method": ["GET"]}, "payload.method: "),
            ({"url": "https://e.org", "headers": ["a"]}, "payload.headers: expected an object"),
            ({"url": "https://e.org", "headers": {"A": 1}}, "payload.headers.A: expected a name and an ASCII text"),
            ({"url": "https://e.org", "headers": {"A": "b\r\nC: d"}}, "payload.headers.A: expected"),
            ({"url": "https://e.org", "headers": {"A: b": "c"}}, "payload.headers.A: b: expected"),
            (
                {"url": "https://e.org", "headers": {"Host": "x"}},
                "payload.headers.Host: not accepted, because the service sets",
            ),
            ({"url": "https://e.org", "headers": {"webhook-Id": "x"}}, "payload.headers.webhook-Id: not accepted"),
            ({"url": "https://e.org", "headers": {"TIMERS-TOKEN": "9"}}, "payload.headers.TIMERS-TOKEN: not accepted"),
        ],
    )
    async def test_a_payload_that_cannot_be_sent_fails_at_once_and_names_the_field(
        self, payload: Any, named: str
    ) -> None:
        with pytest.raises(Fail) as caught:
            await run(hook(), asking(payload))
        assert str(caught.value).startswith(named)

    @pytest.mark.parametrize(
        "body",
        [
            {"type": "timer.failed", "data": {}},
            {"data": {"type": "x"}, "type": "alarm.lost"},
            ' {"type": "note.failed", "type": "timer.failed"}',
            '\ufeff{"\\u0074ype": "alarm.\\u0066ailed"}',
            '{"Type": "timer.failed"}',
            f'{{"type": "timer.failed", "n": {"1" * 5000}}}',
            '{"type": "timer.failed", "text": "two\nlines"}',
        ],
    )
    async def test_a_body_that_says_to_be_an_alarm_fails_at_once(self, body: Any) -> None:
        with pytest.raises(Fail, match=r"^payload: the type '(timer|alarm)\.\w+' is not accepted"):
            await sent({"body": body})

    async def test_an_object_too_deep_to_see_its_type_fails_at_once(self) -> None:
        deep = f"{'[' * 9000}{']' * 9000}"
        with pytest.raises(Fail, match="nested too deeply"):
            await sent({"body": f' {{"type": "timer.failed", "n": {deep}}}'})
        assert (await sent({"body": deep})).body

    @pytest.mark.parametrize(
        "body", [{"type": "timers"}, [["type", "timer.x"]], "{type: timer.x}", {"a": {"type": "timer.x"}}, "[" * 9000]
    )
    async def test_any_other_type_is_sent(self, body: Any) -> None:
        assert (await sent({"body": body})).body

    def test_is_tried_for_a_day(self) -> None:
        processor = hook()
        assert processor.retry.ladder_ms is not None
        assert sum(processor.retry.ladder_ms) > 20 * 3_600_000
        assert processor.timeout_ms == 35_000


class TestSignature:
    async def test_the_reference_verifier_accepts_it(self) -> None:
        got = await sent({"body": {"a": 1}}, settings(webhook_secrets=secret("a")))
        assert Webhook(secret("a")).verify(got.body, dict(got.headers)) == {"a": 1}
        with pytest.raises(WebhookVerificationError):
            Webhook(secret("a")).verify(got.body + b" ", dict(got.headers))

    async def test_old_and_new_secret_sign_side_by_side(self) -> None:
        got = await sent({"body": 1}, settings(webhook_secrets=f"{secret('a')},{secret('b')}"))
        for each in ("a", "b"):
            assert Webhook(secret(each)).verify(got.body, dict(got.headers)) == 1

    async def test_a_prefix_with_its_own_secret_is_not_signed_with_another(self) -> None:
        given = settings(webhook_secrets=f"{secret('a')},webhook={secret('b')},webhook-x={secret('c')}")
        got = await sent({"body": 1}, given)
        Webhook(secret("b")).verify(got.body, dict(got.headers))
        for other in ("a", "c"):
            with pytest.raises(WebhookVerificationError):
                Webhook(secret(other)).verify(got.body, dict(got.headers))

    async def test_without_a_secret_it_is_unsigned_but_has_its_id(self) -> None:
        got = await sent({})
        assert "webhook-signature" not in got.headers
        assert got.headers["webhook-id"].startswith("msg_")

    async def test_one_id_over_all_tries_of_an_occurrence(self) -> None:
        tries = [await sent({}, attempt=n, token=n) for n in (1, 2)]
        following = await sent({}, occurrence=2)
        ids = [got.headers["webhook-id"] for got in (*tries, following)]
        assert ids[0] == ids[1] != ids[2]
        assert "." not in ids[0]


class TestAnswer:
    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    async def test_2xx_is_done(self, status: int) -> None:
        ended = await outcome(web.Response(status=status))
        assert isinstance(ended, Done)
        assert f"answered {status}" in ended.note

    @pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422])
    async def test_4xx_is_final(self, status: int) -> None:
        ended = await outcome(web.Response(status=status, text="no such order"))
        assert isinstance(ended, Fail)
        assert f"answered {status} " in str(ended)
        assert str(ended).endswith(": no such order")

    async def test_4xx_is_tried_again_where_the_settings_say_so_but_410_is_final(self) -> None:
        again = settings(webhook_4xx="retry")
        assert isinstance(await outcome(web.Response(status=404), given=again), Retry)
        assert isinstance(await outcome(web.Response(status=410), given=again), Fail)

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
    async def test_temporary_failures_are_tried_again(self, status: int) -> None:
        ended = await outcome(web.Response(status=status))
        assert isinstance(ended, Retry)
        assert (ended.snooze, ended.after) == (False, None)

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_redirects_are_not_followed(self, status: int) -> None:
        async with receiving() as inside:
            ended = await outcome(web.Response(status=status, headers={"Location": inside.url}))
        assert isinstance(ended, Fail)
        assert "redirects are not followed" in str(ended)
        assert inside.received == []

    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_retry_after_is_waited_for(self, status: int) -> None:
        ended = await outcome(web.Response(status=status, headers={"Retry-After": "120"}))
        assert isinstance(ended, Retry)
        assert isinstance(ended.after, float)
        assert 120 <= ended.after <= 132

    async def test_a_retry_after_may_be_a_date(self) -> None:
        then = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        ended = await outcome(web.Response(status=503, headers={"Retry-After": then}))
        assert isinstance(ended, Retry)
        assert isinstance(ended.after, float)
        assert 3000 < ended.after <= 3960

    async def test_a_date_counts_from_the_receivers_time(self) -> None:
        """The clock of one of them may be wrong."""
        now = datetime.now(UTC) - timedelta(hours=3)
        said = {
            "Date": format_datetime(now, usegmt=True),
            "Retry-After": format_datetime(now + timedelta(seconds=90), usegmt=True),
        }
        ended = await outcome(web.Response(status=503, headers=said))
        assert isinstance(ended, Retry)
        assert isinstance(ended.after, float)
        assert 90 <= ended.after <= 99

    @pytest.mark.parametrize(("given", "least", "most"), [("0", 1, 1.1), ("999999999", 86_400, 86_400)])
    async def test_a_retry_after_has_bounds(self, given: str, least: float, most: float) -> None:
        ended = await outcome(web.Response(status=429, headers={"Retry-After": given}))
        assert isinstance(ended, Retry)
        assert isinstance(ended.after, float)
        assert least <= ended.after <= most

    @pytest.mark.parametrize("given", ["soon", "-5", "", "1e9", "\u0663"])
    async def test_a_retry_after_that_says_nothing_leaves_the_policys_wait(self, given: str) -> None:
        ended = await outcome(web.Response(status=503, headers={"Retry-After": given}))
        assert isinstance(ended, Retry)
        assert ended.after is None

    async def test_the_first_kilobyte_is_kept(self) -> None:
        ended = await outcome(web.Response(text="x" * 5000))
        assert isinstance(ended, Done)
        assert ended.note.partition(": ")[2] == "x" * ANSWER_BYTES

    async def test_a_compressed_answer_is_not_unpacked(self) -> None:
        bomb = gzip.compress(b"x" * 10_000_000)
        ended = await outcome(web.Response(body=bomb, headers={"Content-Encoding": "gzip"}))
        assert isinstance(ended, Done)
        assert len(ended.note) < 1200

    async def test_cookies_of_one_timer_are_not_sent_by_the_next(self) -> None:
        processor = hook()
        async with receiving(web.Response(headers={"Set-Cookie": "session=1"})) as receiver, opened(processor) as state:
            for _ in range(2):
                await run(processor, asking({"url": receiver.url}), state)
        assert [received.headers.get("Cookie") for received in receiver.received] == [None, None]

    async def test_a_proxy_of_the_environment_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with receiving() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            assert isinstance(await outcome(), Done)
            assert proxy.received == []
