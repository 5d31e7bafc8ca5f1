"""Owns what a message is, how it is sent through a gateway, and what happens without one: it is written to the outbox,
or fails."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Final, Literal

from yarl import URL

from timers import ConfigurationError, Fail
from timers.logs import get_logger
from timers_processors.calling import Call, HttpClient, accepted, digest

Channel = Literal["email", "phone", "push"]

GATEWAY_SECONDS: Final = 15.0
UNAUTHORIZED: Final = 401

_log = get_logger("timers_processors.transport")


@dataclass(frozen=True, slots=True)
class Message:
    """A rendered message. `to` has several addresses only for email. `idempotency_key` is the same on every try of one
    occurrence, and `token` grows with each try. A receiver that remembers either never delivers twice."""

    to: tuple[str, ...]
    channel: Channel
    subject: str
    text: str
    idempotency_key: str
    token: int
    html: str | None = None
    unsubscribe: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The message for the outbox or a gateway, without the optional fields that are not set."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {**given, "to": ", ".join(self.to)}


Send = Callable[[Message], Awaitable[str]]
"""Sends a message. Returns when it is accepted, with a note for the history. Raises Fail if another try would not help;
after any other exception the message is tried again."""

_GATEWAYS: Final[Mapping[Channel, str]] = MappingProxyType(
    {"email": "TIMERS_SMTP_URL", "phone": "TIMERS_SMS_URL", "push": "TIMERS_SMS_URL"}
)


async def no_gateway(message: Message) -> str:
    """Raises Fail with the setting that this pod lacks."""
    raise Fail(
        f"{_GATEWAYS[message.channel]} is not set on this pod, so nothing is sent by {message.channel} "
        "(TIMERS_OUTBOX would write messages to a folder)"
    )


def check_outbox(folder: Path) -> None:
    """Raise ConfigurationError if this user may neither write to the folder nor make it."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        rule = "expected a folder that this user can write to"
        raise ConfigurationError(f"TIMERS_OUTBOX: {str(folder)!r} is not accepted; {rule}")


async def write_to_outbox(folder: Path, message: Message) -> str:
    """Write the message as a JSON file into the folder, which is made if needed, and log it. Returns when the file is
    on the disk. Raises OSError if it cannot be written.

    The file appears whole or not at all. Its name follows from the idempotency key, so a second try replaces the file
    of the first.
    """
    path = folder / file_name(message.idempotency_key)
    await asyncio.to_thread(_write, path, json.dumps(message.to_json(), ensure_ascii=False, indent=2))
    shown = ", ".join(map(masked, message.to))
    _log.info("message in the outbox", channel=message.channel, to=shown, file=str(path))
    return f"written to {path}, not sent"


async def post_to_gateway(url: URL, caller: HttpClient, message: Message) -> str:
    """Post the message as JSON to a gateway for text messages and push, and say what it answered. Raises Fail
    for a 4xx but 401, and Retry for anything that may pass."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": message.idempotency_key}
    call = Call("POST", url, headers, json.dumps(message.to_json(), ensure_ascii=False).encode())
    answer = await caller.call(call, GATEWAY_SECONDS)
    # A 401 refuses this pod, not the message: its password is about to be replaced.
    return f"sent by {message.channel}: {accepted(call, answer, fails_on_4xx=answer.status != UNAUTHORIZED)}"


_READABLE_CHARACTERS: Final = 100


def file_name(idempotency_key: str) -> str:
    """A file name for the key that is safe on every file system. It begins with the readable part of the key and ends
    with 128 bits of its SHA-256, because keys may be longer than a file name, and may differ only in case."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", idempotency_key)[:_READABLE_CHARACTERS]
    return f"{readable}-{digest(idempotency_key)}.json"


def masked(address: str) -> str:
    """The recipient as a log may show it: `a***@example.org`, or the last two characters of anything else."""
    local, at, domain = address.rpartition("@")
    return f"{local[:1]}***@{domain}" if at else f"***{address[-2:]}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
