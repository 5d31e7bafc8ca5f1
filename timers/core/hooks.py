"""Owns lifecycle hooks: which changes a hook asks for, and what a call says about a change."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from timers.core.durations import format_time
from timers.core.fields import OWN_PREFIXES, check_prefixes, covers, is_prefix
from timers.core.model import IMPORTED, RESTORED, HistoryEntry, Status, Timer

EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {"armed": "a", "started": "r", "completed": "c", "retried": "t", "failed": "f", "unhandled": "u", "cancelled": "x"}
)
"""The events that a hook may ask for, each with its letter in Redis."""

NAMES: Final[Mapping[str, str]] = MappingProxyType({letter: name for name, letter in EVENTS.items()})

HOOK: Final = f"{OWN_PREFIXES}hook"
ALARM: Final = f"{OWN_PREFIXES}alarm"
"""Prefixes of the service's own timers, each followed by `-` and a digest of the target."""

CALLS: Final = f"{HOOK}-"
"""What the prefixes of the calls of hooks begin with."""

_BY_CAUSE: Final = MappingProxyType(
    {
        "completed": "c",
        "skipped": "c",
        "failed": "f",
        "retry": "t",
        "snoozed": "",
        "handed-back": "",
        "bare-due": "",
        IMPORTED: "",
        RESTORED: "",
    }
)
_BY_STATUS: Final = MappingProxyType({Status.SCHEDULED: "armed", Status.RUNNING: "started"})
_LONGEST_NAME: Final = 160
CHANGES_LIMIT: Final = 10_000
"""Of how many changes of a timer the calls are looked for: a timer that repeats for years has millions."""
_LEFT_OUT: Final = ("payload", "result", "lease", "history", "updated_at")


class Hook(NamedTuple):
    """What a pod asks for: events, as letters, of timers whose prefix matches `pattern`, which is a prefix, or the
    beginning of prefixes and `*`. `prefix` is that of the timers that make the calls; it stands for the target without
    showing its URL."""

    letters: str
    pattern: str
    prefix: str
    with_payload: bool = False

    @classmethod
    def of(cls, asked: str, url: str) -> "Hook":
        """From `event[+event…][+payload]@prefix`, as in TIMERS_HOOKS. Raises ValueError."""
        events, _, pattern = asked.partition("@")
        names = set(events.split("+"))
        if pattern != "*":
            check_prefixes(pattern)
        wanted = set(EVENTS) if "all" in names else names - {"payload"}
        if not wanted or not names <= {*EVENTS, "all", "payload"}:
            raise ValueError("no such event")
        letters = "".join(letter for name, letter in EVENTS.items() if name in wanted)
        return cls(letters, pattern, prefix_of(HOOK, url), "payload" in names)

    @classmethod
    def alarm(cls, target: str) -> "Hook":
        """The events that an alarm counts."""
        return cls(EVENTS["failed"] + EVENTS["unhandled"], "*", prefix_of(ALARM, target))

    @classmethod
    def parse(cls, line: str) -> "Hook | None":
        """From its text in Redis; None for any other text. No hook hears of timers that make calls; if another program
        named other timers, each call would lead to more calls."""
        match line.split(" "):
            case [letters, pattern, prefix, *rest] if set(letters) <= set(NAMES) and _makes_calls(prefix):
                return cls(letters, pattern, prefix, rest == ["payload"])
        return None

    def __str__(self) -> str:
        return " ".join((self.letters, self.pattern, self.prefix, *(["payload"] if self.with_payload else [])))

    @property
    def events(self) -> Sequence[str]:
        return [NAMES[letter] for letter in self.letters]

    def covers(self, prefix: str) -> bool:
        return covers(self.pattern, prefix)


def _makes_calls(prefix: str) -> bool:
    return is_prefix(prefix) and prefix.startswith((CALLS, f"{ALARM}-"))


def prefix_of(kind: str, target: str) -> str:
    """The prefix of the timers that call a target."""
    return f"{kind}-{hashlib.sha256(target.encode()).hexdigest()[:16]}"


def page_of(timer: Timer, public_url: str | None) -> str | None:
    """The timer's page in the dashboard."""
    return None if public_url is None else f"{public_url.rstrip('/')}/ui/timers/{timer.prefix}/{timer.id}"


def call_of(timer: Timer, letter: str, hooks: Sequence[Hook], public_url: str | None) -> tuple[str, dict[str, Any]]:
    """The id and the payload of the timer that makes the call. The payload has the `body`, the `prefix` of the timer
    that changed, and in `after` the id of the call that must end first. All the hooks have the same target. The same
    change always gives the same call. Nothing keeps the payload of a timer that was purged."""
    before = _version_before(timer, "".join(hook.letters for hook in hooks))
    with_payload = any(hook.with_payload for hook in hooks if letter in hook.letters) and not _is_removed(timer)
    payload = {
        "prefix": timer.prefix,
        "body": _body(timer, letter, with_payload=with_payload, page=page_of(timer, public_url)),
        **({} if before is None else {"after": _call_id(timer, before)}),
    }
    return _call_id(timer, timer.version), payload


def ids_of_calls(timer: Timer) -> Sequence[str]:
    """The ids that calls about a timer's newest changes may have, newest first; after a purge without that about its
    removal."""
    newest = timer.version - _is_removed(timer)
    return [_call_id(timer, version) for version in range(newest, max(newest - CHANGES_LIMIT, 0), -1)]


def _is_removed(timer: Timer) -> bool:
    """Whether a purge cancelled the timer."""
    return bool(timer.history) and timer.history[0].cause == "removed"


def _call_id(timer: Timer, version: int) -> str:
    """The timer's key (its hash if the key is too long for an id), the time it was created, and the version. The time
    is needed because a timer that is purged and created again counts its versions from the beginning."""
    name = timer.key if len(timer.key) <= _LONGEST_NAME else hashlib.sha256(timer.key.encode()).hexdigest()
    return f"{name}:{timer.created_ms}:{version}"


def _version_before(timer: Timer, letters: str) -> int | None:
    """The newest earlier version that the hooks ask for too. Each history entry is one version."""
    for back, entry in enumerate(islice(timer.history, 1, None), 1):
        if entry.cause == "dropped":
            return None
        if letter_of(entry) in set(letters):
            return timer.version - back
    return None


def letter_of(entry: HistoryEntry) -> str:
    """The letter of a history entry's event, empty if it is none; the same rule as in lua/common.lua."""
    return _BY_CAUSE.get(entry.cause, EVENTS[_BY_STATUS.get(entry.status, entry.status.value)])


def _body(timer: Timer, letter: str, *, with_payload: bool, page: str | None) -> dict[str, Any]:
    """What the receiver gets: the timer as the API shows it, without its payload and result unless a hook asks for the
    payload."""
    data: dict[str, Any] = {name: value for name, value in timer.to_json().items() if name not in _LEFT_OUT}
    if with_payload:
        data |= {"payload": timer.payload, "result": timer.result}
    if (error := data["last_error"]) is not None:
        data["last_error"] = {name: value for name, value in error.items() if name not in {"detail", "where"}}
    if page is not None:
        data["url"] = page
    data["note"] = timer.history[0].note
    return {"type": f"timer.{NAMES[letter]}", "timestamp": format_time(timer.updated_ms), "data": data}
