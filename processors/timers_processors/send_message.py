"""Owns the processor `send-message`: when a timer is due, decides who gets a message and what it says, by the payload
or by templates from a folder: `NAME.txt`, and `NAME.html` and `NAME.subject.txt` beside it if they exist."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, select_autoescape
from jinja2.sandbox import ImmutableSandboxedEnvironment
from yarl import URL

from timers import Context, Done, Fail, Retry, Timer, processor
from timers.settings import Settings, load_worker_settings
from timers_processors.calling import ANYWHERE, Call, HttpClient, accepted
from timers_processors.targets import Targets
from timers_processors.transport import (
    UNSUBSCRIBE,
    Channel,
    Message,
    Send,
    SmtpTransport,
    check_outbox,
    no_gateway,
    post_to_gateway,
    write_to_outbox,
)

LOOKUP_SECONDS: Final = 8.0
USER_BYTES: Final = 64 * 1024

UNLESS: Final = ("verified", "unsubscribed", "left", "deleted")
"""A user with one of these fields gets no message, unless the payload says otherwise."""

_GONE: Final = (404, 410)


_JSON: Final = {"Accept": "application/json"}


async def find_user(url: str, caller: HttpClient, user: str | int) -> Mapping[str, Any] | None:
    """Look a user up at a URL with `{user}` in it, such as TIMERS_USER_URL. Returns the user's fields; None if there is
    no such user (any more). Raises Retry if the endpoint gives no usable answer."""
    call = Call("GET", URL(url.replace("{user}", quote(str(user), safe="")), encoded=True), _JSON, b"")
    answer = await caller.call(call, LOOKUP_SECONDS, USER_BYTES)
    if answer.status in _GONE:
        return None
    try:
        accepted(call, answer, fails_on_4xx=False)
        found = json.loads(answer.text)
    except Fail as error:  # a redirect, such as to a page for signing in
        raise Retry(str(error)) from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Retry(f"{call.target} did not answer with a JSON object of at most {USER_BYTES} bytes")
    return found


def reason_to_skip(found: Mapping[str, Any] | None, unless: Iterable[str]) -> str | None:
    """Why the user gets no message; None if they get one."""
    if found is None or found.get("active") is False:
        return "the user has left"
    reason = next((name for name in unless if found.get(name)), None)
    return None if reason is None else "the user has left" if reason == "left" else f"the user is {reason}"


RETRY: Final = {"backoff": ["30s", "2m", "10m", "30m", "1h", "3h"]}
"""Seven tries within five hours. That outlasts a mail server that is down for a while or delays unknown senders
(greylisting)."""

DEFAULT_SUBJECT: Final = "Welcome"
DEFAULT_TEXT: Final = "Hello {name}, welcome! It is good to have you here."
DEFAULT_VALUES: Final = MappingProxyType({"name": "there"})

RENDERED_LIMIT_CHARACTERS: Final = 64 * 1024
"""The same limit as for a payload. Without it, ten thousand placeholders, each for a long value, could multiply the
text."""

TEMPLATE_LIMIT_CHARACTERS: Final = 256 * 1024
"""Mail programs cut a message off beyond about a hundred thousand characters anyway."""

SUBJECT_LIMIT_CHARACTERS: Final = 998
"""The longest line of a mail (RFC 5322). Folding 64 KiB would stand the event loop still for seconds."""

UNSUBSCRIBE_LIMIT_CHARACTERS: Final = SUBJECT_LIMIT_CHARACTERS - len(f"{UNSUBSCRIBE}: <>")
"""What fits into one line of a mail. Looking for encoded words in 64 KiB could stand the event loop still for
seconds."""

RECIPIENTS_LIMIT: Final = 50

_TEMPLATE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9][A-Za-z0-9_-]*)*")
# Excludes everything that a mail header could read as a second recipient or a second line.
_EMAIL = re.compile(r"[^@\s,;:<>()\[\]\\\"]{1,64}@[^@\s,;:<>()\[\]\\\"]{1,190}")
_PHONE = re.compile(r"\+?[0-9](?:[ ()./-]*[0-9]){2,19}")
_PUSH = re.compile(r"[!-~]{1,4096}")
_REACHABLE: Final[Mapping[Channel, re.Pattern[str]]] = MappingProxyType(
    {"email": _EMAIL, "phone": _PHONE, "push": _PUSH}
)
# Excludes encoded words (RFC 2047), too. The email package of Python 3.11 and 3.12 decodes them, line breaks and all.
_UNSUBSCRIBE = re.compile(r"(?!.*=\?.*\?=)(https?://|mailto:)[!-;=?-~]+")


class Templates:
    """The jinja2 templates of a folder. Values are inserted as text, escaped in HTML, and are never read as templates.
    Every name that a template uses must have a value."""

    def __init__(self, folder: Path) -> None:
        self._environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            autoescape=select_autoescape(("html",)),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def text(self, name: object, values: Mapping[str, Any]) -> str:
        """The filled-in text. Raises Fail if there is no such template, or if it cannot be filled in."""
        if not isinstance(name, str) or not _TEMPLATE.fullmatch(name):
            raise Fail(f"template: {str(name)[:100]!r} is not a name of letters, digits, '_', '-', '.' and '/'")
        found = self.beside(f"{name}.txt", values)
        if found is None:
            raise Fail(f"template: there is no {name}.txt in TIMERS_TEMPLATES")
        return found

    def _find(self, file: str) -> Any:
        try:
            return self._environment.get_template(file)
        except TemplateNotFound:
            return None

    def beside(self, file: str, values: Mapping[str, Any]) -> str | None:
        """The filled-in file that belongs to a text, such as its HTML, if there is any. Raises Fail if it cannot be
        filled in."""
        try:
            template = self._find(file)
            if template is None:
                return None
            return bounded(f"template {file}", template.generate(values), TEMPLATE_LIMIT_CHARACTERS)
        except Fail:
            raise
        except Exception as error:  # a template is the operator's code and may raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise Fail(f"template {file}: {kind}{error}") from error


@dataclass(frozen=True, slots=True)
class Sending:
    """What a pod sends with: how it sends on each channel, those that reach people first, and where it finds users and
    templates."""

    by_channel: Mapping[Channel, Send]
    find_user: Callable[[str | int], Awaitable[Mapping[str, Any] | None]] | None
    templates: Templates | None

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings | None = None) -> AsyncIterator["Sending"]:
        """Opens the connections that the settings (None: this process's) ask for. A channel without a gateway uses the
        outbox if there is one; else its messages fail. Raises ConfigurationError if the outbox cannot be written."""
        settings = settings or load_worker_settings()
        async with AsyncExitStack() as ends:
            caller = await ends.enter_async_context(HttpClient.opened(ANYWHERE, (), Targets()))
            by_channel: dict[Channel, Send] = {}
            if settings.smtp_url is not None and settings.mail_from is not None:
                mail = SmtpTransport(settings.smtp_url.get_secret_value(), settings.mail_from)
                ends.push_async_callback(mail.close)
                by_channel["email"] = mail.send
            if settings.sms_url is not None:
                gateway = partial(post_to_gateway, URL(settings.sms_url.get_secret_value()), caller)
                by_channel |= {"phone": gateway, "push": gateway}
            if settings.outbox is not None and len(by_channel) < len(_REACHABLE):
                check_outbox(settings.outbox)
            for channel in _REACHABLE:
                missing = no_gateway if settings.outbox is None else partial(write_to_outbox, settings.outbox)
                by_channel.setdefault(channel, missing)
            url = settings.user_url
            find = None if url is None else partial(find_user, url.get_secret_value(), caller)
            yield cls(by_channel, find, None if settings.templates is None else Templates(settings.templates))


@processor("send-message", retry=RETRY, timeout="30s", lifespan=Sending.opened)
async def send_message(timer: Timer, context: Context[Sending]) -> Done:
    """Sends a text to the payload's `email`, or if it has none, to its `phone` or `push`. If the payload names a
    `user`, looks the user up first.

    A user who cannot be reached is not an error: nothing is sent, and the history says why. A text that cannot be
    rendered fails at once, because another try would not change it.
    """
    sending, payload = context.state, timer.payload
    if not isinstance(payload, Mapping):
        return _skipped(context, "the payload is not an object with email, phone or push")
    found: Mapping[str, Any] = {}
    if sending.find_user is not None and payload.get("user") is not None:
        known = await sending.find_user(_user(payload["user"]))
        reason = reason_to_skip(known, _unless(payload.get("unless", UNLESS)))
        if known is None or reason is not None:
            return _skipped(context, reason or "")
        found = known
    recipient = reachable({**payload, **found}, sending.by_channel)
    if isinstance(recipient, str):
        return _skipped(context, recipient)
    channel, to = recipient
    subject, text, html = content(payload, found, sending.templates, timer.prefix)
    if len(subject) > SUBJECT_LIMIT_CHARACTERS:
        raise Fail(f"subject: longer than {SUBJECT_LIMIT_CHARACTERS} characters once filled in")
    unsubscribe = _unsubscribe(found.get("unsubscribe", payload.get("unsubscribe")))
    message = Message(to, channel, subject, text, context.idempotency_key, context.token, html, unsubscribe)
    return Done(await sending.by_channel[channel](message))


def _skipped(context: Context[Sending], reason: str) -> Done:
    context.log.info("nothing sent", reason=reason)
    return Done(f"skipped: {reason}")


def _user(given: object) -> str | int:
    """Refuses what would lead to another path: `..` leaves the folder of users, whatever is quoted."""
    if isinstance(given, bool) or not isinstance(given, str | int) or not 1 <= len(str(given)) <= 200:
        raise Fail("user: expected a number, or text of 1 to 200 characters")
    if given in (".", ".."):
        raise Fail(f"user: {given!r} is not accepted; expected a name")
    return given


def _unless(given: object) -> list[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise Fail('unless: expected a list of the user\'s fields, such as ["verified"]')
    return list(given)


def _unsubscribe(given: object) -> str | None:
    if isinstance(given, str) and len(given) > UNSUBSCRIBE_LIMIT_CHARACTERS:
        raise Fail(f"unsubscribe: longer than {UNSUBSCRIBE_LIMIT_CHARACTERS} characters")
    if given is None or (isinstance(given, str) and _UNSUBSCRIBE.fullmatch(given)):
        return given
    raise Fail("unsubscribe: expected an address that starts with https://, http:// or mailto:, without =?…?=")


def reachable(
    known: Mapping[str, Any], channels: Iterable[Channel] = tuple(_REACHABLE)
) -> tuple[Channel, tuple[str, ...]] | str:
    """How to reach the user, as (channel, addresses), by the first of these channels that is possible, or a text that
    says why none is. Only email may have several addresses."""
    for channel in channels:
        if found := _addresses(channel, known.get(channel)):
            return channel, found
    given = [channel for channel in _REACHABLE if known.get(channel)]
    return f"not a usable address: {', '.join(given)}" if given else "the payload has no email, phone or push"


def _addresses(channel: Channel, given: object) -> tuple[str, ...]:
    """The addresses if all of them are valid, else none. Raises Fail for more than `RECIPIENTS_LIMIT`, and for an
    address with an encoded word (RFC 2047), because the email package of Python 3.11 and 3.12 decodes it, line breaks
    and all."""
    several = given if channel == "email" and isinstance(given, list) else [given]
    if len(several) > RECIPIENTS_LIMIT:
        raise Fail(f"email: {len(several)} addresses; expected at most {RECIPIENTS_LIMIT}")
    if channel == "email" and any("=?" in a for a in several if isinstance(a, str)):
        raise Fail("email: '=?' is not accepted; expected an address without encoded words")
    pattern = _REACHABLE[channel]
    sound = [a for a in several if isinstance(a, str) and a.isprintable() and pattern.fullmatch(a)]
    return tuple(dict.fromkeys(sound)) if len(sound) == len(several) else ()


def content(
    payload: Mapping[str, Any], found: Mapping[str, Any], templates: Templates | None, prefix: str
) -> tuple[str, str, str | None]:
    """Subject, text and HTML. They come from the template that the payload names. If it names none and has no text,
    they come from the template with the name of the prefix, if there is one; else from the payload. What was looked up
    about the user overrides the payload's values."""
    name, values = payload.get("template"), {**payload, **found}
    if templates is None and name is not None:
        raise Fail("template: TIMERS_TEMPLATES is not set")
    if templates is None or (name is None and "text" in payload):
        return *render(payload, found), None
    filled = templates.beside(f"{prefix}.txt", values) if name is None else templates.text(name, values)
    if filled is None:
        return *render(payload, found), None
    name = name or prefix
    own = None if "subject" in payload else templates.beside(f"{name}.subject.txt", values)
    subject = _subject(payload, found) if own is None else " ".join(own.split())
    return subject, filled, templates.beside(f"{name}.html", values)


def render(payload: Mapping[str, Any], found: Mapping[str, Any] = MappingProxyType({})) -> tuple[str, str]:
    """The subject, in one line, and the text. Raises Fail, which names the field and the placeholder, if one cannot be
    filled."""
    return _subject(payload, found), _own("text", DEFAULT_TEXT, payload, found)


def _subject(payload: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return " ".join(_own("subject", DEFAULT_SUBJECT, payload, found).split())


def _own(field: str, default: str, payload: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    known = {**payload, **found}
    values = {**DEFAULT_VALUES, **{name: value for name, value in known.items() if value not in (None, "")}}
    return fill(field, payload.get(field, default), values)


_PIECE = re.compile(r"[^{}]+|\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|[{}]")


def fill(field: str, template: object, values: Mapping[str, Any]) -> str:
    """The template with each `{name}` replaced by that value; `{{` and `}}` are braces. Values are text or numbers.
    They are looked up by plain name and inserted unchanged: nothing in them is read as a template. Raises Fail."""
    if not isinstance(template, str):
        raise Fail(f"{field}: expected text, not {type(template).__name__}")
    pieces = (
        _value(field, piece["name"], values) if piece["name"] else _literal(field, piece[0])
        for piece in _PIECE.finditer(template)
    )
    return bounded(field, pieces, RENDERED_LIMIT_CHARACTERS)


def _literal(field: str, piece: str) -> str:
    if piece in ("{", "}"):
        raise Fail(f"{field}: a single {piece!r}; a placeholder is {{name}}, a brace is {piece * 2!r}")
    return piece[:1] if piece in ("{{", "}}") else piece


def _value(field: str, name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        found = "nothing" if name not in values else type(value).__name__
        raise Fail(f"{field}: {{{name}}} needs text or a number in the payload, but there is {found}")
    return str(value)


def bounded(what: str, pieces: Iterable[str], limit: int) -> str:
    """The pieces together, with `?` for half a character (a lone surrogate), which a user's data may have and nothing
    could send. Raises Fail if they are too long."""
    parts: list[str] = []
    left = limit
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise Fail(f"{what}: longer than {limit} characters once filled in")
        parts.append(piece)
    return "".join(parts).encode(errors="replace").decode()
