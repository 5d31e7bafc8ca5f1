"""The signup example: its web app and two pods as processes, started as its README says."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, UnixConnector
from redis import Redis

from tests.cli.commands import Process, clean_environment
from tests.waiting import eventually
from timers import Status, Timer, TimerClient
from timers.core.durations import DAY_MS
from timers.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
PREFIX = "signup-reminder"

Start = Callable[..., Process]


@dataclass(frozen=True, slots=True)
class Shop:
    """The web app with its pods."""

    folder: Path
    timers: TimerClient
    web: ClientSession

    async def post(self, path: str, **body: str) -> Any:
        async with self.web.post(path, json=body) as answer:
            assert answer.ok, await answer.text()
            return await answer.json()

    async def sign_up(self, user: str) -> Any:
        return await self.post("/signup", user=user, email=f"{user}@example.org")

    def sent_to(self, user: str) -> int:
        """The number of messages that this user has received."""
        messages = [json.loads(path.read_text()) for path in (self.folder / "outbox").glob("*.json")]
        return [message["to"] for message in messages].count(f"{user}@example.org")

    async def got(self, user: str, messages: int) -> None:
        """Wait until the user has this many messages."""

        async def look() -> bool:
            return self.sent_to(user) >= messages

        await eventually(look, f"{user} has {messages} messages")

    async def after(self, user: str, occurrence: int) -> Timer:
        """The user's reminder, once this occurrence has ended."""

        async def look() -> Timer | None:
            timer = await self.timers.get(PREFIX, user)
            ended = timer.occurrence > occurrence or timer.status is Status.COMPLETED
            return timer if ended else None

        return await eventually(look, f"occurrence {occurrence} of {user} has ended")


@asynccontextmanager
async def shop(folder: Path, server: EmbeddedServer, start: Start, **settings: str) -> AsyncIterator[Shop]:
    """The running example. The web app listens on a socket, whose path must be short."""
    settings |= {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "examples" / "signup"))),
        "SIGNUP_DATABASE": str(folder / "users.db"),
        "TIMERS_OUTBOX": str(folder / "outbox"),
        "TIMERS_REDIS_URL": server.url,
    }
    pods = [start("serve", TIMERS_PROCESSORS="signup.reminders", TIMERS_HTTP_PORT="0", **settings) for _ in range(2)]

    async def pods_are_up() -> bool:
        assert all(pod.alive for pod in pods), [pod.err for pod in pods]
        return all('"event": "ready"' in pod.err for pod in pods)

    await eventually(pods_are_up, "both pods are up")
    async with (
        web_app(folder, settings) as connector,
        TimerClient(server.url) as timers,
        ClientSession("http://shop", connector=connector) as web,
    ):
        yield Shop(folder, timers, web)


@asynccontextmanager
async def web_app(folder: Path, settings: dict[str, str]) -> AsyncIterator[UnixConnector]:
    """The web app, and a client for it."""
    with tempfile.TemporaryDirectory(prefix="shop-") as name, (folder / "web.log").open("wb") as log:
        socket = Path(name) / "web"
        app = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiohttp.web", "-U", str(socket), "signup.app:make_app"),
            env=clean_environment(settings),
            stdout=log,
            stderr=log,
        )

        async def app_is_up() -> bool:
            assert app.returncode is None, (folder / "web.log").read_text()
            try:
                _, writer = await asyncio.open_unix_connection(socket)
            except OSError:
                return False
            writer.close()
            await writer.wait_closed()
            return True

        try:
            await eventually(app_is_up, "the web app is up")
            yield UnixConnector(path=str(socket))
        finally:
            app.kill()
            await app.wait()


async def test_who_verifies_gets_no_message_and_another_gets_one_a_week(
    tmp_path: Path, server: EmbeddedServer, redis: Redis, start: Start
) -> None:
    async with shop(tmp_path, server, start) as running:
        for user in ("ada", "bob", "bob"):
            await running.sign_up(user)
        assert (await running.post("/verify/ada")) == {"user": "ada", "verified": True}
        assert (await running.timers.get(PREFIX, "ada")).status is Status.CANCELLED
        armed = await running.timers.get(PREFIX, "bob")
        assert (armed.version, round((armed.due_ms - armed.created_ms) / DAY_MS)) == (1, 1)
        await running.timers.fire(PREFIX, "bob")
        await running.got("bob", 1)
        reminded = await running.after("bob", 1)
        assert (reminded.status, round((reminded.due_ms - reminded.updated_ms) / DAY_MS)) == (Status.SCHEDULED, 7)
        # As if a run had been in progress when bob verified: it could not be cancelled, and re-armed itself.
        await running.post("/verify/bob")
        again = await running.timers.create(PREFIX, "bob", delay=0, if_exists="replace")
        ended = await running.after("bob", again.occurrence)
        assert ended.history[0].note == "nothing to do: verified or gone"
        assert (running.sent_to("ada"), running.sent_to("bob")) == (0, 1)


async def test_a_week_passes_in_seconds_until_the_user_verifies(
    tmp_path: Path, server: EmbeddedServer, redis: Redis, start: Start
) -> None:
    async with shop(tmp_path, server, start, SIGNUP_DAY_SECONDS="0.1") as running:
        await running.sign_up("bob")
        await running.got("bob", 3)
        await running.post("/verify/bob")

        async def has_ended() -> bool:
            timer = await running.timers.get(PREFIX, "bob")
            return timer.status in {Status.CANCELLED, Status.COMPLETED}

        await eventually(has_ended, "the reminder has ended")
