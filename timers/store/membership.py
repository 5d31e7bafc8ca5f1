"""Owns who is alive and who declared what: the pods' signs of life, and the prefixes that pods ever declared.

A sign has two parts, what a pod is and how it is. Each is sent only when it has changed, and others read what pods are
only when that has changed, so a beat stays short however many pods and processors there are. Declarations outlive their
pods, because no other processor may take a prefix while its own pods are gone.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, get_args

from pydantic import Field, TypeAdapter

from timers.core.answers import PodAnswer
from timers.core.durations import format_time
from timers.core.fields import decode, is_prefix, owner
from timers.core.shapes import Delivery
from timers.store import keys
from timers.store.identity import SILENT_SECONDS
from timers.store.scripts import Argument, grouped, reachable, read
from timers.store.starts import LARGEST_BUCKET, quantiles_ms
from timers.store.store import Store

FORGET_AFTER_MS: Final = SILENT_SECONDS * 1000
"""A pod that is silent for longer counts as gone; until then its share of events is claimed later by others."""

INTRODUCE_BEATS: Final = 10
"""Every so many beats a pod tells everything again, in case another program has removed it."""

DELIVERY_STATES: Final = get_args(Delivery)

LIMITS: Final = "limits of "
"""Begins the name of the setting in which a pod tells the limits of a processor."""

ADOPT_EVERY: Final = "TIMERS_ADOPT_EVERY"
"""The name of the setting in which a pod tells how often it looks for bare keys."""

LEDGER_URL: Final = "TIMERS_LEDGER_URL"
"""The name of the setting in which a pod tells whether it is `set`."""

VERSION: Final = "version"
"""The name of the setting in which a pod tells its version."""

_CARD: Final = ("roles", "processors", "only", "shards", "concurrency", "settings", "format", "process")
_STATE: Final = ("running", "notifications", "lateness", "lacks", "newer")
_VERSION: Final = f"{keys.PODS_ROOT}version"
_DECLARED: Final = f"{keys.PODS_ROOT}declared"

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Bucket = Annotated[int, Field(ge=0, le=LARGEST_BUCKET)]


@dataclass(frozen=True, slots=True)
class Member:
    """A live pod. `processors` are the prefixes of its processors. `only` and `shards` are what it is limited to (empty
    `only`: any prefix; None: all shards). `settings` are those that should be the same on all pods, as text. `lateness`
    counts its starts of the last minutes by bucket. `lacks` says what its Redis user was just refused, by prefix.
    `format` is the newest record format that may be written while it is alive (1 if it says none, as the first
    versions); `process` tells it from another pod of its name; `newer` are timers that it met in a format that it
    cannot read. `trouble` says which parts of its sign cannot be read; they count as missing."""

    pod: str
    seen_ms: _Count = 0
    roles: tuple[str, ...] = ()
    processors: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    shards: tuple[_Count, ...] | None = None
    concurrency: _Count = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    format: Annotated[int, Field(ge=1, le=99)] = 1
    process: str = ""
    running: _Count = 0
    notifications: str = DELIVERY_STATES[-1]
    lateness: Mapping[_Bucket, _Count] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    newer: Mapping[str, int] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def works(self) -> bool:
        """Whether it runs timers."""
        return "worker" in self.roles

    @property
    def adopts(self) -> bool:
        """Whether it looks for bare keys."""
        return self.settings.get(ADOPT_EVERY) != "off"

    @property
    def has_ledger(self) -> bool:
        """Whether it uses a ledger."""
        return self.settings.get(LEDGER_URL) == "set"

    @property
    def version(self) -> str | None:
        """The version of the service that it runs; None if it does not tell."""
        return self.settings.get(VERSION)

    @property
    def delivery(self) -> str:
        """How notifications arrive at the pod; `deaf` for anything unknown."""
        return self.notifications if self.notifications in DELIVERY_STATES else DELIVERY_STATES[-1]

    def limits_of(self, processor: str | None) -> str:
        """The limits of a processor over all pods; empty if this pod tells none."""
        return self.settings.get(f"{LIMITS}{processor}", "")

    def takes(self, shard: int) -> bool:
        """Whether it runs timers of the shard."""
        return self.works and (self.shards is None or shard in self.shards)

    def to_json(self) -> PodAnswer:
        """The pod as the API shows it."""
        return {
            "pod": self.pod,
            "seen_at": format_time(self.seen_ms),
            "version": self.version,
            "format": self.format,
            "roles": list(self.roles),
            "serves": sorted(self.processors),
            "only": list(self.only),
            "shards": None if self.shards is None else list(self.shards),
            "running": self.running,
            "concurrency": self.concurrency,
            "notifications": self.delivery if self.works else None,
            "lateness_ms": quantiles_ms(self.lateness),
            "trouble": self.trouble,
        }


_MEMBER: Final = TypeAdapter(Member)


class Declaration(NamedTuple):
    """Who declared a prefix last, and when by the server's clock."""

    at_ms: int
    pod: str


@dataclass(frozen=True)
class Roster:
    """The live pods and the declared prefixes at one moment. `version` changes when a pod's card or a declaration
    changes, not when a pod's state does."""

    version: bytes = b""
    members: Sequence[Member] = ()
    declared: Mapping[str, Declaration] = field(default_factory=dict)

    @cached_property
    def workers(self) -> Sequence[Member]:
        """The pods that run timers."""
        return [member for member in self.members if member.works]

    @property
    def by_name(self) -> Sequence[Member]:
        """All live pods by name."""
        return sorted(self.members, key=lambda member: member.pod)

    def owner(self, prefix: str) -> str | None:
        """The processor that owns timers of the prefix, whether or not a pod has it now: the longest ever declared.
        None if there never was one."""
        return owner(prefix, self.declared)

    def serving(self, prefix: str) -> Sequence[Member]:
        """The live pods that run timers of the prefix: those with the processor that owns it."""
        found = self.owner(prefix)
        return [m for m in self.workers if found in m.processors and (not m.only or owner(prefix, m.only) is not None)]


class Membership:
    """The registry of one db as one pod or one reader sees it. Raises Unavailable while Redis is down."""

    def __init__(self, store: Store, *, forget_after_ms: int = FORGET_AFTER_MS) -> None:
        self.store, self._redis = store, store.connections.commands
        self._forget_after_ms = forget_after_ms
        self._said_card = self._said_state = ""
        self._beats = 0
        self._introduced: set[str] = set()
        self._roster = Roster()
        self._lost: set[str] = set()
        """Prefixes whose declarations were lost, until they are declared again."""

    async def beat(self, me: Member) -> Roster:
        """Give a sign of life, declare the member's processors, and learn what the live pods are; `read` tells how they
        are. What the registry knows of the member is sent again only now and then, or after it was lost or somebody
        took a declaration back. If all declarations were lost, those known until then are declared again with it:
        otherwise a pod with a shorter prefix would run the timers of pods that are away."""
        card, self._beats = _json(me, *_CARD), self._beats + 1
        if self._said_card:
            known, roster = self._roster.declared, await self._beat(me)
            is_introduced = me.pod in self._introduced
            if not (is_introduced or known.items() & roster.declared.items()):
                self._lost |= known.keys()
            is_told = card == self._said_card and is_introduced and me.processors | self._lost <= roster.declared.keys()
            if is_told and self._beats % INTRODUCE_BEATS:
                return roster
        self._said_state = ""
        roster = await self._beat(me, card, *sorted(me.processors | self._lost))
        self._said_card = card
        self._lost.clear()
        return roster

    async def _beat(self, me: Member, card: str = "", *declares: str) -> Roster:
        state = _json(me, *_STATE)
        news = "" if state == self._said_state else state
        version, signs, cards, declared = await self._run(me.pod, news, self._roster.version, card, *declares)
        self._said_state = state
        if version != self._roster.version:
            parts = {pod: _part(pod, text) for pod, text in grouped(cards, 2)}
            self._introduced = {member.pod for member in parts.values()}
            members = [_member(parts, pod, float(score)) for pod, score in grouped(signs, 2)]
            self._roster = Roster(version, members, _declarations(dict(grouped(declared, 2))))
        return self._roster

    async def leave(self, pod: str) -> None:
        """Sign a pod off. Its declarations stay."""
        self._said_card = ""
        await self._run(pod, "gone", b"")

    async def _run(self, pod: str, state: str, version: bytes, card: str = "", *declares: str) -> list[Any]:
        arguments: list[Argument] = [pod, state, self._forget_after_ms, version, card, *declares]
        return await self.store.run("beat", keys.PODS_ROOT, arguments)

    async def read(self) -> Roster:
        """Read who is alive without giving a sign of life. Writes nothing."""
        root = keys.PODS_ROOT
        version, seen, states, cards, declared, (seconds, micros) = await read(
            self._redis,
            lambda asked: [
                asked.get(_VERSION).zrange(f"{root}seen", 0, -1, withscores=True),
                asked.hgetall(f"{root}states").hgetall(f"{root}cards").hgetall(_DECLARED).time(),
            ],
            *(b"", [], {}, {}, {}, ()),
        )
        now_ms = seconds * 1000 + micros // 1000
        alive = [(pod, score) for pod, score in seen if abs(now_ms - score) <= self._forget_after_ms]
        parts = {pod: _part(pod, text) for pod, text in cards.items()}
        members = [_member(parts, pod, score, states.get(pod, b"{}")) for pod, score in alive]
        return Roster(version or b"", members, _declarations(declared))

    async def declared(self, known: Roster) -> Roster:
        """Read the declared prefixes without the pods. Returns `known` itself if nothing has changed since, or if all
        declarations went with lost data: pods will declare theirs again in a moment, and no create should fail until
        then. Writes nothing."""
        (version,) = await read(self._redis, lambda asked: asked.get(_VERSION), None)
        if known.declared and version in (None, known.version):
            return known
        (found,) = await read(self._redis, lambda asked: asked.hgetall(_DECLARED), None)
        return known if found is None else Roster(version or b"", (), _declarations(found))

    async def declare(self, prefix: str, said: Declaration) -> bool:
        """Declare a prefix for a pod that did so before. False if it is declared. Pods are told even then: an earlier
        call may have been cut off."""
        with reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                asked.hsetnx(_DECLARED, prefix, f"{said.at_ms} {said.pod}")
                asked.set(_VERSION, secrets.token_hex(8))
                return bool((await asked.execute())[0])

    async def forget(self, prefix: str) -> bool:
        """Take a declaration back. False if there was none. Raises Moving."""
        await self.store.identity.check_stays()
        with reachable():
            if not await self._redis.hexists(_DECLARED, prefix):
                return False
            async with self._redis.pipeline(transaction=False) as asked:
                asked.hdel(_DECLARED, prefix)
                asked.set(_VERSION, secrets.token_hex(8))
                await asked.execute()
        return True


def _json(member: Member, *names: str) -> str:
    said = {name: getattr(member, name) for name in names}
    return json.dumps(said, separators=(",", ":"), default=sorted)


def _part(pod: bytes, text: bytes) -> Member:
    """The content of one part of a sign. A part that cannot be read says only that."""
    name = pod.decode(errors="replace")
    try:
        return _MEMBER.validate_python({**decode(text), "pod": name, "trouble": None})
    except (ValueError, TypeError) as error:
        return Member(name, trouble=f"its heartbeat cannot be read ({type(error).__name__})")


def _member(cards: Mapping[bytes, Member], pod: bytes, seen_ms: float, state: bytes = b"{}") -> Member:
    what, how = cards.get(pod, Member(pod.decode(errors="replace"))), _part(pod, state)
    said = {name: getattr(how, name) for name in _STATE}
    return replace(what, seen_ms=int(seen_ms), trouble=what.trouble or how.trouble, **said)


def _declarations(found: Mapping[bytes, bytes]) -> dict[str, Declaration]:
    """By prefix, without foreign entries, which no timer can match."""
    named = {prefix.decode(errors="replace"): text.decode(errors="replace") for prefix, text in found.items()}
    return {prefix: _declaration(text) for prefix, text in named.items() if is_prefix(prefix)}


def _declaration(text: str) -> Declaration:
    at_ms, _, pod = text.partition(" ")
    return Declaration(
        int(at_ms) if at_ms.isascii() and at_ms.isdecimal() and len(at_ms) <= keys.TIME_DIGITS else 0, pod
    )
