"""Owns the processor `webhook`: which URL a due timer calls, what it sends there, and what each answer means."""

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from yarl import URL

from timers import Context, Done, Fail, Processor, Timer, processor
from timers.processor import Lifespan
from timers.settings import WEBHOOK, Settings, load_worker_settings
from timers_processors.addresses import Lookup
from timers_processors.calling import Call, HttpAnswer, HttpClient, accepted, digest, signature
from timers_processors.targets import Targets

RETRY: Final = {"backoff": ["5s", "30s", "2m", "10m", "30m", "1h", "3h", "6h", "12h"]}
"""Ten tries over a day, unless the timer has its own policy."""

CALL_SECONDS: Final = 30.0
"""How long a call may take in all, unless the timer has its own `timeout`."""

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")
_FIELDS: Final = ("url", "method", "headers", "body")
TYPES: Final = ("timer.", "alarm.")
"""How the `type` of each message of hooks and alarms begins."""

_OBJECT: Final = re.compile(rb"(\xef\xbb\xbf)?\s*\{")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[ -~\t]{0,4000}")
_OURS: Final = re.compile(
    r"(?i)(host|content-length|transfer-encoding|connection|keep-alive|upgrade|te|trailer|expect|user-agent"
    r"|accept-encoding|traceparent|proxy-.*|webhook-.*|timers-.*)"
)


def processors(settings: Settings | None = None, opened: Lifespan[HttpClient] | None = None) -> Iterator[Processor]:
    """`webhook`, whose payload names the URL, unless TIMERS_BUILTIN leaves it out, and one for each prefix that
    TIMERS_WEBHOOK_TARGETS maps to a URL. They share their connections."""
    settings = settings or load_worker_settings()
    opened = opened or connections(settings, Targets(in_all=most_at_once(settings)))
    if settings.builtin is None or WEBHOOK in settings.builtin:
        yield _processor(settings, opened, WEBHOOK, None)
    for prefix, url in settings.webhook_targets:
        yield _processor(settings, opened, prefix, URL(url.get_secret_value()))


def connections(
    settings: Settings, targets: Targets | None = None, lookup: Lookup = socket.getaddrinfo
) -> Lifespan[HttpClient]:
    """Opens a client that may call what the settings allow."""
    return partial(HttpClient.opened, settings.webhook_allow, settings.webhook_deny, targets or Targets(), lookup)


def most_at_once(settings: Settings) -> int:
    """How many calls a pod makes at once, to all targets together: half of what it runs, so that targets that hang
    leave room for other timers."""
    return max(settings.concurrency // 2, 1)


def _processor(settings: Settings, opened: Lifespan[HttpClient], prefix: str, url: URL | None) -> Processor:
    """The processor of a prefix. With a URL, each timer's payload is posted there; without one, the payload says what
    to send."""

    # The pod starts no more of one prefix; of several, `Targets` sends the rest back.
    @processor(prefix, retry=RETRY, timeout=CALL_SECONDS + 5, lifespan=opened, pod_concurrency=most_at_once(settings))
    async def webhook(timer: Timer, context: Context[HttpClient]) -> Done:
        call = parse_payload(timer.payload) if url is None else Call("POST", url, *as_json(timer.payload))
        _refuse_types_of_hooks(call.body)
        identified = replace(call, headers={**call.headers, **_identified(timer, context)})
        seconds = CALL_SECONDS if timer.timeout_ms is None else 0.95 * timer.timeout_ms / 1000
        answer = await signed(identified, "msg", settings.webhook_keys(timer.prefix), context, seconds)
        return Done(accepted(call, answer, fails_on_4xx=settings.webhook_4xx == "fail"))

    return webhook


async def signed(
    call: Call,
    kind: Literal["msg", "hook"],
    keys: Sequence[bytes],
    context: Context[HttpClient],
    seconds: float = CALL_SECONDS,
) -> HttpAnswer:
    """Make the call, signed with the keys. Its id begins with the kind and is the same on every try of an
    occurrence."""
    webhook_id = f"{kind}_{digest(context.idempotency_key)}"
    headers = {**call.headers, **signature(keys, webhook_id, int(time.time()), call.body)}
    return await context.state.call(replace(call, headers=headers), seconds)


def _refuse_types_of_hooks(body: bytes) -> None:
    """Raises Fail for a body that says to be a message of a hook or an alarm, which only the service sends. Parsers of
    receivers may take longer numbers, deeper nesting and line breaks in texts, and ignore the case of names."""
    try:
        found = json.loads(body, object_pairs_hook=tuple, parse_int=str, strict=False) if body else None
    except RecursionError:
        if _OBJECT.match(body):
            raise Fail("payload: nested too deeply to see its type") from None
        return
    except ValueError:
        return
    for name, value in found if isinstance(found, tuple) else ():
        if name.lower() == "type" and isinstance(value, str) and value.startswith(TYPES):
            raise Fail(
                f"payload: the type {value[:80]!r} is not accepted; those with {' and '.join(TYPES)} are the service's"
            )


def _identified(timer: Timer, context: Context[HttpClient]) -> dict[str, str]:
    return {
        "Timers-Prefix": timer.prefix,
        "Timers-Id": timer.id,
        "Timers-Occurrence": str(timer.occurrence),
        "Timers-Attempt": str(timer.attempt),
        "Timers-Token": str(timer.token),
        **({} if context.traceparent is None else {"traceparent": context.traceparent}),
    }


def as_json(value: Any) -> tuple[dict[str, str], bytes]:
    return {"Content-Type": "application/json"}, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def parse_payload(payload: object) -> Call:
    """The call that a payload asks for. Raises Fail naming the field that is wrong."""
    if not isinstance(payload, Mapping):
        raise Fail("payload: expected an object with url, and optionally method, headers and body")
    for name in payload:
        if name not in _FIELDS:
            raise Fail(f"payload.{name}: unknown; the fields are {', '.join(_FIELDS)}")
    method = payload.get("method", "POST")
    if method not in METHODS:
        raise Fail(f"payload.method: {str(method)[:40]!r} is not accepted; expected one of {', '.join(METHODS)}")
    kind, body = _body(payload)
    return Call(method, _url(payload.get("url")), {**kind, **_headers(payload.get("headers", {}))}, body)


def _url(given: object) -> URL:
    """The error shows neither the value nor the reason, because both may hold a password."""
    try:
        url = URL(given) if isinstance(given, str) else None
        if url is not None and url.scheme in ("https", "http") and url.raw_host and url.port:
            return url.with_fragment(None)
    except ValueError:
        pass
    raise Fail("payload.url: expected an address such as https://api.example.org/path")


def _headers(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise Fail("payload.headers: expected an object with text values")
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name) or not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise Fail(f"payload.headers.{name[:100]}: expected a name and an ASCII text that HTTP allows")
        if _OURS.fullmatch(name):
            raise Fail(f"payload.headers.{name}: not accepted, because the service sets this header itself")
    return {name.title(): value for name, value in given.items()}


def _body(payload: Mapping[str, Any]) -> tuple[Mapping[str, str], bytes]:
    """The body with its type: text unchanged, anything else as JSON, empty if there is none."""
    if "body" not in payload:
        return {}, b""
    body = payload["body"]
    if isinstance(body, str):
        return {"Content-Type": "text/plain; charset=utf-8"}, body.encode()
    return as_json(body)
