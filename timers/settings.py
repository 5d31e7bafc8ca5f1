"""Owns the settings: their names, defaults and bounds, and how they are read from the environment and `.env`.

A setting `TIMERS_HTTP_PORT` is the field `http_port`; a length of time like `TIMERS_LEASE` is the field `lease_ms`. A
field's description says what is accepted; it is also the end of the error for a value that is not.
"""

import difflib
import ipaddress
import os
import re
import secrets
import socket
from base64 import b64decode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlencode, urlsplit

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from timers.durations import DAY_MS, parse_ms
from timers.errors import ConfigurationError, FieldError, shown
from timers.spec import PREFIX_RULE, check_prefix

Role = Literal["api", "worker"]

MAX_SHARDS: Final = 1024
_NAME_PREFIX: Final = "TIMERS_"
_REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
_LEDGER_SCHEMES: Final = ("sqlite+aiosqlite", "postgresql+asyncpg")
_CONFIDENTIAL: Final = frozenset({"redis_url", "ledger_url", "api_keys", "signing_secrets"})
_DURATION_RULE: Final = "a duration like 250ms, 90s, 15m, 24h, 7d, a number of seconds, or PT24H"


def _listed(value: object) -> object:
    """Comma-separated text as its parts; anything else as it is."""
    if not isinstance(value, str):
        return value
    return [part for part in (piece.strip() for piece in value.split(",")) if part]


def _milliseconds(value: object) -> object:
    """Text as a duration; a number, which only a program gives, is milliseconds already."""
    return parse_ms(value) if isinstance(value, str) else value


def _duration(default: str, minimum_ms: int = 0, maximum_ms: int = 3_653 * DAY_MS) -> Any:
    bounds = f", from {minimum_ms} ms to {maximum_ms} ms" if minimum_ms else ""
    return Field(
        default_factory=lambda: parse_ms(default), ge=minimum_ms, le=maximum_ms, description=_DURATION_RULE + bounds
    )


def _shard_numbers(value: object) -> object:
    """`0-15,20` as the numbers it names, in order."""
    if not isinstance(value, str):
        return value
    numbers: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not low <= high < MAX_SHARDS:
            raise ValueError(part)
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def _check_prefixes(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in prefixes:
        check_prefix(prefix)
    return prefixes


def _check_addresses(parts: SplitResult) -> bool:
    """Whether the network part is hosts with ports, as `host`, `host:6379`, or for Sentinel and cluster several of them."""
    hosts = parts.netloc.rpartition("@")[2].split(",")
    several = parts.scheme in {"redis+sentinel", "redis+cluster"}
    return (several or len(hosts) == 1) and all(_is_address(host) for host in hosts)


def _is_address(text: str) -> bool:
    one = urlsplit(f"//{text}")
    return bool(one.hostname) and (one.port is None or one.port > 0)


def _check_redis_url(url: str) -> str:
    """Refuses what cannot be a server. What is left splits safely, so that `redacted` hides every password in it."""
    parts = urlsplit(url)
    if parts.scheme not in _REDIS_SCHEMES or parts.fragment:
        raise ValueError(parts.scheme)
    if parts.scheme == "unix":
        usable = len(parts.path) > 1
    else:
        path = r"/[^/@]+(/\d+)?" if parts.scheme == "redis+sentinel" else r"/?|/\d+"
        usable = _check_addresses(parts) and re.fullmatch(path, parts.path) is not None
    if not usable:
        raise ValueError("no server")
    return url


def _check_ledger_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme not in _LEDGER_SCHEMES or not separator or not rest.strip("/"):
        raise ValueError(scheme)
    return url


def _check_signing_secrets(given: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for secret in given:
        kind, _, encoded = secret.get_secret_value().partition("_")
        if kind != "whsec" or not 24 <= len(b64decode(encoded, validate=True)) <= 64:
            raise ValueError(kind)
    return given


def redacted(url: str) -> str:
    """The URL as it may be shown: passwords, before the host and in the query, are `***`."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    netloc = f"{user}:***@{hosts}" if colon else f"{account}{at}{hosts}"
    query = re.sub(r"(?i)([^&=]*pass[^&=]*=)[^&]*", r"\1***", parts.query)
    return parts._replace(netloc=netloc, query=query).geturl()
