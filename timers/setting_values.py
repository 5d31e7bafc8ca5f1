"""Owns parsing the text of a setting into its type; raises ValueError for text that is not accepted."""

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BeforeValidator, SecretStr

from timers.access import read_entries
from timers.core.durations import parse_ms
from timers.core.fields import check_prefix, owner
from timers.core.hooks import Hook
from timers.errors import ConfigurationError

MAX_SHARDS: Final = 1024
REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")

REDIS_URL: Final = (
    f"a URL with a server and at most a db number, as in redis://127.0.0.1:6379/5 "
    f"({', '.join(f'{scheme}://' for scheme in REDIS_SCHEMES)})"
)
STARTTLS: Final = ("require", "if-offered", "never")
PLACES_RULE: Final = "networks (10.0.0.0/8), host names or *.suffix, comma-separated"
HOOKS_LIMIT: Final = 100
"""Limited because each change of a timer is compared with each hook."""

_HOST: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def listed(value: object) -> object:
    """The parts of comma-separated text; any other value unchanged."""
    return _parts(value) if isinstance(value, str) else value


def _parts(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def milliseconds(value: object) -> object:
    """Parses text as a duration. A number, which only a program gives, is already in milliseconds."""
    return parse_ms(value) if isinstance(value, str) else value


def milliseconds_or(word: str) -> Callable[[object], object]:
    """As `milliseconds`; None for the word."""
    return lambda value: None if isinstance(value, str) and value.lower() == word else milliseconds(value)


def shard_numbers(value: object) -> object:
    """Parses `0-15,20` into the numbers that it names, in order."""
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


def builtin_names(value: object) -> object:
    """None for `all`, an empty tuple for `none`, else the names."""
    names = listed(value)
    if names in (["all"], ["none"]):
        return None if names == ["all"] else ()
    if isinstance(names, list) and {"all", "none"}.intersection(names):
        raise ValueError(names)
    return names


def _check_addresses(parts: SplitResult) -> bool:
    """Whether the network part is `host` or `host:6379`; Sentinel and cluster may have several, with commas."""
    hosts = parts.netloc.rpartition("@")[2].split(",")
    several = parts.scheme in {"redis+sentinel", "redis+cluster"}
    return (several or len(hosts) == 1) and all(_is_address(host) for host in hosts)


def _is_address(text: str) -> bool:
    one = urlsplit(f"//{text}")
    return bool(one.hostname) and (one.port is None or one.port > 0)


def check_redis_url(url: str) -> str:
    """Refuses a URL that cannot be a server. An accepted URL splits safely, so `redacted` hides every password in
    it."""
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES or parts.fragment:
        raise ValueError(f"expected {REDIS_URL}")
    if parts.scheme == "unix":
        usable = len(parts.path) > 1
    else:
        path = r"/[^/@]+(/\d+)?" if parts.scheme == "redis+sentinel" else r"/?|/[0-9]+"
        usable = _check_addresses(parts) and re.fullmatch(path, parts.path) is not None
    if not usable:
        raise ValueError(f"expected {REDIS_URL}")
    return url


def check_signing_secret(given: SecretStr) -> SecretStr:
    signing_key(given)
    return given


def signing_key(secret: SecretStr) -> bytes:
    """The key of a secret such as `whsec_…`."""
    kind, _, encoded = secret.get_secret_value().partition("_")
    key = b64decode(encoded, validate=True)
    if kind != "whsec" or not 24 <= len(key) <= 64:
        raise ValueError(kind)
    return key


def prefixed_secrets(value: object) -> object:
    """Parses `[prefix=]whsec_…` into pairs; the prefix is empty if none is given. (Base64 may end in `=`.)"""
    if not isinstance(value, str):
        return value
    pairs = []
    for text in _parts(value):
        prefix, _, secret = ("", "", text) if text.startswith("whsec_") else text.partition("=")
        pairs.append((check_prefix(prefix) if prefix else "", SecretStr(secret)))
        signing_key(pairs[-1][1])
    return pairs


PrefixedSecrets = Annotated[tuple[tuple[str, SecretStr], ...], BeforeValidator(prefixed_secrets)]


def keys_of(secrets: Sequence[tuple[str, SecretStr]], prefix: str) -> list[bytes]:
    """The keys that sign what is about a prefix, all at once: those of the longest prefix that serves it, else those
    given without a prefix."""
    chosen = owner(prefix, {given for given, _ in secrets}) or ""
    return [signing_key(secret) for given, secret in secrets if given == chosen]


def prefixed_urls(value: object) -> object:
    """Parses `prefix=https://…` into pairs; no prefix may be given twice."""
    if not isinstance(value, str):
        return value
    pairs = [(check_prefix(prefix), url) for prefix, _, url in (text.partition("=") for text in _parts(value))]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a prefix twice")
    return [(prefix, check_url(SecretStr(url))) for prefix, url in pairs]


def hook_urls(value: object) -> object:
    """Parses `events@prefix=https://…` into pairs of what is asked for and the URL."""
    if not isinstance(value, str):
        return value
    pairs = []
    for text in _parts(value):
        asked, _, url = text.partition("=")
        Hook.of(asked, url)
        pairs.append((asked, check_url(SecretStr(url))))
    return pairs


Text = TypeVar("Text", bound=str | SecretStr)


def check_url(given: Text) -> Text:
    """Accepts a URL, to call or to show."""
    parts = urlsplit(given if isinstance(given, str) else given.get_secret_value())
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.port == 0:
        raise ValueError(parts.scheme)
    return given


def check_alarm(given: SecretStr) -> SecretStr:
    """Accepts the target of an alarm: a mail address, a URL, or a command that exists."""
    kind, _, rest = given.get_secret_value().partition(":")
    if kind == "mailto":
        check_mail_from(rest)
    elif kind != "exec":
        check_url(given)
    elif not Path(rest).is_absolute() or not os.access(rest, os.X_OK) or Path(rest).is_dir():
        raise ValueError("no command")
    return given


def check_user_url(given: SecretStr) -> SecretStr:
    """Accepts a URL to call with `{user}` in its path or query."""
    if "{user}" not in urlsplit(given.get_secret_value()).path + urlsplit(given.get_secret_value()).query:
        raise ValueError("no {user}")
    return check_url(given)


def check_smtp_url(given: SecretStr) -> SecretStr:
    """Accepts the URL of a mail server."""
    parts = urlsplit(given.get_secret_value())
    options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    modes = [("starttls", mode) for mode in STARTTLS] if parts.scheme == "smtp" else []
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.port == 0 or parts.path not in ("", "/"):
        raise ValueError(parts.scheme)
    if len(options) > 1 or not set(options) <= set(modes) or parts.fragment:
        raise ValueError("options")
    return given


def with_secrets(
    given: Mapping[str, str | None], names: Iterable[str]
) -> tuple[Mapping[str, str | None], Mapping[str, str]]:
    """The variables with the text of the file at `NAME_FILE` as NAME, for each of the `names` that is given so; and the
    paths by name. Raises ConfigurationError."""
    found, paths = dict(given), dict[str, str]()
    for name in names:
        path = found.pop(f"{name}_FILE", None)
        if path and found.get(name):
            raise ConfigurationError(f"{name} and {name}_FILE are both set; leave one of them out")
        if path:
            found[name], paths[name] = _text_in(f"{name}_FILE", path), path
    return found, paths


def _text_in(name: str, path: str) -> str:
    try:
        text = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"{name}: {path!r} cannot be read: {reason}") from None
    if not text:
        raise ConfigurationError(f"{name}: {path!r} is empty")
    return text


def check_mail_from(given: str) -> str:
    """Accepts a mail address, with or without a name. An encoded word (`=?utf-8?q?…?=`) could hide a line break."""
    name, address = parseaddr(given)
    if "=?" in given:
        raise ValueError("an encoded word")
    if not re.fullmatch(r"[!-;=?A-~]+@[!-;=?A-~]+", address) or not (name + address).isprintable() or "\n" in given:
        raise ValueError("no address")
    return given


def places(value: object) -> object:
    """Parses networks, host names and `*.suffix`."""
    if not isinstance(value, str):
        return value
    for text in _parts(value):
        if not _HOST.fullmatch(text.removeprefix("*.")):
            ip_network(text)
    return _parts(value)


def check_api_keys(given: SecretStr) -> SecretStr:
    read_entries(given.get_secret_value())
    return given


def redacted(url: str) -> str:
    """The URL with `***` in place of passwords, before the host and in the query."""
    shown_account = re.sub(r"//([^/?#@:]*):.*@", r"//\1:***@", url)
    return re.sub(r"(?i)([?&][^&=]*pass[^&=]*=)[^&]*", r"\1***", shown_account)
