"""Owns parsing the text of a setting into its type; raises ValueError for text that is not accepted."""

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from timers.core.durations import parse_ms
from timers.core.fields import check_callers_prefix, check_prefix, owner
from timers.core.hooks import Hook
from timers.errors import ConfigurationError, FieldError, InvalidInput

MAX_SHARDS: Final = 1024
REDIS_SCHEMES: Final = (
    *("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
)

REDIS_URL: Final = (
    f"a URL with a server and at most a db number, as in redis://127.0.0.1:6379/5, "
    f"or with Sentinels and the name of their service, as in redis+sentinel://127.0.0.1:26379/main/5 "
    f"({', '.join(f'{scheme}://' for scheme in REDIS_SCHEMES)})"
)
LEDGER_DRIVERS: Final = ("postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite")
LEDGER_URL: Final = (
    "postgresql+asyncpg://user:password@host/database (also postgresql+psycopg), or sqlite+aiosqlite:////path/of/a/file"
)
STARTTLS: Final = ("require", "if-offered", "never")
PLACES_RULE: Final = "networks (10.0.0.0/8), host names or *.suffix, comma-separated"
HOOKS_LIMIT: Final = 100
"""Limited because each change of a timer is compared with each hook."""

_BYTE_ORDER_MARK: Final = "\ufeff"
_HOST: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Parses text. Any other value, which only a program gives, stays."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def checked(check: Callable[[str], object]) -> AfterValidator:
    """Lets pass what the check does not raise at, confidential or not."""

    def passing(given: str | SecretStr) -> str | SecretStr:
        check(given if isinstance(given, str) else given.get_secret_value())
        return given

    return AfterValidator(passing)


def parts(text: str) -> list[str]:
    """The parts of comma-separated text."""
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def milliseconds_or(word: str) -> BeforeValidator:
    """A duration; None for the word."""
    return from_text(lambda text: None if text.lower() == word else parse_ms(text))


def shard_numbers(text: str) -> tuple[int, ...]:
    """Parses `0-15,20` into the numbers that it names, in order."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not low <= high < MAX_SHARDS:
            raise ValueError(part)
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def check_ledger_url(url: str) -> None:
    """Raises ValueError unless it is the URL of a database, with one of the drivers that the ledger knows."""
    parts = urlsplit(url)
    if parts.scheme not in LEDGER_DRIVERS or not parts.path.strip("/"):
        raise ValueError(LEDGER_URL)


def builtin_names(text: str) -> Sequence[str] | None:
    """None for `all`, an empty list for `none`, else the names."""
    names = parts(text)
    if names in (["all"], ["none"]):
        return None if names == ["all"] else []
    if {"all", "none"}.intersection(names):
        raise ValueError(names)
    return names


def split_hosts(url: str) -> tuple[SplitResult, Sequence[str]]:
    """A server's URL with `-` in place of its hosts, and the hosts: `urlsplit` takes no list that has an IPv6 address.
    Raises ValueError."""
    scheme, separator, rest = url.partition("://")
    network = re.split("[/?#]", rest, maxsplit=1)[0]
    account, at, hosts = network.rpartition("@")
    return urlsplit(f"{scheme}{separator}{account}{at}-{rest[len(network) :]}"), hosts.split(",")


def _check_hosts(scheme: str, hosts: Sequence[str]) -> bool:
    """Whether each is `host` or `host:6379`; Sentinel and cluster may have several."""
    several = scheme.endswith(("+sentinel", "+cluster"))
    return (several or len(hosts) == 1) and all(_is_address(host) for host in hosts)


def _is_address(text: str) -> bool:
    one = urlsplit(f"//{text}")
    return bool(one.hostname) and (one.port is None or one.port > 0)


def check_redis_url(url: str) -> None:
    """Refuses a URL that cannot be a server, with a ValueError that quotes nothing of it. An accepted URL splits
    safely, so `redacted` hides every password in it."""
    try:
        usable = _is_redis_url(url)
    except ValueError:  # it quotes a port that is no number: a password where the host is missing
        usable = False
    if not usable:
        raise ValueError(f"expected {REDIS_URL}")


def _is_redis_url(url: str) -> bool:
    split, hosts = split_hosts(url)
    if split.scheme not in REDIS_SCHEMES or split.fragment:
        return False
    if split.scheme == "unix":
        return len(split.path) > 1
    path = r"/[^/@]+(/\d+)?" if split.scheme.endswith("+sentinel") else r"/?|/[0-9]+"
    return _check_hosts(split.scheme, hosts) and re.fullmatch(path, split.path) is not None


def check_given_url(name: str, url: str) -> None:
    """As `check_redis_url`, for what a caller gave by this name. Raises InvalidInput, which does not show the value:
    where no host or scheme can be told, neither can a password."""
    try:
        check_redis_url(url)
    except ValueError:
        raise InvalidInput([FieldError(name, "the given value", REDIS_URL)]) from None


def signing_key(secret: str) -> bytes:
    """The key of a secret such as `whsec_…`."""
    kind, _, encoded = secret.partition("_")
    key = b64decode(encoded, validate=True)
    if kind != "whsec" or not 24 <= len(key) <= 64:
        raise ValueError(kind)
    return key


def _prefixed_secrets(text: str) -> Sequence[tuple[str, str]]:
    """Parses `[prefix=]whsec_…` into pairs; the prefix is empty if none is given. (Base64 may end in `=`.)"""
    pairs = []
    for part in parts(text):
        prefix, _, secret = ("", "", part) if part.startswith("whsec_") else part.partition("=")
        signing_key(secret)
        pairs.append((check_prefix(prefix) if prefix else "", secret))
    return pairs


PrefixedSecrets = Annotated[tuple[tuple[str, SecretStr], ...], from_text(_prefixed_secrets)]


def keys_of(secrets: Sequence[tuple[str, SecretStr]], prefix: str) -> list[bytes]:
    """The keys that sign what is about a prefix, all at once: those of the longest prefix that serves it, else those
    given without a prefix."""
    chosen = owner(prefix, {given for given, _ in secrets}) or ""
    return [signing_key(secret.get_secret_value()) for given, secret in secrets if given == chosen]


def prefixed_urls(text: str) -> Sequence[tuple[str, str]]:
    """Parses `prefix=https://…` into pairs; no prefix may be given twice."""
    pairs = [(check_callers_prefix(prefix), url) for prefix, _, url in (part.partition("=") for part in parts(text))]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a prefix twice")
    for _, url in pairs:
        check_url(url)
    return pairs


def hook_urls(text: str) -> Sequence[tuple[str, str]]:
    """Parses `events@prefix=https://…` into pairs of what is asked for and the URL."""
    pairs = [(asked, url) for asked, _, url in (part.partition("=") for part in parts(text))]
    for asked, url in pairs:
        Hook.of(asked, url)
        check_url(url)
    return pairs


def check_url(url: str) -> None:
    """Accepts a URL, to call or to show."""
    split = urlsplit(url)
    if split.scheme not in ("https", "http") or not split.hostname or split.port == 0:
        raise ValueError(split.scheme)
    if not split.netloc.isprintable() or {" ", "\\"}.intersection(split.netloc):
        raise ValueError("the host")


def check_alarm(target: str) -> None:
    """Accepts the target of an alarm: a mail address, a URL, or a command that exists."""
    kind, _, rest = target.partition(":")
    if kind == "mailto":
        check_mail_from(rest)
        if re.search(r"//|;|@.*[?/]", rest):
            raise ValueError("more than an address")
    elif kind != "exec":
        check_url(target)
    elif not Path(rest).is_absolute() or not os.access(rest, os.X_OK) or Path(rest).is_dir():
        raise ValueError("no command")


def check_user_url(url: str) -> None:
    """Accepts a URL to call with `{user}` in its path or query."""
    if "{user}" not in urlsplit(url).path + urlsplit(url).query:
        raise ValueError("no {user}")
    check_url(url)


def check_smtp_url(url: str) -> None:
    """Accepts the URL of a mail server."""
    split = urlsplit(url)
    options = parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
    modes = [("starttls", mode) for mode in STARTTLS] if split.scheme == "smtp" else []
    if split.scheme not in ("smtp", "smtps") or not split.hostname or split.port == 0 or split.path not in ("", "/"):
        raise ValueError(split.scheme)
    if len(options) > 1 or not set(options) <= set(modes) or split.fragment:
        raise ValueError("options")


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
        text = Path(path).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"{name}: {path!r} cannot be read: {reason}") from None
    if text.startswith(_BYTE_ORDER_MARK):
        raise ConfigurationError(f"{name}: {path!r} begins with a byte order mark; save it as UTF-8 without one")
    if not text:
        raise ConfigurationError(f"{name}: {path!r} is empty")
    return text


def check_mail_from(given: str) -> None:
    """Accepts a mail address, with or without a name. An encoded word (`=?utf-8?q?…?=`) could hide a line break."""
    name, address = parseaddr(given)
    if "=?" in given:
        raise ValueError("an encoded word")
    if not re.fullmatch(r"[!-;=?A-~]+@[!-;=?A-~]+", address) or not (name + address).isprintable() or "\n" in given:
        raise ValueError("no address")


def places(text: str) -> Sequence[str]:
    """Parses networks, host names and `*.suffix`."""
    found = parts(text)
    for place in found:
        if not _HOST.fullmatch(place.removeprefix("*.")):
            ip_network(place)
    return found


def without_account(url: str) -> str:
    """Where a URL leads, without user and password, as others may be told."""
    place = re.sub(r"//[^?#]*@", "//", url)
    place = re.sub(r"(?i)([?&])(?:user[^&=]*|[^&=]*pass[^&=]*)=[^&]*(&?)", lambda m: m[1] if m[2] else "", place)
    return re.sub(r"\s", "%20", place)


def redacted(url: str) -> str:
    """The URL with `***` in place of passwords, before the host and in the query."""
    shown_account = re.sub(r"//([^/?#@:]*):.*@", r"//\1:***@", url)
    return re.sub(r"(?i)([?&][^&=]*pass[^&=]*=)[^&]*", r"\1***", shown_account)
