"""Web hooks that get no answer, and those that are never called."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import self_signed, serving
from tests.unit.samples import a_timer, run
from tests.webhooks.calling import asking, hook, outcome, result
from tests.webhooks.receivers import hang, opened, receiving, settings, speaking
from timers import Done, Fail, Retry
from timers_processors import calling
from timers_processors.calling import ANSWER_BYTES, RECEIVED_BYTES
from timers_processors.targets import Targets


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

    @pytest.mark.parametrize(
        ("beginning", "piece"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"extension=of-a-chunk;"),
        ],
        ids=["100", "103", "chunk"],
    )
    async def test_endless_interim_answers_are_dropped_after_a_megabyte(self, beginning: bytes, piece: bytes) -> None:
        written = 0
        dropped = asyncio.Event()

        async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            writer.write(beginning)
            pieces = piece * (65_536 // len(piece))
            try:
                while not writer.is_closing():
                    writer.write(pieces)
                    await writer.drain()
                    written += len(pieces)
            finally:
                dropped.set()

        processor = hook()
        async with speaking(endless) as url, opened(processor) as state:
            ended = await result(processor, asking({"url": url}), state)
            await dropped.wait()
        assert isinstance(ended, Retry)
        assert f"more than {RECEIVED_BYTES} bytes that are no body" in str(ended)
        assert written < 100_000_000

    async def test_interim_answers_come_before_the_answer(self) -> None:
        async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        processor = hook()
        async with speaking(speak) as url, opened(processor) as state:
            ended = await result(processor, asking({"url": url}), state)
        assert isinstance(ended, Done)
        assert ended.note.endswith("answered 200 OK: hi")

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

    async def test_a_receiver_that_takes_no_connection_was_said_to_have_been_given_longer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calling, "CONNECT_SECONDS", 0.1)
        processor = hook()
        async with opened(processor) as state:
            with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
                place = full.getsockname()
                with socket.create_connection(place):  # fills the backlog: the next one is not answered
                    ended = await result(processor, asking({"url": f"http://127.0.0.1:{place[1]}"}), state)
        assert str(ended).endswith(": no connection within 0.1 s")

    async def test_a_receiver_that_does_not_answer_is_left_alone_for_a_while(self) -> None:
        async with receiving() as gone:
            pass
        processor = hook(targets=Targets(failures=2, pause_seconds=60))
        async with receiving() as other, opened(processor) as state:
            for _ in range(2):
                assert isinstance(await result(processor, asking({"url": gone.url}), state), Retry)
            left = await result(processor, asking({"url": gone.url}), state)
            assert isinstance(await result(processor, asking({"url": other.url}), state), Done)
        assert isinstance(left, Retry)
        assert str(left) == f"not tried: recent calls to 127.0.0.1:{gone.port} failed"
        assert isinstance(left.after, float)
        assert 50 < left.after <= 66
        assert not left.snooze

    async def test_a_busy_receiver_is_called_later_without_using_up_an_attempt(self) -> None:
        async def hang_and_tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            await hang(reader, writer)

        reached = asyncio.Event()
        processor = hook(targets=Targets(at_once=1, waiting=0))
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
