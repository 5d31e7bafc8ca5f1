"""Owns mail: builds the message, keeps connections open, and decides which refusals are permanent."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Any, Final
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

from timers import Fail, Retry
from timers_processors.calling import digest
from timers_processors.targets import Targets, Unanswered
from timers_processors.transport import Message, masked

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


def as_mail(message: Message, mail_from: str) -> EmailMessage:
    """The message as it is sent. Every try of an occurrence has the same Message-ID, so that mailboxes show it once."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = mail_from, ", ".join(message.to), _undecodable(message.subject)
    mail["Date"] = formatdate(localtime=False, usegmt=True)
    mail["Message-ID"] = f"<{digest(message.idempotency_key)}@{parseaddr(mail_from)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    if message.unsubscribe is not None:
        mail["List-Unsubscribe"] = f"<{message.unsubscribe}>"
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
    return "; ".join(f"{masked(to)} refused: {answer.code} {answer.message}" for to, answer in refused.items())
