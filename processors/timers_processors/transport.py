"""Owns how a message leaves: the seam for mail and gateways, and the local transport that writes to an outbox."""

import asyncio
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, Literal, Protocol

import structlog

from timers.settings import load_settings

Channel = Literal["email", "phone"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """A rendered message. `idempotency_key` is the same on every try of one occurrence, `token` grows with each try: a
    receiver that remembers either cannot be made to deliver twice."""

    to: str
    channel: Channel
    subject: str
    text: str
    idempotency_key: str
    token: int


class Transport(Protocol):
    """Hands messages on. A return means accepted; any exception is a failed try, so `send` is called again."""

    async def send(self, message: Message) -> None: ...


@cache
def default_transport() -> Transport:
    """The transport of this process, chosen at the first send; so far there is the outbox alone.

    The settings are read as a worker's, which a process that sends is: rules for the API are not its concern.
    """
    return OutboxTransport(load_settings({**os.environ, "TIMERS_ROLES": "worker"}).outbox)


class OutboxTransport:
    """Writes each message as a JSON file into a folder, made when needed, and says so in the log.

    A file appears whole or not at all. Its name follows from the idempotency key, so that a second try replaces the
    file of the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, message: Message) -> None:
        """Returns when the file is on the disk. Raises OSError where it cannot be written."""
        path = self._folder / file_name(message.idempotency_key)
        await asyncio.to_thread(_write, path, json.dumps(asdict(message), ensure_ascii=False, indent=2))
        _log.info("message in the outbox", channel=message.channel, to=masked(message.to), file=str(path))


_READABLE_CHARACTERS: Final = 100


def file_name(idempotency_key: str) -> str:
    """A file name for the key, safe on every file system: readable as far as that goes, and told apart by 128 bits of
    the key's SHA-256, because keys are longer than a name may be and may differ in upper and lower case alone."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", idempotency_key)[:_READABLE_CHARACTERS]
    return f"{readable}-{hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]}.json"


def masked(address: str) -> str:
    """The recipient as a log may show it: `a***@example.org`, or the last two digits of a phone number."""
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
