"""Mail through a real server: what arrives, over which connection, and which refusals fail a timer."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.certificates import self_signed, serving
from tests.messages.mailbox import Mailbox, mailbox
from tests.unit.samples import a_timer, run
from timers import Done, Fail, Retry
from timers.processor import Result
from timers.settings import Settings
from timers_processors.send_message import Sending, send_message
from timers_processors.targets import Targets
from timers_processors.transport import SmtpTransport

FROM = "The Shop <shop@example.org>"


def settings(box: Mailbox, *, scheme: str = "smtp", account: str = "", query: str = "", **given: Any) -> Settings:
    url = f"{scheme}://{account}localhost:{box.port}{query}"
    return Settings(smtp_url=SecretStr(url), mail_from=FROM, **given)


async def send(given: Settings, payload: dict[str, Any], times: int = 1, **changes: Any) -> Result:
    """Run the processor a number of times on a pod with these settings. Returns what the last run returned."""
    timer = a_timer(prefix="send-message", spec={"payload": payload}, **changes)
    async with Sending.opened(given) as sending:
        for _ in range(times - 1):
            await run(send_message, timer, sending)
        return await run(send_message, timer, sending)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    return serving(certificate)


@pytest.fixture
def _trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process trust the server's certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


class TestMessage:
    async def test_arrives_with_what_a_mail_needs(self) -> None:
        async with mailbox() as box:
            payload = {"email": "ann@example.org", "name": "Ann", "subject": "Grüße", "text": "Hallo {name}, schön!"}
            assert await send(settings(box), payload) == Done("sent by email")
        assert (box.only()["From"], box.only()["To"], box.only()["Subject"]) == (FROM, "ann@example.org", "Grüße")
        assert box.only().get_content().strip() == "Hallo Ann, schön!"
        assert box.only()["Date"]
        assert box.only()["Auto-Submitted"] == "auto-generated"
        assert box.recipients == [["ann@example.org"]]

    async def test_every_try_of_an_occurrence_has_one_message_id(self) -> None:
        async with mailbox() as box:
            for changes in ({"attempt": 1}, {"attempt": 2, "token": 9}, {"occurrence": 2}):
                await send(settings(box), {"email": "ann@example.org"}, **changes)
        first, second, third = [each["Message-ID"] for each in box.mails]
        assert first == second != third
        assert first.startswith("<")
        assert first.endswith("@example.org>")

    async def test_several_recipients_get_one_message(self) -> None:
        async with mailbox() as box:
            await send(settings(box), {"email": ["ann@example.org", "bob@example.org"]})
        assert box.only()["To"] == "ann@example.org, bob@example.org"
        assert box.recipients == [["ann@example.org", "bob@example.org"]]

    async def test_says_how_to_unsubscribe(self) -> None:
        async with mailbox() as box:
            for address in ("https://example.org/u?x=1", "mailto:stop@example.org"):
                await send(settings(box), {"email": "ann@example.org", "unsubscribe": address})
        web, by_mail = box.mails
        assert web["List-Unsubscribe"] == "<https://example.org/u?x=1>"
        assert web["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        assert (by_mail["List-Unsubscribe"], by_mail["List-Unsubscribe-Post"]) == ("<mailto:stop@example.org>", None)

    async def test_a_long_unsubscribe_address_was_sent_in_encoded_words(self) -> None:
        address = f"https://example.org/u?token={'x' * 950}"
        async with mailbox() as box:
            await send(settings(box), {"email": "ann@example.org", "unsubscribe": address})
        assert f"\r\nList-Unsubscribe: <{address}>\r\n".encode() in box.only_as_sent()
        assert max(map(len, box.only_as_sent().splitlines())) == 998

    @pytest.mark.parametrize("address", ["example.org", "javascript:x", "https://a b", "https://a>\r\nBcc: c@d", 5, ""])
    async def test_an_unsubscribe_address_that_is_none_is_refused(self, address: Any) -> None:
        async with mailbox() as box:
            with pytest.raises(Fail, match=r"^unsubscribe: expected an address"):
                await send(settings(box), {"email": "ann@example.org", "unsubscribe": address})
        assert box.mails == []

    async def test_an_unsubscribe_address_that_would_keep_the_pod_busy_fails_at_once(self) -> None:
        async with mailbox() as box:
            with pytest.raises(Fail, match=r"^unsubscribe: longer than 978 characters$"):
                await send(settings(box), {"email": "ann@example.org", "unsubscribe": "https://" + "=?x" * 400})
        assert box.mails == []

    async def test_nothing_in_a_payload_becomes_a_header(self) -> None:
        async with mailbox() as box:
            payload = {"email": "ann@example.org", "subject": "{name}", "name": "A\r\nBcc: eve@example.org\r\n\r\nx"}
            await send(settings(box), payload)
        assert box.only()["Bcc"] is None
        assert box.recipients == [["ann@example.org"]]

    @pytest.mark.parametrize(
        "word",
        [
            "=?utf-8?q?=0aBcc:_eve=40example.org=0a=0aanother_body?=",
            "=?utf-8?q?=0d=0aBcc:_eve=40example.org=0d=0a=0d=0aanother_body?=",
            "=?utf-8?b?CkJjYzogZXZlQGV4YW1wbGUub3JnCgphbm90aGVyIGJvZHk=?=",
        ],
    )
    @pytest.mark.parametrize(
        "payload",
        [
            {"subject": "{word}"},
            {"subject": "Hello{word}{word}, how are you? " + "Long subjects are folded. " * 8 + "{word}"},
            {"subject": "=?utf-8?q?{rest}", "rest": "=0aBcc:_eve=40example.org=0a=0aanother_body?="},
            {"template": "greeting", "unsubscribe": "https://example.org/?a==?b"},
        ],
        ids=["subject", "long", "put-together", "template"],
    )
    async def test_an_encoded_word_becomes_neither_a_header_nor_the_body(
        self, tmp_path: Path, payload: dict[str, str], word: str
    ) -> None:
        (tmp_path / "greeting.txt").write_text("Hello")
        (tmp_path / "greeting.subject.txt").write_text("For {{ word }}")
        async with mailbox() as plain, mailbox() as box:
            await send(settings(plain), {"email": "ann@example.org", **payload, "template": None, "subject": "Hello"})
            text = {} if "template" in payload else {"text": "Hello"}
            await send(settings(box, templates=tmp_path), {"email": "ann@example.org", "word": word, **text, **payload})
        assert box.only().keys() == plain.only().keys()
        assert box.only().get_content().strip() == "Hello"
        assert "= ?utf-8?" in box.only()["Subject"]

    @pytest.mark.parametrize(
        "payload",
        [
            {"email": "=?utf-8?q?=0aBcc:eve?=@example.org"},
            {"email": "ann@=?utf-8?q?=0aBcc:eve?="},
            {"email": ["ann=?utf-8?q?=0aBcc:eve@example.org", "b?=@example.org"]},
            {"email": "ann@example.org", "unsubscribe": "mailto:=?utf-8?q?=0aBcc:eve?=@example.org"},
            {"email": "ann@example.org", "unsubscribe": "https://=?utf-8?b?CkJjYzogZXZl?=/"},
        ],
    )
    async def test_an_encoded_word_in_an_address_fails_at_once(self, payload: dict[str, Any]) -> None:
        async with mailbox() as box:
            with pytest.raises(Fail, match=r"^(email|unsubscribe): .*=\?"):
                await send(settings(box), payload)
        assert box.mails == []

    @pytest.mark.parametrize(
        "payload", [{"subject": "é {name}"}, {"template": "greeting"}], ids=["payload", "template"]
    )
    async def test_a_subject_that_would_keep_the_pod_busy_fails_at_once(
        self, tmp_path: Path, payload: dict[str, str]
    ) -> None:
        (tmp_path / "greeting.txt").write_text("Hello")
        (tmp_path / "greeting.subject.txt").write_text("{{ name }}")
        async with mailbox() as box:
            with pytest.raises(Fail, match=r"^subject: longer than 998 characters once filled in$"):
                await send(
                    settings(box, templates=tmp_path), {"email": "ann@example.org", "name": "é" * 999, **payload}
                )
        assert box.mails == []

    async def test_text_and_html_come_from_templates(self, tmp_path: Path) -> None:
        (tmp_path / "welcome.txt").write_text("Hello {{ name }}")
        (tmp_path / "welcome.html").write_text("<p>Hello {{ name }}</p>")
        (tmp_path / "welcome.subject.txt").write_text("For {{ name }}\n")
        async with mailbox() as box:
            payload = {"email": "ann@example.org", "template": "welcome", "name": "<Ann>"}
            await send(settings(box, templates=tmp_path), payload)
        text, html = box.only().iter_parts()
        assert box.only()["Subject"] == "For <Ann>"
        assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
        assert text.get_content().strip() == "Hello <Ann>"
        assert html.get_content().strip() == "<p>Hello &lt;Ann&gt;</p>"


class TestConnection:
    async def test_one_is_kept_for_many_messages(self) -> None:
        async with mailbox() as box:
            await send(settings(box), {"email": "ann@example.org"}, times=5)
        assert (len(box.mails), box.connections) == (5, 1)

    async def test_a_connection_that_the_server_closed_is_replaced(self) -> None:
        async with mailbox() as box, Sending.opened(settings(box)) as sending:
            timer = a_timer(spec={"payload": {"email": "ann@example.org"}})
            await run(send_message, timer, sending)
            box.drop_connections()
            await run(send_message, timer, sending)
        assert (len(box.mails), box.connections) == (2, 2)

    async def test_a_refused_message_leaves_the_connection_to_the_next(self) -> None:
        async with mailbox() as box, Sending.opened(settings(box)) as sending:
            for refused, expected in (("ann@example.org", Fail), (None, None)):
                box.refusals = {} if refused is None else {refused: "550 no such user"}
                timer = a_timer(spec={"payload": {"email": "ann@example.org"}})
                if expected is None:
                    await run(send_message, timer, sending)
                else:
                    with pytest.raises(expected):
                        await run(send_message, timer, sending)
        assert (len(box.mails), box.connections) == (1, 1)

    async def test_one_unused_for_long_is_not_used_again(self) -> None:
        timer = a_timer(spec={"payload": {"email": "ann@example.org"}})
        async with mailbox() as box:
            transport = SmtpTransport(f"smtp://localhost:{box.port}", FROM, idle_seconds=0.0)
            for _ in range(2):
                await run(send_message, timer, Sending({"email": transport.send}, None, None))
            await transport.close()
        assert box.connections == 2

    async def test_an_account_is_used(self) -> None:
        async with mailbox(account=("shop@x", "a/b:c")) as box:
            given = settings(box, account="shop%40x:a%2Fb%3Ac@", query="?starttls=never")
            assert await send(given, {"email": "ann@example.org"}) == Done("sent by email")

    async def test_a_wrong_password_may_be_put_right_so_it_is_tried_again(self) -> None:
        async with mailbox(account=("shop", "right")) as box:
            with pytest.raises(Retry, match=r"^localhost:\d+: SMTPAuthenticationError") as caught:
                await send(settings(box, account="shop:wrong@", query="?starttls=never"), {"email": "ann@example.org"})
        assert "wrong" not in str(caught.value)

    async def test_a_server_that_refuses_the_login_is_left_alone_for_a_while(self) -> None:
        """Each mail that was due tried to log in, and servers lock accounts for that."""
        async with mailbox(account=("shop", "right")) as box:
            given = settings(box, account="shop:wrong@", query="?starttls=never")
            timer = a_timer(prefix="send-message", spec={"payload": {"email": "ann@example.org"}})
            async with Sending.opened(given) as sending:
                for _ in range(Targets.failures):
                    with pytest.raises(Retry, match=r"SMTPAuthenticationError"):
                        await run(send_message, timer, sending)
                with pytest.raises(Retry, match=r"^not tried"):
                    await run(send_message, timer, sending)
        assert box.connections == Targets.failures

    async def test_a_missing_account_may_be_set_so_it_is_tried_again(self) -> None:
        """As when a mail server begins to ask for a login: each mail of that time was lost."""
        async with mailbox(account=("shop", "right")) as box:
            with pytest.raises(Retry, match=r"refused: 530 .*Authentication required"):
                await send(settings(box), {"email": "ann@example.org"})

    @pytest.mark.usefixtures("_trusted")
    async def test_smtps_is_encrypted_from_the_beginning(self, tls: ssl.SSLContext) -> None:
        async with mailbox(tls=tls, implicit=True) as box:
            await send(settings(box, scheme="smtps"), {"email": "ann@example.org"})
        assert len(box.mails) == 1

    @pytest.mark.usefixtures("_trusted")
    @pytest.mark.parametrize(
        ("query", "encrypted"), [("", True), ("?starttls=require", True), ("?starttls=never", False)]
    )
    async def test_starttls_where_it_is_offered(self, tls: ssl.SSLContext, query: str, encrypted: bool) -> None:
        async with mailbox(tls=tls) as box:
            await send(settings(box, query=query), {"email": "ann@example.org"})
        assert box.encrypted == [encrypted]

    @pytest.mark.parametrize(("account", "query"), [("", "?starttls=require"), ("shop:secret@", "")])
    async def test_a_password_is_not_sent_in_the_clear_unless_asked_for(self, account: str, query: str) -> None:
        async with mailbox(account=("shop", "secret")) as box:
            with pytest.raises(Retry, match=r"SMTPNotSupported|SMTPException"):
                await send(settings(box, account=account, query=query), {"email": "ann@example.org"})
        assert box.mails == []

    async def test_a_certificate_that_nobody_vouches_for_is_refused(self, tls: ssl.SSLContext) -> None:
        async with mailbox(tls=tls) as box:
            with pytest.raises(Retry, match=r"CERTIFICATE_VERIFY_FAILED|certificate"):
                await send(settings(box, query="?starttls=require"), {"email": "ann@example.org"})
        assert box.mails == []


class TestRefusal:
    @pytest.mark.parametrize("where", ["ann@example.org", "MAIL", "DATA"])
    async def test_a_permanent_one_is_final(self, where: str) -> None:
        async with mailbox() as box:
            box.refusals = {where: "550 5.1.1 not here"}
            with pytest.raises(Fail, match=r"refused: .*550.*not here"):
                await send(settings(box), {"email": "ann@example.org"})

    @pytest.mark.parametrize("where", ["ann@example.org", "MAIL", "DATA"])
    async def test_a_passing_one_is_tried_again(self, where: str) -> None:
        async with mailbox() as box:
            box.refusals = {where: "451 4.7.1 greylisted"}
            with pytest.raises(Retry, match=r"refused: .*451.*greylisted"):
                await send(settings(box), {"email": "ann@example.org"})

    async def test_permanently_refused_recipients_are_reported_and_the_others_get_the_mail(self) -> None:
        async with mailbox() as box:
            box.refusals = {"bob@example.org": "550 <bob@example.org>: no Bob"}
            result = await send(settings(box), {"email": ["ann@example.org", "bob@example.org"]})
        assert result == Done("sent by email: b***@example.org refused: 550 <b***@example.org>: no Bob")
        assert box.recipients == [["ann@example.org"]]

    async def test_some_refused_for_now_are_tried_again_with_the_same_message_id(self) -> None:
        payload = {"email": ["ann@example.org", "bob@example.org"]}
        async with mailbox() as box:
            box.refusals = {"bob@example.org": "450 later"}
            with pytest.raises(Retry, match="450 later"):
                await send(settings(box), payload)
            box.refusals = {}
            await send(settings(box), payload)
        assert box.recipients == [["ann@example.org"], payload["email"]]
        assert box.mails[0]["Message-ID"] == box.mails[1]["Message-ID"]

    async def test_no_server_is_tried_again_and_left_alone_for_a_while(self) -> None:
        async with mailbox() as box:
            pass
        gone = SmtpTransport(f"smtp://localhost:{box.port}", FROM, Targets(failures=1, pause_seconds=60))
        sending = Sending({"email": gone.send}, None, None)
        timer = a_timer(spec={"payload": {"email": "ann@example.org"}})
        with pytest.raises(Retry, match="SMTPConnectError"):
            await run(send_message, timer, sending)
        with pytest.raises(Retry, match=r"not tried: recent calls to .* failed") as caught:
            await run(send_message, timer, sending)
        assert caught.value.after is not None
