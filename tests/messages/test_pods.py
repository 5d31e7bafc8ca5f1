"""The reminder after a signup on a real pod: a verified user gets none, others get one mail, even after a refusal."""

import pytest
from aiohttp import web

from tests.engine.fleet import Fleet, notes
from tests.messages.mailbox import mailbox
from tests.waiting import eventually
from tests.webhooks.receivers import receiving
from timers import RetryPolicy
from timers_processors.send_message import send_message


async def test_a_user_who_verified_gets_no_reminder_and_another_gets_it_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = web.json_response({"email": "ann@example.org", "verified": True})
    waiting = web.json_response({"email": "bob@example.org", "name": "Bob"})
    async with mailbox() as box, receiving(verified, waiting) as users:
        monkeypatch.setenv("TIMERS_SMTP_URL", f"smtp://localhost:{box.port}")
        monkeypatch.setenv("TIMERS_MAIL_FROM", "shop@example.org")
        monkeypatch.setenv("TIMERS_USER_URL", f"{users.url}/{{user}}")
        await fleet.pod(send_message)
        prefix = "send-message-24h-after-signup"
        await fleet.client.create(prefix, "ann", delay=0, payload={"user": "ann"})
        skipped = await fleet.completed("ann", prefix)
        box.refusals = {"MAIL": "451 not now"}
        retry = RetryPolicy(backoff="fixed", base="1ms", max_attempts=1000)
        await fleet.client.create(prefix, "bob", delay=0, payload={"user": "bob"}, retry=retry)

        async def refused() -> bool:
            return (await fleet.client.get(prefix, "bob")).failures > 0

        await eventually(refused, "the server has refused it")
        box.refusals = {}
        sent = await fleet.completed("bob", prefix)
    assert notes(skipped)[-1] == "skipped: the user is verified"
    assert notes(sent)[-1] == "sent by email"
    assert any("refused: 451 not now" in note for note in notes(sent))
    assert box.recipients == [["bob@example.org"]]
