"""The processor `webhook` against real receivers: what arrives there, and what each answer, or none, means."""

import asyncio
import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from tests.certificates import self_signed, serving
from tests.unit.samples import a_timer, run
from tests.webhooks.receivers import Received, hang, opened, receiving, settings, speaking
from timers import Done, Fail, Processor, Retry, Timer
from timers.settings import Settings
from timers_processors.calling import ANSWER_BYTES
from timers_processors.targets import TargetLimits, Targets
from timers_processors.webhook import WebHooks, processors


def secret(letter: str) -> str:
    return "whsec_" + b64encode(letter.encode() * 24).decode()


def hook(given: Settings | None = None, **options: Any) -> Processor:
    return next(iter(processors(WebHooks(given or settings(), **options))))


def asking(payload: Any, **changes: Any) -> Timer:
    return a_timer(prefix="webhook", spec={"payload": payload}, **changes)


async def sent(payload: dict[str, Any], given: Settings | None = None, **changes: Any) -> Received:
    """What a receiver gets of a timer with this payload and the receiver's URL."""
    processor = hook(given)
    async with receiving() as receiver, opened(processor) as state:
        await run(processor, asking({"url": receiver.url, **payload}, **changes), state)
    (received,) = receiver.received
    return received


async def outcome(*answers: web.Response, given: Settings | None = None) -> Done | Exception:
    processor = hook(given)
    async with receiving(*answers) as receiver, opened(processor) as state:
        return await result(processor, asking({"url": receiver.url}), state)


async def result(processor: Processor, timer: Timer, state: Any) -> Done | Exception:
    try:
        done = await run(processor, timer, state)
    except (Fail, Retry) as error:
        return error
    assert isinstance(done, Done)
    return done


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

    async def test_a_mapped_prefix_posts_the_payload_to_its_url(self) -> None:
        async with receiving() as receiver:
            given = settings(webhook_targets=f"partner={receiver.url}/in?x=1, other={receiver.url}/other")
            _, partner, other = processors(WebHooks(given))
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

    @pytest.mark.parametrize(("given", "least", "most"), [("0", 1, 1.1), ("999999999", 86_400, 95_040)])
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


class TestNoAnswer:
    async def test_a_hanging_receiver_is_left_after_the_timers_own_timeout(self) -> None:
        assert "no answer within 0.19 s" in await self.unanswered(hang)

    async def test_a_receiver_that_drips_its_head_or_body_gets_no_longer(self) -> None:
        async def drip_head(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            await drip(writer, b"X: y\r\n")

        async def drip_body(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
            await drip(writer, b"x")

        async def drip(writer: asyncio.StreamWriter, piece: bytes) -> None:
            while not writer.is_closing():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)

        for dripping in (drip_head, drip_body):
            assert "no answer within 0.19 s" in await self.unanswered(dripping)

    async def test_an_endless_answer_is_dropped_after_its_beginning(self) -> None:
        written = 0
        dropped = asyncio.Event()

        async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
            try:
                while written < 10_000_000_000:
                    writer.write(b"x" * 65_536)
                    await writer.drain()
                    written += 65_536
            finally:
                dropped.set()

        processor = hook()
        async with speaking(endless) as url, opened(processor) as state:
            done = await run(processor, asking({"url": url}), state)
            await dropped.wait()
        assert isinstance(done, Done)
        assert done.note.partition(": ")[2] == "x" * ANSWER_BYTES
        assert written < 100_000_000

    async def test_a_receiver_that_cuts_the_connection_is_tried_again(self) -> None:
        async def cut(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            return

        assert "ServerDisconnectedError" in await self.unanswered(cut)

    async def test_an_answer_that_is_not_http_is_tried_again(self) -> None:
        async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example.org ESMTP\r\n")

        assert "not HTTP: " in await self.unanswered(speak)

    async def test_the_secret_parts_of_a_url_are_not_shown(self) -> None:
        async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example.org ESMTP\r\n")

        processor = hook()
        async with speaking(speak) as url, opened(processor) as state:
            secret_url = url.replace("://", "://ann:hidden@") + "/hidden/path?key=hidden"
            ended = await result(processor, asking({"url": secret_url}), state)
        assert isinstance(ended, Retry)
        assert "hidden" not in str(ended)

    async def test_an_address_where_nobody_listens_is_tried_again(self) -> None:
        async with receiving() as receiver:
            pass
        processor = hook()
        async with opened(processor) as state:
            with pytest.raises(Retry, match=r"127\.0\.0\.1:\d+: ClientConnectorError"):
                await run(processor, asking({"url": receiver.url}), state)

    async def test_a_receiver_that_does_not_answer_is_left_alone_for_a_while(self) -> None:
        async with receiving() as gone:
            pass
        processor = hook(targets=Targets(TargetLimits(failures=2, pause_seconds=60)))
        async with receiving() as other, opened(processor) as state:
            for _ in range(2):
                assert isinstance(await result(processor, asking({"url": gone.url}), state), Retry)
            left = await result(processor, asking({"url": gone.url}), state)
            assert isinstance(await result(processor, asking({"url": other.url}), state), Done)
        assert isinstance(left, Retry)
        assert str(left) == f"not tried: 127.0.0.1:{gone.port} has not answered recent calls"
        assert isinstance(left.after, float)
        assert 50 < left.after <= 66
        assert not left.snooze

    async def test_a_busy_receiver_is_called_later_without_using_up_an_attempt(self) -> None:
        async def hang_and_tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            await hang(reader, writer)

        reached = asyncio.Event()
        processor = hook(targets=Targets(TargetLimits(at_once=1, waiting=0)))
        async with speaking(hang_and_tell) as url, opened(processor) as state:
            hanging = asyncio.create_task(result(processor, asking({"url": url}), state))
            await reached.wait()
            sent_away = await result(processor, asking({"url": url}), state)
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)
        assert isinstance(sent_away, Retry)
        assert sent_away.snooze
        assert "already makes as many calls to" in str(sent_away)

    async def unanswered(self, handler: Any) -> str:
        processor = hook()
        async with speaking(handler) as url, opened(processor) as state:
            timer = a_timer(prefix="webhook", spec={"payload": {"url": url}, "timeout": "200ms"})
            with pytest.raises(Retry) as caught:
                await run(processor, timer, state)
        assert caught.value.after is None
        return str(caught.value)


class TestTls:
    async def test_https_is_verified(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        certificate = self_signed(tmp_path)
        async with receiving(tls=serving(certificate)) as receiver:
            named, unnamed = (f"https://{host}:{receiver.port}/" for host in ("localhost", "127.0.0.1"))
            nobody = await self.called(named)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            trusted, other_name = await self.called(named), await self.called(unnamed)
        assert isinstance(trusted, Done)
        for refused in (nobody, other_name):
            assert isinstance(refused, Retry)
            assert "Certificate" in str(refused)
        assert len(receiver.received) == 1

    async def called(self, url: str) -> Done | Exception:
        processor = hook()
        async with opened(processor) as state:
            return await result(processor, asking({"url": url}), state)


class TestForbidden:
    @pytest.mark.parametrize(
        "host",
        [
            *("127.0.0.1", "localhost", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.1", "0", "0.0.0.0"),
            *("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[2002:7f00:1::]", "127.0.0.1."),
            *("[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[::ffff:169.254.169.254]"),
            *(
                "169.254.169.254",
                "10.0.0.1",
                "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
                "\uff11\uff12\uff17.0.0.1",
                "[fe80::1%25lo]",
                "LOCALHOST",
            ),
        ],
    )
    @pytest.mark.parametrize("scheme", ["http", "https"])
    async def test_no_spelling_of_an_inside_address_is_connected_to(self, scheme: str, host: str) -> None:
        processor = hook(settings(webhook_allow=""))
        async with receiving(host="0.0.0.0") as receiver, opened(processor) as state:
            timer = asking({"url": f"{scheme}://{host}:{receiver.port}/"})
            ended = await result(processor, timer, state)
        assert isinstance(ended, Fail), ended
        assert str(ended).startswith(("url: ", "payload.url: "))
        assert receiver.received == []

    async def test_http_is_only_for_what_is_allowed(self) -> None:
        ended = await outcome(given=settings(webhook_allow="10.0.0.0/8"))
        assert str(ended) == (
            "url: http:// is only for hosts in TIMERS_WEBHOOK_ALLOW, and 127.0.0.1 is not among them; use https://"
        )

    async def test_denied_targets_are_not_called(self) -> None:
        ended = await outcome(given=settings(webhook_deny="127.0.0.1"))
        assert str(ended) == "url: 127.0.0.1 is excluded by TIMERS_WEBHOOK_DENY"

    async def test_a_name_is_looked_up_once_and_a_second_answer_has_no_say(self) -> None:
        asked: list[str] = []

        async with receiving() as receiver:

            def rebinding(host: str, port: int, *_: Any) -> list[tuple[Any, ...]]:
                asked.append(host)
                return [(2, 1, 6, "", ("127.0.0.1" if len(asked) == 1 else "127.0.0.2", port))]

            processor = hook(settings(webhook_allow="127.0.0.1"), lookup=rebinding)
            async with opened(processor) as state:
                url = f"http://some.name:{receiver.port}/"
                assert isinstance(await result(processor, asking({"url": url}), state), Done)
        assert asked == ["some.name"]
        assert receiver.received[0].headers["Host"] == f"some.name:{receiver.port}"

    async def test_a_name_that_leads_inside_is_refused_without_telling_where(self) -> None:
        def inside(host: str, port: int, *_: Any) -> list[tuple[Any, ...]]:
            return [(2, 1, 6, "", ("10.20.30.40", port))]

        processor = hook(settings(webhook_allow=""), lookup=inside)
        async with opened(processor) as state:
            with pytest.raises(Fail) as caught:
                await run(processor, asking({"url": "https://db.corp.example/"}), state)
        assert "10.20" not in str(caught.value)
        assert "db.corp.example is not a public address" in str(caught.value)
