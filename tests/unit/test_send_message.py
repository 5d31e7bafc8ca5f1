"""The processor `send-message`: who gets a message, its text, what is skipped, and what is in the outbox."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.samples import a_timer, run
from timers import ConfigurationError, Done, Fail, Timer
from timers.processor import Registry, Result
from timers.settings import Settings
from timers_processors.send_message import (
    RECIPIENTS_LIMIT,
    RENDERED_LIMIT_CHARACTERS,
    Sending,
    fill,
    reachable,
    render,
    send_message,
)
from timers_processors.transport import Message, file_name, masked, write_to_outbox


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    """The folder for messages if nothing else is set up."""
    return tmp_path / "outbox"


async def send(outbox: Path | None, timer: Timer, **given: Any) -> Result:
    """Run the processor for the timer on a pod with these settings, and return its result."""
    async with Sending.opened(Settings(outbox=outbox, **given)) as sending:
        return await run(send_message, timer, sending)


def signup(payload: Any, **changes: Any) -> Timer:
    return a_timer(prefix="send-message-24h-after-signup", spec={"payload": payload}, **changes)


def sent(outbox: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(outbox.glob("*.json"))]


def a_message(**changes: Any) -> Message:
    fields = {
        "to": ("a@example.org",),
        "channel": "email",
        "subject": "Hi",
        "text": "Hello",
        "idempotency_key": "a:b:1",
    }
    return Message(**{"token": 1, **fields, **changes})


class TestSend:
    async def test_a_message_24h_after_signup_lands_in_the_outbox(self, outbox: Path) -> None:
        timer = signup({"email": "ann@example.org", "name": "Ann"})
        assert Registry([send_message]).match(timer.prefix) is send_message
        file = outbox / file_name(f"send-message-24h-after-signup:user-42:{a_timer().created_ms}:1")
        assert await send(outbox, timer) == Done(f"written to {file}, not sent")
        assert sent(outbox) == [
            {
                "to": "ann@example.org",
                "channel": "email",
                "subject": "Welcome",
                "text": "Hello Ann, welcome! It is good to have you here.",
                "idempotency_key": f"send-message-24h-after-signup:user-42:{a_timer().created_ms}:1",
                "token": 7,
            }
        ]

    async def test_subject_and_text_come_from_the_payload(self, outbox: Path) -> None:
        payload = {
            "phone": "+49 30 1234-567",
            "subject": "{n} left",
            "text": "Grüße, {name}: {n}",
            "name": "Ann",
            "n": 3,
        }
        assert "not sent" in str(await send(outbox, signup(payload)))
        (message,) = sent(outbox)
        assert (message["to"], message["channel"]) == ("+49 30 1234-567", "phone")
        assert (message["subject"], message["text"]) == ("3 left", "Grüße, Ann: 3")

    async def test_the_second_try_of_an_occurrence_replaces_the_first_one_s_message(self, outbox: Path) -> None:
        await send(outbox, signup({"email": "ann@example.org"}, attempt=1, token=7))
        await send(outbox, signup({"email": "ann@example.org"}, attempt=2, token=8))
        assert [message["token"] for message in sent(outbox)] == [8]

    async def test_the_next_occurrence_sends_another_message(self, outbox: Path) -> None:
        for occurrence in (1, 2):
            await send(outbox, signup({"email": "ann@example.org"}, occurrence=occurrence))
        assert len(sent(outbox)) == 2

    @pytest.mark.parametrize(
        ("payload", "why"),
        [
            (None, "the payload is not an object with email, phone or push"),
            ("ann@example.org", "the payload is not an object with email, phone or push"),
            ([{"email": "ann@example.org"}], "the payload is not an object with email, phone or push"),
            ({}, "the payload has no email, phone or push"),
            ({"name": "Ann", "email": "", "phone": None}, "the payload has no email, phone or push"),
            ({"email": "ann"}, "not a usable address: email"),
            ({"email": ["ann"], "phone": 49301234}, "not a usable address: email, phone"),
        ],
    )
    async def test_a_user_who_cannot_be_reached_is_skipped_and_the_reason_recorded(
        self, outbox: Path, payload: object, why: str
    ) -> None:
        with capture_logs() as lines:
            assert await send(outbox, signup(payload)) == Done(f"skipped: {why}")
        assert not outbox.exists()
        assert [(line["event"], line["reason"]) for line in lines] == [("nothing sent", why)]

    async def test_a_text_that_cannot_be_filled_sends_nothing(self, outbox: Path) -> None:
        with pytest.raises(Fail, match=r"^text: \{plan\} needs text or a number in the payload, but there is nothing$"):
            await send(outbox, signup({"email": "ann@example.org", "text": "your {plan}"}))
        assert not outbox.exists()

    @pytest.mark.parametrize(
        ("payload", "setting"),
        [
            ({"email": "ann@example.org"}, "TIMERS_SMTP_URL"),
            ({"phone": "112"}, "TIMERS_SMS_URL"),
            ({"push": "device"}, "TIMERS_SMS_URL"),
        ],
    )
    async def test_a_message_without_a_gateway_fails_with_the_name_of_the_setting(
        self, payload: dict[str, str], setting: str
    ) -> None:
        (channel,) = payload
        with pytest.raises(Fail, match=f"^{setting} is not set on this pod, so nothing is sent by {channel}"):
            await send(None, signup(payload))

    async def test_an_outbox_that_cannot_be_written_is_refused_at_the_start(self, outbox: Path) -> None:
        outbox.write_text("a file in the way")
        with pytest.raises(ConfigurationError, match=r"^TIMERS_OUTBOX: '.*outbox' is not accepted; expected a folder"):
            async with Sending.opened(Settings(outbox=outbox)):
                pass

    def test_its_timeout_is_half_a_minute(self) -> None:
        assert (send_message.prefix, send_message.timeout_ms) == ("send-message", 30_000)


class TestReachable:
    @pytest.mark.parametrize("email", ["a@b", "ann.o'neil+x@mail.example.org", "jürgen@bücher.example"])
    def test_an_email_address(self, email: str) -> None:
        assert reachable({"email": email}) == ("email", (email,))

    def test_several_email_addresses_each_once(self) -> None:
        assert reachable({"email": ["a@b", "c@d", "a@b"]}) == ("email", ("a@b", "c@d"))

    @pytest.mark.parametrize("email", [["a@b", "nobody"], ["a@b", 5], []])
    def test_several_of_which_one_cannot_be_sent_to(self, email: object) -> None:
        assert isinstance(reachable({"email": email}), str)

    def test_push_is_the_last_resort(self) -> None:
        assert reachable({"push": "token-1", "phone": "112"}) == ("phone", ("112",))
        assert reachable({"push": "token-1"}) == ("push", ("token-1",))

    def test_a_channel_with_a_gateway_goes_before_others(self) -> None:
        assert reachable({"email": "a@b", "phone": "112"}, ["phone", "push", "email"]) == ("phone", ("112",))
        assert reachable({"email": "a@b"}, ["phone", "push", "email"]) == ("email", ("a@b",))

    @pytest.mark.parametrize("phone", ["112", "+4930123456", "0049 (0)30 / 12-34.56"])
    def test_a_phone_number(self, phone: str) -> None:
        assert reachable({"phone": phone}) == ("phone", (phone,))

    def test_email_goes_before_phone(self) -> None:
        assert reachable({"phone": "112", "email": "a@b"}) == ("email", ("a@b",))

    def test_phone_stands_in_for_an_unusable_email(self) -> None:
        assert reachable({"phone": "112", "email": "nobody"}) == ("phone", ("112",))

    @pytest.mark.parametrize(
        "email",
        [
            *("@", "a@", "@b", "a@b@c", "a b@c", " a@b", "a@b\n", "a@b\nBcc: c@d", "a,b@c", "a@b,c", "<a@b>", "x:a@b"),
            *("a\x00@b", "a" * 65 + "@b", "a@" + "b" * 191),
        ],
    )
    def test_no_email_address(self, email: str) -> None:
        assert reachable({"email": email}) == "not a usable address: email"

    def test_a_message_to_too_many_is_not_taken_for_one_to_nobody(self) -> None:
        """Fifty-one good addresses completed as skipped: not a usable address."""
        several = [f"a{n}@example.org" for n in range(RECIPIENTS_LIMIT + 1)]
        assert reachable({"email": several[1:]}) == ("email", tuple(several[1:]))
        with pytest.raises(Fail, match=r"^email: 51 addresses; expected at most 50$"):
            reachable({"email": several, "phone": "112"})

    @pytest.mark.parametrize(
        "phone", ["1", "12", "+", "abc", "1" * 21, "++123", "123;456", "123\n", "\uff11\uff12\uff13"]
    )
    def test_no_phone_number(self, phone: str) -> None:
        assert reachable({"phone": phone}) == "not a usable address: phone"


class TestRender:
    def test_without_a_name_the_default_text_still_greets(self) -> None:
        for payload in ({}, {"name": None}, {"name": ""}):
            assert render(payload)[1].startswith("Hello there, ")

    def test_a_subject_stays_one_line_whatever_is_put_in(self) -> None:
        assert render({"subject": "Hi {name}", "name": "Ann\r\nBcc: b@example.org"})[0] == "Hi Ann Bcc: b@example.org"

    @pytest.mark.parametrize(
        ("template", "text"),
        [
            ("", ""),
            ("plain", "plain"),
            ("{a}", "A"),
            ("{a}{b}{a}", "A2A"),
            ("{a} and\n{_c1}", "A and\n0.5"),
            ("{{a}} is {a}", "{a} is A"),
            ("}}{{", "}{"),
            ("{{{a}}}", "{A}"),
            ("{braces}", "{a}"),
        ],
    )
    def test_fills_placeholders_once(self, template: str, text: str) -> None:
        assert fill("text", template, {"a": "A", "b": 2, "_c1": 0.5, "braces": "{a}"}) == text

    @pytest.mark.parametrize(
        "template",
        ["{", "}", "a { b", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9999999999}", "{ a }", "{a", "{a}}", "{ä}"],
    )
    def test_a_brace_that_is_no_placeholder_is_refused(self, template: str) -> None:
        with pytest.raises(Fail, match=r"^text: a single '[{}]'; a placeholder is \{name\}"):
            fill("text", template, {"a": "A"})

    @pytest.mark.parametrize(
        ("value", "found"), [(True, "bool"), (None, "NoneType"), ([1], "list"), ({"b": 1}, "dict"), (..., "ellipsis")]
    )
    def test_only_text_and_numbers_are_put_in(self, value: object, found: str) -> None:
        with pytest.raises(
            Fail, match=rf"^subject: \{{a\}} needs text or a number in the payload, but there is {found}$"
        ):
            fill("subject", "{a}", {"a": value})

    @pytest.mark.parametrize(("field", "value"), [("subject", 5), ("text", None), ("text", ["a"])])
    def test_a_template_that_is_no_text_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(Fail, match=rf"^{field}: expected text, not "):
            render({field: value})

    def test_placeholders_cannot_multiply_a_payload_without_end(self) -> None:
        values = {"a": "x" * 1000}
        assert len(fill("text", "{a}" * 65, values)) == 65_000 <= RENDERED_LIMIT_CHARACTERS
        with pytest.raises(Fail, match="text: longer than 65536 characters once filled in"):
            fill("text", "{a}" * 20_000, values)


class TestOutbox:
    async def test_logs_one_line_with_the_recipient_masked_and_without_the_text(self, tmp_path: Path) -> None:
        message = a_message(to=("ann@example.org",), subject="secret subject", text="secret text")
        with capture_logs() as lines:
            await write_to_outbox(tmp_path, message)
        file = str(tmp_path / file_name("a:b:1"))
        assert lines == [
            {
                "log_level": "info",
                "event": "message in the outbox",
                "channel": "email",
                "to": "a***@example.org",
                "file": file,
            }
        ]

    async def test_writes_off_the_event_loop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writers: list[threading.Thread] = []
        monkeypatch.setattr(os, "fsync", lambda _: writers.append(threading.current_thread()))
        await write_to_outbox(tmp_path, a_message())
        assert [writer is threading.main_thread() for writer in writers] == [False]

    async def test_a_reader_never_sees_half_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file gets its name only when it is complete and on disk; until then readers see the old one."""
        await write_to_outbox(tmp_path, a_message(text="first"))
        seen: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda _: seen.extend(m["text"] for m in sent(tmp_path)))
        await write_to_outbox(tmp_path, a_message(text="second"))
        assert seen == ["first"]
        assert [m["text"] for m in sent(tmp_path)] == ["second"]
        assert [path.name for path in tmp_path.iterdir()] == [file_name("a:b:1")]

    async def test_a_write_that_fails_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            await write_to_outbox(tmp_path, a_message())
        assert list(tmp_path.iterdir()) == []

    async def test_makes_the_folder_and_its_parents(self, tmp_path: Path) -> None:
        await write_to_outbox(tmp_path / "a" / "b", a_message())
        assert len(sent(tmp_path / "a" / "b")) == 1


class TestFileName:
    def test_shows_the_key(self) -> None:
        assert file_name("send-message:user-42:1").startswith("send-message_user-42_1-")

    def test_different_keys_have_different_names_also_where_case_does_not_count(self) -> None:
        longest = f"{'p' * 64}:{'i' * 199}"
        keys = ["a:b:1", "a:B:1", "a:b_1:1", "a:b:11", "a_b:1", "a:@:1", "a:~:1", f"{longest}a:1", f"{longest}b:1"]
        assert len({file_name(key).lower() for key in keys}) == len(keys)

    def test_is_safe_for_every_key(self) -> None:
        for key in ("a:../../etc/passwd:1", f"{'p' * 64}:{'i' * 200}:{10**15}", "a:x~=+@:1", "a:b\\c\0:1"):
            name = file_name(key)
            assert len(name) <= 143  # the lowest limit of a common file system, ecryptfs
            assert all(character.isalnum() or character in "._-" for character in name)
            assert not name.startswith(".")


@pytest.mark.parametrize(
    ("address", "shown"), [("ann@example.org", "a***@example.org"), ("+4930123456", "***56"), ("@x", "***@x")]
)
def test_a_masked_address_does_not_give_the_user_away(address: str, shown: str) -> None:
    assert masked(address) == shown


class TestSettings:
    async def test_a_worker_whose_environment_would_not_do_for_the_api_sends_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`timers serve --roles worker` starts with it."""
        for name in [name for name in os.environ if name.startswith("TIMERS_")]:
            monkeypatch.delenv(name)
        monkeypatch.chdir(tmp_path)  # a folder without .env
        monkeypatch.setenv("TIMERS_HTTP_HOST", "0.0.0.0")
        monkeypatch.setenv("TIMERS_OUTBOX", str(tmp_path / "outbox"))
        async with Sending.opened() as sending:
            await run(send_message, signup({"email": "ann@example.org"}), sending)
        assert len(sent(tmp_path / "outbox")) == 1
