"""Owns who may do what: how API keys are made and kept, which prefixes they cover, and what a caller may do.

A key is `tmk_<id>_<secret>` and is shown once. Only its entry is kept, one line with the SHA-256 of the key::

    <id>:<sha256 in hex>:<prefixes>:<rights>[:rate=100/s][:pending=100000][:most_prefixes=100][:name=billing]
        [:made=2026-11-21]

Prefixes and rights are joined by `+`. A prefix covers only itself; `name*` covers every prefix that begins with `name`.
"""

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

from timers.core.fields import PREFIXES_RULE, check_prefixes, covers
from timers.core.policies import Rate
from timers.errors import InvalidInput

Right = Literal["read", "write", "operate"]

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
ALL_PREFIXES: Final = "*"
MOST_PREFIXES: Final = 100
"""How many prefixes may have timers under a key with a limit of pending timers, unless the key sets its own number."""

STORED: Final = "stored"
"""In TIMERS_API_KEYS it means: ask for a key even if none is given here. The keys are those in Redis."""

ENTRY_RULE: Final = (
    "entries as `timers keys make` prints them, id:sha256:prefixes:rights, separated by commas or spaces, "
    f"or the word {STORED} for the keys kept in Redis alone"
)

_KIND: Final = "tmk"
KEY_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_OPTIONS: Final = {
    "rate": (r".+", "a rate such as 100/s"),
    "pending": (r"[1-9][0-9]{0,14}", "a whole number from 1 to 999999999999999"),
    "most_prefixes": (r"[1-9][0-9]{0,5}", "a whole number from 1 to 999999"),
    "name": (r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name of up to 64 letters, digits, '_', '.' and '-'"),
    "made": (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "a date such as 2026-11-21"),
}
"""What each option may be, as a pattern and in words."""

_NUMBERS: Final = ("pending", "most_prefixes")
_ID_CHARACTERS: Final = 10
_SECRET_CHARACTERS: Final = 43
"""Each is one of 62, which makes 256 bits: too many to guess from a hash, so one round of SHA-256 is enough."""


@dataclass(frozen=True)
class ApiKey:
    """A key as it is kept, and who asks with it. Each of `prefixes` is one, or the beginning of several and `*`.
    `options` is what follows the rights: texts, and numbers for the two limits of timers. (What a call asks for is
    worked out once.)"""

    id: str
    prefixes: tuple[str, ...]
    rights: frozenset[Right]
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: bytes = field(default=b"", repr=False)

    @classmethod
    def parse(cls, entry: str) -> Self:
        """From an entry. Raises InvalidInput. Its text may show the entry, because a hash of 256 random bits is no
        secret."""
        key_id, digest, prefixes, rights, *options = [*entry.split(":"), "", "", ""]
        if not KEY_ID.fullmatch(key_id) or not _DIGEST.fullmatch(digest):
            raise InvalidInput.of("key", entry, ENTRY_RULE)
        given = {name: value for name, _, value in (option.partition("=") for option in options if option)}
        covered, allowed = parse_prefixes(prefixes.split("+")), parse_rights(rights.split("+"))
        return cls(key_id, covered, allowed, _options(given), bytes.fromhex(digest))

    @classmethod
    def kept(cls, entry: str) -> Self | None:
        """As `parse`, or None for an entry that cannot be read."""
        try:
            return cls.parse(entry)
        except InvalidInput:
            return None

    @property
    def entry(self) -> str:
        """The line to keep."""
        parts = [self.id, self.digest.hex(), "+".join(self.prefixes), "+".join(sorted(self.rights))]
        return ":".join(parts + [f"{name}={value}" for name, value in self.options.items()])

    @cached_property
    def name(self) -> str:
        """Its name, or its id if it has none."""
        return str(self.options.get("name", self.id))

    def covers(self, prefix: str) -> bool:
        return ALL_PREFIXES in self.prefixes or any(covers(each, prefix) for each in self.prefixes)

    @cached_property
    def sees(self) -> Callable[[str], bool] | None:
        """Tells the prefixes that it covers from others; None if it covers all."""
        return None if ALL_PREFIXES in self.prefixes else self.covers

    @property
    def may_make_keys(self) -> bool:
        """Whether it has every right over every prefix: any other key could get more by making another."""
        return self.sees is None and len(self.rights) == len(RIGHTS)

    @cached_property
    def rate(self) -> Rate | None:
        """How often it may call; with a burst of one second, because a caller's calls come in bunches."""
        given = self.options.get("rate")
        every_us = 0 if given is None else Rate.parse(given).interval_us
        return Rate(every_us, max(1, 1_000_000 // every_us)) if every_us else None

    @cached_property
    def most_prefixes(self) -> int | None:
        """How many prefixes may have timers under it; None without a limit."""
        most: int | None = self.options.get("most_prefixes")
        return MOST_PREFIXES if most is None and "pending" in self.options else most


ANYBODY: Final = ApiKey("", (ALL_PREFIXES,), frozenset(RIGHTS))
"""Anybody who reaches an API that asks for no key."""


def parse_prefixes(given: Iterable[str]) -> tuple[str, ...]:
    """From prefixes, and beginnings of them with `*`. Raises InvalidInput."""
    prefixes = tuple(dict.fromkeys(given))
    for each in prefixes:
        if each != ALL_PREFIXES:
            check_prefixes(each, "prefixes")
    if not prefixes:
        raise InvalidInput.of("prefixes", "", PREFIXES_RULE)
    return prefixes


def parse_rights(given: Iterable[str]) -> frozenset[Right]:
    """From names of rights. Raises InvalidInput."""
    names = frozenset(given)
    if not names or not names <= set(RIGHTS):
        raise InvalidInput.of("rights", "+".join(sorted(names)), f"one or more of {', '.join(RIGHTS)}")
    return frozenset(right for right in RIGHTS if right in names)


def _options(given: Mapping[str, str]) -> Mapping[str, str | int]:
    """The options in the order of an entry, each checked. Raises InvalidInput."""
    for name, value in given.items():
        pattern, rule = _OPTIONS.get(name, ("(?!)", f"only the options {', '.join(_OPTIONS)}"))
        if not re.fullmatch(pattern, value):
            raise InvalidInput.of(name, value, rule)
    if "rate" in given:
        Rate.parse(given["rate"])
    return {name: int(given[name]) if name in _NUMBERS else given[name] for name in _OPTIONS if name in given}


def read_entries(text: str) -> tuple[ApiKey, ...]:
    """The keys in TIMERS_API_KEYS, without the word for stored keys. Raises InvalidInput."""
    entries = [entry for entry in re.split(r"[,\s]+", text) if entry and entry != STORED]
    keys = tuple(map(ApiKey.parse, entries))
    if len({key.id for key in keys}) < len(keys):
        raise InvalidInput.of("key", "an id given twice", "different ids")
    return keys


def make_key(prefixes: Iterable[str], rights: Iterable[str], **options: str | int | None) -> tuple[str, ApiKey]:
    """A new key, to be shown once, and what is kept of it: made today, unless `options` say otherwise. The prefixes are
    patterns, the options those of an entry; None means no such option. Raises InvalidInput."""
    covered, allowed = parse_prefixes(prefixes), parse_rights(rights)
    key_id = _random(string.ascii_lowercase + string.digits, _ID_CHARACTERS)
    secret = f"{_KIND}_{key_id}_{_random(string.ascii_letters + string.digits, _SECRET_CHARACTERS)}"
    options = {"made": datetime.now(UTC).date().isoformat(), **options}
    given = _options({name: str(value) for name, value in options.items() if value is not None})
    return secret, ApiKey(key_id, covered, allowed, given, hashlib.sha256(secret.encode()).digest())


def _random(characters: str, length: int) -> str:
    return "".join(secrets.choice(characters) for _ in range(length))


_NOBODY: Final = secrets.token_bytes(32)


def with_secret(given: bytes, keys: Mapping[str, ApiKey]) -> ApiKey | None:
    """The key, of those by id, whose secret this is; None for anything else. An unknown id costs as much time as a
    wrong secret."""
    kind, _, rest = given.partition(b"_")
    key = keys.get(rest.partition(b"_")[0].decode("ascii", "replace")) if kind == _KIND.encode() else None
    digest = _NOBODY if key is None else key.digest
    return key if hmac.compare_digest(hashlib.sha256(given).digest(), digest) else None
