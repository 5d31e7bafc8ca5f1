"""Owns sending hooks and alarms, in order, as calls, mail or commands."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from yarl import URL

from timers import Context, Done, Fail, NotFound, Processor, Retry, Timer, processor
from timers.processor import Lifespan
from timers.settings import Settings, load_worker_settings
from timers_processors.calling import Call, HttpClient, accepted
from timers_processors.send_message import Sending
from timers_processors.targets import Target, Targets
from timers_processors.transport import Message, masked
from timers_processors.webhook import CALL_SECONDS, RETRY, as_json, connections, signed

SOON_SECONDS: Final = 0.1
"""A call that waits for an earlier one looks again this long after the earlier one's next try."""

EXEC_SECONDS: Final = 30.0

AT_ONCE: Final = 20
"""Calls that a pod makes to one target at a time."""

Send = Callable[[Timer, Context[Any]], Awaitable[Done]]


def processors(settings: Settings | None = None) -> Iterator[Processor]:
    """One processor for each URL in TIMERS_HOOKS and each target in TIMERS_ALARMS. Their calls share connections."""
    settings = settings or load_worker_settings()
    opened, given = connections(settings), [*(url for _, url in settings.hooks), *settings.alarms]
    targets = {hook.prefix: target for hook, target in zip(settings.requested_hooks, given, strict=True)}
    for prefix, target in targets.items():
        yield _processor(settings, opened, prefix, target.get_secret_value())


def _processor(settings: Settings, opened: Lifespan[HttpClient], prefix: str, target: str) -> Processor:
    kind, _, rest = target.partition(":")
    if kind == "mailto":
        return _sending(prefix, masked(rest), partial(_mail, rest), partial(Sending.opened, settings))
    if kind == "exec":
        return _sending(prefix, rest, partial(_execute, rest), None)
    url = URL(target)
    return _sending(prefix, url.host_port_subcomponent or "", partial(_call, settings, url), opened)


def _sending(prefix: str, shown: str, send: Send, lifespan: Lifespan[Any] | None) -> Processor:
    """The processor of a target. `shown` names the target in `timers config`, because the prefix is only a digest."""

    targets, target = Targets(), Target()

    @processor(prefix, retry=RETRY, timeout=CALL_SECONDS + 5, lifespan=lifespan, pod_concurrency=AT_ONCE)
    async def outgoing(timer: Timer, context: Context[Any]) -> Done:
        if not isinstance(timer.payload, Mapping) or "body" not in timer.payload:
            raise Fail("payload: only the service makes these timers")
        await in_turn(timer, context)
        with targets.holding_off(target):
            return await send(timer, context)

    outgoing.function.__qualname__ = shown
    return outgoing


async def in_turn(timer: Timer, context: Context[Any]) -> None:
    """Raises a snooze until the call before this one has ended, successfully or not."""
    before = timer.payload.get("after")
    try:
        earlier = None if before is None else await context.timers.get(timer.prefix, before)
    except NotFound:
        return
    if earlier is not None and not earlier.status.finished:
        later = (earlier.due_ms - timer.updated_ms) / 1000 + SOON_SECONDS  # by Redis' clock: this run began then
        raise Retry(f"the previous call has not ended: {before}", after=max(later, SOON_SECONDS), snooze=True)


async def _call(settings: Settings, url: URL, timer: Timer, context: Context[HttpClient]) -> Done:
    """Call the URL, signed with the keys for the prefix of the timer that the call is about. No caller has a part in
    what hooks say, so a 4xx refuses this pod, as while secrets are replaced."""
    call = Call("POST", url, *as_json(timer.payload["body"]))
    keys = settings.hook_keys(timer.payload.get("prefix", timer.prefix))
    return Done(accepted(call, await signed(call, "hook", keys, context), fails_on_4xx=False))


async def _mail(to: str, timer: Timer, context: Context[Sending]) -> Done:
    data = timer.payload["body"]["data"]
    message = Message((to,), "email", f"[timers] {data['text']}", as_text(data), context.idempotency_key, context.token)
    return Done(await context.state.by_channel["email"](message))


def as_text(data: Mapping[str, Any]) -> str:
    """The alarm as text for people."""
    lines = [data["text"], f"since {data['since']}"]
    lines += [f"{prefix}: {count:,}" for prefix, count in sorted(data["prefixes"].items(), key=lambda of: -of[1])]
    for each in data["newest"]:
        named = f"{each['prefix']}:{each['id']}: " if "id" in each else ""
        lines += ["", f"{named}{each['note']}", *([each["url"]] if each.get("url") else [])]
    return "\n".join([*lines, *(["", data["url"]] if data["url"] else [])])


async def _execute(path: str, timer: Timer, _context: Context[Any]) -> Done:
    """Run the command with the alarm on its standard input, without the service's settings in its environment. It must
    exit with 0. If it does not end in time, it is killed with all that it has started."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
    quiet = asyncio.subprocess.DEVNULL
    command = await asyncio.create_subprocess_exec(
        path, stdin=asyncio.subprocess.PIPE, stdout=quiet, stderr=quiet, env=environ, start_new_session=True
    )
    try:
        async with asyncio.timeout(EXEC_SECONDS):
            await command.communicate(as_json(timer.payload["body"])[1])
    except TimeoutError:
        raise Retry(f"{path} did not end within {EXEC_SECONDS:g} s") from None
    finally:
        if command.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            await command.wait()
    if command.returncode != 0:
        raise Retry(f"{path} ended with {command.returncode}")
    return Done(f"{path} ended with 0")
