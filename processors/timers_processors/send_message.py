"""Owns the processor `send-message`: whom a timer's payload reaches, and the text that is sent."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from timers import Context, Done, Fail, Timer, processor
from timers_processors.transport import Channel, Message, default_transport

DEFAULT_SUBJECT: Final = "Welcome"
DEFAULT_TEXT: Final = "Hello {name}, welcome! It is good to have you here."
DEFAULT_VALUES: Final = MappingProxyType({"name": "there"})

RENDERED_LIMIT_CHARACTERS: Final = 64 * 1024
"""As much as a payload may hold. Placeholders could multiply it: ten thousand of them, each for a long value."""

# Nothing that a mail header could read as a second recipient or a second line.
_EMAIL = re.compile(r"[^@\s,;:<>()\[\]\\\"]{1,64}@[^@\s,;:<>()\[\]\\\"]{1,190}")
_PHONE = re.compile(r"\+?[0-9](?:[ ()./-]*[0-9]){2,19}")
_REACHABLE: Final[Mapping[Channel, re.Pattern[str]]] = MappingProxyType({"email": _EMAIL, "phone": _PHONE})


@processor("send-message", timeout="30s")
async def send_message(timer: Timer, context: Context) -> Done:
    """Sends the payload's `text` under `subject` to its `email`, or where there is none to its `phone`.

    A user who cannot be reached is not an error: nothing is sent, and the history says why. A text that cannot be
    rendered fails at once, because no further try could change it.
    """
    recipient = reachable(timer.payload)
    if isinstance(recipient, str):
        context.log.info("nothing sent", reason=recipient)
        return Done(f"skipped: {recipient}")
    channel, to = recipient
    subject, text = render(timer.payload)
    await default_transport().send(Message(to, channel, subject, text, context.idempotency_key, context.token))
    return Done(f"sent by {channel}")


def reachable(payload: object) -> tuple[Channel, str] | str:
    """How the user can be reached as (channel, address), or why not."""
    if not isinstance(payload, Mapping):
        return "the payload is not an object with email or phone"
    for channel, pattern in _REACHABLE.items():
        address = payload.get(channel)
        if isinstance(address, str) and address.isprintable() and pattern.fullmatch(address):
            return channel, address
    given = [channel for channel in _REACHABLE if payload.get(channel)]
    return f"not an address one can send to: {', '.join(given)}" if given else "the payload has neither email nor phone"


def render(payload: Mapping[str, Any]) -> tuple[str, str]:
    """Subject, in one line, and text. Raises Fail naming the field and the placeholder that cannot be filled."""
    values = {**DEFAULT_VALUES, **{name: value for name, value in payload.items() if value not in (None, "")}}
    subject = fill("subject", payload.get("subject", DEFAULT_SUBJECT), values)
    return " ".join(subject.split()), fill("text", payload.get("text", DEFAULT_TEXT), values)


_PIECE = re.compile(r"[^{}]+|\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|[{}]")


def fill(field: str, template: object, values: Mapping[str, Any]) -> str:
    """The template with each `{name}` replaced by that value; `{{` and `}}` are braces. Values are text or numbers,
    looked up by their plain name and put in as they are: nothing in them is read as a template. Raises Fail."""
    if not isinstance(template, str):
        raise Fail(f"{field}: expected text, not {type(template).__name__}")
    parts: list[str] = []
    left = RENDERED_LIMIT_CHARACTERS
    for piece in _PIECE.finditer(template):
        parts.append(_value(field, piece["name"], values) if piece["name"] else _literal(field, piece[0]))
        left -= len(parts[-1])
        if left < 0:
            raise Fail(f"{field}: longer than {RENDERED_LIMIT_CHARACTERS} characters once filled in")
    return "".join(parts)


def _literal(field: str, piece: str) -> str:
    if piece in ("{", "}"):
        raise Fail(f"{field}: a single {piece!r}; a placeholder is {{name}}, a brace is {piece * 2!r}")
    return piece[:1] if piece in ("{{", "}}") else piece


def _value(field: str, name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        found = "nothing" if name not in values else type(value).__name__
        raise Fail(f"{field}: {{{name}}} needs text or a number in the payload, there is {found}")
    return str(value)
