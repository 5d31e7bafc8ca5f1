"""Owns the web app: `POST /signup` arms the reminder, `POST /verify/{user}` cancels it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from signup import users
from signup.reminders import DAY_SECONDS
from timers import NotFound, NotScheduled, Running, TimerClient, Unavailable

TIMERS: Final = web.AppKey("timers", TimerClient)


def make_app(_arguments: list[str] | None = None) -> web.Application:
    """The app, as `python -m aiohttp.web signup.app:make_app` wants it."""
    app = web.Application(middlewares=[_say_away])
    app.cleanup_ctx.append(_client)
    app.add_routes([web.post("/signup", sign_up), web.post("/verify/{user}", verify)])
    return app


async def _client(app: web.Application) -> AsyncIterator[None]:
    async with TimerClient() as app[TIMERS]:  # TIMERS_REDIS_URL, else the server of `timers dev` in this folder
        yield


@web.middleware
async def _say_away(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Unavailable:  # Redis is away; every call here can be repeated
        raise web.HTTPServiceUnavailable(text="try again soon", headers={"Retry-After": "1"}) from None


async def sign_up(request: web.Request) -> web.Response:
    """Keep the user and arm the reminder. A client that got no answer may ask again: neither is done twice."""
    given = await request.json()
    await asyncio.to_thread(users.add, given["user"], given["email"])
    timer = await request.app[TIMERS].create("signup-reminder", given["user"], delay=DAY_SECONDS, if_exists="keep")
    return web.json_response({"user": timer.id, "reminder": timer.due_at.isoformat()}, status=201)


async def verify(request: web.Request) -> web.Response:
    """The link in the message: the user is verified, and the reminder is cancelled."""
    user = request.match_info["user"]
    if not await asyncio.to_thread(users.verify, user):
        raise web.HTTPNotFound(text="no such user")
    # A reminder that runs just now cannot be cancelled. Its next occurrence sees that the user is verified, and ends.
    with suppress(NotFound, NotScheduled, Running):
        await request.app[TIMERS].cancel("signup-reminder", user)
    return web.json_response({"user": user, "verified": True})
