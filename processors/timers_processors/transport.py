"""Owns what a message is and how it is sent: by mail, or through a gateway for text messages and push. Without either,
it is written to the outbox, or fails."""

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from email.headerregistry import BaseHeader, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from email.policy import EmailPolicy, Policy
from email.utils import formatdate, parseaddr
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPNotSupported,
    SMTPRecipientsRefused,
    SMTPResponse,
    SMTPSenderRefused,
)
from yarl import URL

from timers import ConfigurationError, Fail, Retry
from timers.logs import get_logger
from timers_processors.calling import Call, HttpClient, accepted, digest
from timers_processors.targets import Targets, Unanswered

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


CONNECTIONS: Final = 10
IDLE_SECONDS: Final = 20.0
"""How long an unused connection is kept. Servers close idle connections after some minutes, some after 30 seconds."""

ANSWER_SECONDS: Final = 10.0
LOGIN_WANTED: Final = 530
"""A refusal of this pod, not of the message: its TIMERS_SMTP_URL has no account yet."""

_START_TLS: Final = {"require": True, "if-offered": None, "never": False}


class SmtpTransport:
    """Sends mail through one server over at most CONNECTIONS connections, which are kept for the next message."""

    def __init__(
        self, url: str, mail_from: str, targets: Targets | None = None, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """`url` is as in TIMERS_SMTP_URL."""
        self._idle_seconds = idle_seconds
        self._options, self._from = _options(url), mail_from
        self._name = f"{self._options['hostname']}:{self._options['port']}"
        self._targets = targets or Targets(at_once=CONNECTIONS)
        self._tls = ssl.create_default_context()
        self._idle: list[tuple[float, SMTP]] = []

    async def send(self, message: Message) -> str:
        """Send the message. Says so, and who was refused, if anybody. Raises Fail if the message is refused for good,
        and Retry for any other failure."""
        mail = as_mail(message, self._from)
        async with self._targets.turn(self._name):
            try:
                async with self._connection() as connection:
                    refused, _ = await connection.send_message(mail, recipients=list(message.to))
            except SMTPRecipientsRefused as error:
                refused = {each.recipient: SMTPResponse(each.code, each.message) for each in error.recipients}
                raise _refusal(refused) from None
            except (SMTPSenderRefused, SMTPDataError) as error:
                raise _ended(error.code, f"{error.code} {error.message}") from None
            except SMTPNotSupported as error:
                raise Fail(f"{self._name} cannot take this message: {error.message}") from None
            except (SMTPException, OSError) as error:
                raise Unanswered(f"{type(error).__name__}: {error}") from error
        if any(answer.code < 500 for answer in refused.values()):
            raise _refusal(refused)
        return f"sent by email: {_said(refused)}" if refused else "sent by email"

    async def close(self) -> None:
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[SMTP]:
        """A connection that nobody else uses meanwhile. Afterwards it is kept for the next message, unless it
        failed."""
        connection = await self._kept() or await self._made()
        try:
            yield connection
        except (SMTPRecipientsRefused, SMTPSenderRefused, SMTPDataError):
            self._keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(connection)

    async def _kept(self) -> SMTP | None:
        """An idle connection that was used recently and still answers."""
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < self._idle_seconds:
                try:
                    await connection.rset()
                except (SMTPException, OSError):
                    pass
                else:
                    return connection
            connection.close()
        return None

    async def _made(self) -> SMTP:
        made = SMTP(**self._options, timeout=ANSWER_SECONDS, tls_context=self._tls)
        try:
            await made.connect()
        except BaseException as error:
            made.close()
            if isinstance(error, SMTPNotSupported | SMTPAuthenticationError):
                # The server refuses this pod, not the message, and may lock an account whose password is often wrong.
                raise Unanswered(f"{type(error).__name__}: {error.message}") from None
            raise
        return made

    def _keep(self, connection: SMTP) -> None:
        if connection.is_connected:
            self._idle.append((time.monotonic(), connection))


UNSUBSCRIBE: Final = "List-Unsubscribe"


class _Unfolded(UnstructuredHeader, BaseHeader):
    """A header in one line. The email package would break a long address into encoded words (RFC 2047), which mail
    programs read only in texts."""

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self}{policy.linesep}"


_HEADERS: Final = HeaderRegistry()
_HEADERS.map_to_type(UNSUBSCRIBE, _Unfolded)
_POLICY: Final = EmailPolicy(header_factory=_HEADERS)


def as_mail(message: Message, mail_from: str) -> EmailMessage:
    """The message as it is sent. Every try of an occurrence has the same Message-ID, so that mailboxes show it once."""
    mail = EmailMessage(_POLICY)
    mail["From"], mail["To"], mail["Subject"] = mail_from, ", ".join(message.to), _undecodable(message.subject)
    mail["Date"] = formatdate(localtime=False, usegmt=True)
    mail["Message-ID"] = f"<{digest(message.idempotency_key)}@{parseaddr(mail_from)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    if message.unsubscribe is not None:
        mail[UNSUBSCRIBE] = f"<{message.unsubscribe}>"
        if message.unsubscribe.startswith("https://"):
            mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    mail.set_content(message.text)
    if message.html is not None:
        mail.add_alternative(message.html, subtype="html")
    return mail


def _undecodable(text: str) -> str:
    """The text without encoded words (RFC 2047). The email package of Python 3.11 and 3.12 decodes them, and a line
    break in one would begin another header, or the body."""
    return text.replace("=?", "= ?") if "=?" in text and "?=" in text else text


def _options(url: str) -> dict[str, Any]:
    """Where and how to connect. STARTTLS is required if the URL has a password, unless the URL says otherwise."""
    parts = urlsplit(url)
    implicit, account = parts.scheme == "smtps", parts.username is not None
    mode = parse_qs(parts.query).get("starttls", ["require" if account else "if-offered"])[0]
    return {
        "hostname": parts.hostname,
        "port": parts.port or (465 if implicit else 587 if account else 25),
        "username": unquote(parts.username or "") or None,
        "password": unquote(parts.password or "") or None,
        "use_tls": implicit,
        "start_tls": False if implicit else _START_TLS[mode],
    }


def _refusal(refused: dict[str, SMTPResponse]) -> Fail | Retry:
    """Retry if at least one of the refusals is temporary, else Fail. On the next try, recipients who already have the
    message get it again with the same Message-ID."""
    return _ended(min(answer.code for answer in refused.values()), _said(refused))


def _ended(code: int, said: str) -> Fail | Retry:
    text = f"the mail server refused: {said}"
    return Fail(text) if code >= 500 and code != LOGIN_WANTED else Retry(text)


def _said(refused: dict[str, SMTPResponse]) -> str:
    """Servers quote the address that they refuse."""
    return "; ".join(
        f"{masked(to)} refused: {answer.code} {answer.message.replace(to, masked(to))}"
        for to, answer in refused.items()
    )
