"""A real mail server on loopback: what it accepts and refuses, and what it saw of its clients."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


@dataclass
class Mailbox:
    """A server's mail. `refusals` are answers by address, or for the commands `MAIL` and `DATA`."""

    port: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    mails: list[EmailMessage] = field(default_factory=list)
    as_sent: list[bytes] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    connections: int = 0
    encrypted: list[bool] = field(default_factory=list)
    transports: list[asyncio.BaseTransport] = field(default_factory=list)

    async def handle_MAIL(self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _: Any) -> str:  # noqa: N802
        envelope.mail_from = address
        return self.refusals.get("MAIL", "250 OK")

    async def handle_RCPT(self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _: Any) -> str:  # noqa: N802
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if "DATA" in self.refusals:
            return self.refusals["DATA"]
        content = cast("bytes", envelope.original_content)
        self.as_sent.append(content)
        self.mails.append(message_from_bytes(content, policy=policy.default))
        self.recipients.append(list(envelope.rcpt_tos))
        self.encrypted.append(session.ssl is not None)
        return "250 OK"

    def drop_connections(self) -> None:
        """Drop connections, as a server does after a timeout or at a restart."""
        for transport in self.transports:
            transport.close()

    def only(self) -> EmailMessage:
        """The only mail that came."""
        (mail,) = self.mails
        return mail

    def only_as_sent(self) -> bytes:
        """The only mail that came, as the client sent it."""
        (content,) = self.as_sent
        return content


class _Server(SMTP):
    """Counts its connections."""

    def __init__(self, mailbox: Mailbox, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that a password without TLS is a bad idea
            super().__init__(mailbox, enable_SMTPUTF8=True, **options)
        self._mailbox = mailbox

    def connection_made(self, transport: Any) -> None:
        if self.session is None:
            self._mailbox.connections += 1
            self._mailbox.transports.append(transport)
        super().connection_made(transport)


@asynccontextmanager
async def mailbox(
    *, account: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None, implicit: bool = False
) -> AsyncIterator[Mailbox]:
    """Run a mail server. With `context` it has STARTTLS, or TLS from the start. With an account it takes no mail from
    anybody else."""
    made = Mailbox()

    def check(_server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        right = account is not None and (given.login.decode(), given.password.decode()) == account
        return AuthResult(success=right, handled=False)

    options: dict[str, Any] = {"tls_context": None if implicit else tls, "auth_require_tls": False}
    if account is not None:
        options |= {"authenticator": check, "auth_required": True}
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: _Server(made, loop=loop, **options), "127.0.0.1", 0, ssl=tls if implicit else None
    )
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        made.drop_connections()
