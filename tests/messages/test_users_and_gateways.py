"""Looking up users when a message is due, and sending messages through an HTTP gateway."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.unit.samples import a_timer, run
from tests.webhooks.receivers import Receiver, receiving
from timers import Done, Fail, Retry
from timers.processor import Result
from timers.settings import Settings
from timers_processors.send_message import Sending, send_message


async def send(payload: Any, **given: Any) -> Result:
    """Run the processor on a pod with these settings, and return its result."""
    async with Sending.opened(Settings(**given)) as sending:
        return await run(send_message, a_timer(prefix="send-message", spec={"payload": payload}), sending)


def outbox(folder: Path) -> dict[str, Any]:
    """The message that was sent."""
    (path,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


async def looked_up(answer: web.Response, folder: Path, **payload: Any) -> tuple[Result, Receiver]:
    async with receiving(answer) as users:
        result = await send({"user": "a/b?c", **payload}, user_url=f"{users.url}/users/{{user}}?full=1", outbox=folder)
    return result, users


class TestUser:
    async def test_is_looked_up_when_the_message_is_due(self, tmp_path: Path) -> None:
        known = web.json_response({"email": "new@example.org", "name": "Ann", "text": "not this", "verified": False})
        result, users = await looked_up(known, tmp_path, email="old@example.org", text="Hello {name}")
        assert "not sent" in str(result)
        assert [(got.method, got.path) for got in users.received] == [("GET", "/users/a%2Fb%3Fc?full=1")]
        assert (outbox(tmp_path)["to"], outbox(tmp_path)["text"]) == ("new@example.org", "Hello Ann")

    async def test_half_a_character_in_a_users_name_kept_them_from_their_message(self, tmp_path: Path) -> None:
        known = web.Response(text='{"email": "new@example.org", "name": "Ann \\ud83d"}')
        await looked_up(known, tmp_path, subject="{name}", text="Hello {name}")
        assert (outbox(tmp_path)["subject"], outbox(tmp_path)["text"]) == ("Ann ?", "Hello Ann ?")

    @pytest.mark.parametrize("status", [404, 410])
    async def test_a_user_who_has_left_is_skipped(self, tmp_path: Path, status: int) -> None:
        result, _ = await looked_up(web.Response(status=status), tmp_path, email="old@example.org")
        assert result == Done("skipped: the user has left")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("known", "why"),
        [
            ({"verified": True}, "the user is verified"),
            ({"verified": "2026-11-21"}, "the user is verified"),
            ({"unsubscribed": True}, "the user is unsubscribed"),
            ({"deleted": True}, "the user is deleted"),
            ({"left": True}, "the user has left"),
            ({"active": False}, "the user has left"),
        ],
    )
    async def test_one_that_needs_no_message_any_more_is_skipped(
        self, tmp_path: Path, known: dict[str, Any], why: str
    ) -> None:
        result, _ = await looked_up(web.json_response({"email": "ann@example.org", **known}), tmp_path)
        assert result == Done(f"skipped: {why}")
        assert list(tmp_path.iterdir()) == []

    async def test_the_payload_may_say_who_is_skipped(self, tmp_path: Path) -> None:
        known = {"email": "ann@example.org", "verified": True, "paid": True}
        result, _ = await looked_up(web.json_response(known), tmp_path, unless=[])
        assert "not sent" in str(result)
        result, _ = await looked_up(web.json_response(known), tmp_path, unless=["paid"])
        assert result == Done("skipped: the user is paid")

    @pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 503])
    async def test_a_missing_endpoint_is_not_taken_for_a_missing_user(self, tmp_path: Path, status: int) -> None:
        with pytest.raises(Retry, match=f"answered {status}"):
            await looked_up(web.Response(status=status), tmp_path, email="old@example.org")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("body", ["", "[]", "nonsense", '"Ann"', '{"a": "' + "x" * 70_000 + '"}'])
    async def test_an_answer_that_is_no_object_is_tried_again(self, tmp_path: Path, body: str) -> None:
        with pytest.raises(Retry, match="did not answer with a JSON object"):
            await looked_up(web.Response(text=body), tmp_path)

    @pytest.mark.parametrize("user", [True, {"id": 5}, "", "x" * 201])
    async def test_a_payload_without_a_valid_user_is_refused(self, user: Any) -> None:
        with pytest.raises(Fail, match=r"^user: expected a number, or text"):
            await send({"user": user}, user_url="https://users.example/{user}")

    @pytest.mark.parametrize("user", [".", ".."])
    async def test_a_user_that_would_lead_to_another_path_is_refused(self, tmp_path: Path, user: str) -> None:
        async with receiving(web.json_response({})) as users:
            with pytest.raises(Fail, match=r"^user: '\.+' is not accepted; expected a name"):
                await send({"user": user}, user_url=f"{users.url}/users/{{user}}", outbox=tmp_path)
        assert users.received == []

    async def test_conditions_that_are_not_a_list_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Fail, match=r"^unless: expected a list"):
            await looked_up(web.json_response({}), tmp_path, unless="verified")

    async def test_without_an_address_to_ask_the_payload_stands(self, tmp_path: Path) -> None:
        assert "not sent" in str(await send({"user": 5, "email": "ann@example.org"}, outbox=tmp_path))


class TestGateway:
    async def test_a_text_message_is_posted(self) -> None:
        async with receiving(web.Response(status=202, text="queued")) as gateway:
            given = {"sms_url": gateway.url.replace("://", "://key:secret@") + "/messages"}
            result = await send({"phone": "+4930123456", "text": "Hi {name}", "name": "Ann"}, **given)
        (got,) = gateway.received
        assert (got.method, got.path) == ("POST", "/messages")
        assert json.loads(got.body) == {
            "to": "+4930123456",
            "channel": "phone",
            "subject": "Welcome",
            "text": "Hi Ann",
            "idempotency_key": f"send-message:user-42:{a_timer().created_ms}:1",
            "token": 7,
        }
        assert got.headers["Idempotency-Key"] == f"send-message:user-42:{a_timer().created_ms}:1"
        assert got.headers["Authorization"].startswith("Basic ")
        assert result == Done(f"sent by phone: 127.0.0.1:{gateway.port} answered 202 Accepted: queued")

    async def test_push_leaves_by_the_same_gateway(self) -> None:
        async with receiving() as gateway:
            await send({"push": "device-1"}, sms_url=gateway.url)
        assert json.loads(gateway.received[0].body)["channel"] == "push"

    async def test_permanent_refusals_are_final_and_temporary_ones_are_tried_again(self) -> None:
        for status, expected in ((400, Fail), (401, Retry), (429, Retry), (500, Retry)):
            async with receiving(web.Response(status=status)) as gateway:
                with pytest.raises(expected, match=f"answered {status}"):
                    await send({"phone": "112"}, sms_url=gateway.url)

    async def test_a_gateway_goes_before_the_outbox(self, tmp_path: Path) -> None:
        async with receiving() as gateway:
            await send({"email": "ann@example.org", "phone": "112"}, sms_url=gateway.url, outbox=tmp_path)
            assert list(tmp_path.iterdir()) == []
            result = await send({"email": "ann@example.org"}, sms_url=gateway.url, outbox=tmp_path)
        assert [json.loads(got.body)["channel"] for got in gateway.received] == ["phone"]
        (file,) = tmp_path.iterdir()
        assert result == Done(f"written to {file}, not sent")

    async def test_with_a_gateway_alone_a_user_is_reached_by_phone_or_the_timer_fails(self) -> None:
        async with receiving() as gateway:
            with pytest.raises(Fail, match=r"^TIMERS_SMTP_URL is not set"):
                await send({"email": "ann@example.org"}, sms_url=gateway.url)
        assert gateway.received == []
