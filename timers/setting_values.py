"""Owns what the text of a setting may be: reads it into its type, or raises ValueError for what is not accepted."""

import re
from base64 import b64decode
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

from timers.access import read_entries
from timers.core.durations import parse_ms
from timers.core.fields import check_prefix

MAX_SHARDS: Final = 1024
REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")


def listed(value: object) -> object:
    """Comma-separated text as its parts; anything else as it is."""
    if not isinstance(value, str):
        return value
    return [part for part in (piece.strip() for piece in value.split(",")) if part]


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def milliseconds(value: object) -> object:
    """Text as a duration; a number, which only a program gives, is milliseconds already."""
    return parse_ms(value) if isinstance(value, str) else value


def shard_numbers(value: object) -> object:
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


def check_prefixes(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in prefixes:
        check_prefix(prefix)
    return prefixes


def builtin_names(value: object) -> object:
    """None for `all`, nothing for `none`, else the names."""
    names = listed(value)
    if names in (["all"], ["none"]):
        return None if names == ["all"] else ()
    if isinstance(names, list) and {"all", "none"}.intersection(names):
        raise ValueError(names)
    return names


def _check_addresses(parts: SplitResult) -> bool:
    """Whether the network part is a `host` or `host:6379`, for Sentinel and cluster also several with commas."""
    hosts = parts.netloc.rpartition("@")[2].split(",")
    several = parts.scheme in {"redis+sentinel", "redis+cluster"}
    return (several or len(hosts) == 1) and all(_is_address(host) for host in hosts)


def _is_address(text: str) -> bool:
    one = urlsplit(f"//{text}")
    return bool(one.hostname) and (one.port is None or one.port > 0)


def check_redis_url(url: str) -> str:
    """Refuses what cannot be a server. What is left splits safely, so that `redacted` hides every password in it."""
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES or parts.fragment:
        raise ValueError(parts.scheme)
    if parts.scheme == "unix":
        usable = len(parts.path) > 1
    else:
        path = r"/[^/@]+(/\d+)?" if parts.scheme == "redis+sentinel" else r"/?|/\d+"
        usable = _check_addresses(parts) and re.fullmatch(path, parts.path) is not None
    if not usable:
        raise ValueError("no server")
    return url


def check_signing_secrets(given: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for secret in given:
        kind, _, encoded = secret.get_secret_value().partition("_")
        if kind != "whsec" or not 24 <= len(b64decode(encoded, validate=True)) <= 64:
            raise ValueError(kind)
    return given


def check_api_keys(given: SecretStr) -> SecretStr:
    read_entries(given.get_secret_value())
    return given


def redacted(url: str) -> str:
    """The URL as it may be shown: passwords, before the host and in the query, are `***`."""
    shown_account = re.sub(r"//([^/?#@:]*):.*@", r"//\1:***@", url)
    return re.sub(r"(?i)([?&][^&=]*pass[^&=]*=)[^&]*", r"\1***", shown_account)
