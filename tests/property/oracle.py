"""A timer service in memory: what the scripts ought to do, said anew without Redis, so that the two can be compared."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from timers.core.causes import in_english
from timers.core.decide import Transition
from timers.core.model import HISTORY_LIMIT, NO_PROGRESS, Progress, Status, Timer
from timers.store.codec import encode_said
from timers.store.store import Arming, Identity

Line = tuple[Status, int, str | None, str]
"""What a history entry says: status, attempt, pod, note."""

SAME_DUE_MS = 10
"""A bare key whose expiry moved by less has not been set again: two readings of one clock may differ."""

ALL = 1_000_000
"""More expiries of a bare key than are ever heard."""


@dataclass(slots=True)
class Life:
    """One timer. `place` is its turn among those of the same due time; `leased` whether its lease key is there."""

    due_ms: int
    place: int
    spec: Mapping[str, Any]
    progress: Progress
    status: Status = Status.SCHEDULED
    version: int = 1
    token: int = 0
    attempt: int = 0
    failures: int = 0
    occurrence: int = 1
    adopted: bool = False
    holder: str | None = None
    leased: bool = False
    lines: list[Line] = field(default_factory=list)

    def note(self, said: str, pod: str | None = None) -> None:
        """A change: one more line, one more version."""
        self.version += 1
        self.lines.append((self.status, self.attempt, pod, said))

    @property
    def shown(self) -> list[Line]:
        """The history as a reader gets it: the creation and everything after, or the newest behind a marker."""
        kept = HISTORY_LIMIT - 1
        dropped = len(self.lines) - kept
        first = "created" if dropped <= 0 else f"{dropped + 1} older entries dropped"
        return [(Status.SCHEDULED, 0, None, first), *self.lines[-kept:]]


class Oracle:
    """All timers of a db, and the bare keys that a client has set."""

    def __init__(self) -> None:
        self.lives: dict[Identity, Life] = {}
        self.paused: set[str] = set()
        self.bare: dict[Identity, tuple[bytes, int | None]] = {}
        """Value and expiry (ms; None for never) of each bare key that is there."""
        self.answered: dict[Identity, int] = {}
        """How many expiries of a bare key have been made due."""
        self._places = count()

    # What callers do.

    def arm(self, arming: Arming, due_ms: int, now_ms: int, edit_lock_ms: int = 0) -> str:
        """`due_ms` is what the arming's due comes to."""
        identity = (arming.prefix, arming.id)
        life = self.lives.get(identity)
        if life is None:
            self._born(identity, due_ms, arming.spec, arming.progress)
            return "created"
        if arming.if_exists != "replace":
            return "kept" if arming.if_exists == "keep" else "exists"
        if life.status is Status.RUNNING:
            return "running"
        if self._locked(life, now_ms, edit_lock_ms):
            return "locked"
        self._anew(identity, due_ms, arming.spec, arming.progress, in_english(arming.cause, ""))
        return "replaced"

    def cancel(self, identity: Identity, now_ms: int, edit_lock_ms: int, version: int | None, *, purge: bool) -> str:
        life = self.lives.get(identity)
        refused = self._refused(life, now_ms, edit_lock_ms, version)
        if life is None or refused not in (None, "finished"):
            return refused or "missing"
        if refused == "finished" and life.status is not Status.CANCELLED and not purge:
            return "finished"
        self._unset(identity, life)
        if purge:
            del self.lives[identity]
            return "purged"
        if life.status is Status.SCHEDULED:
            life.status = Status.CANCELLED
            life.note("cancelled")
        return "cancelled"

    def change(
        self,
        identity: Identity,
        now_ms: int,
        edit_lock_ms: int = 0,
        version: int | None = None,
        *,
        due_ms: int | None = None,
        spec: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        note: str,
    ) -> str:
        life = self.lives.get(identity)
        refused = self._refused(life, now_ms, edit_lock_ms, version)
        if life is None or refused is not None:
            return refused or "missing"
        if due_ms is not None or life.adopted:
            self._queue(life, life.due_ms if due_ms is None else due_ms)
        self._unset(identity, life)
        life.spec = life.spec if spec is None else spec
        life.progress = life.progress if progress is None else progress
        life.note(note)
        return "changed"

    def rearm(
        self, identity: Identity, due_ms: int, note: str, version: int | None = None, *, completed: bool = False
    ) -> str:
        life = self.lives.get(identity)
        if life is None:
            return "missing"
        if version is not None and version != life.version:
            return "version"
        if life.status in (Status.RUNNING, Status.SCHEDULED) or (life.status is Status.COMPLETED and not completed):
            return life.status.value
        if life.status is Status.COMPLETED:
            life.occurrence, life.attempt = life.occurrence + 1, 0
        life.status, life.failures = Status.SCHEDULED, 0
        life.note(note)
        self._queue(life, due_ms)
        return "changed"

    # What pods do.

    def due(self, prefix: str, now_ms: int) -> list[Identity]:
        """What may be claimed of a queue, in order."""
        waiting = [i for i in self.queued(prefix) if self.lives[i].due_ms <= now_ms]
        return sorted(waiting, key=lambda i: (self.lives[i].due_ms, self.lives[i].place))

    def queued(self, prefix: str) -> list[Identity]:
        """What is in a queue, due or not."""
        return [
            i
            for i, life in self.lives.items()
            if i[0] == prefix and life.status is Status.SCHEDULED and not life.adopted
        ]

    def of_status(self, status: Status) -> list[Identity]:
        return [identity for identity, life in self.lives.items() if life.status is status]

    def claim(self, identity: Identity, token: int, pod: str, cause: str) -> None:
        life = self.lives[identity]
        life.status, life.token, life.attempt = Status.RUNNING, token, life.attempt + 1
        life.holder, life.leased = pod, True
        life.note(cause, pod)

    def rescue(self, identity: Identity, token: int, pod: str) -> None:
        self.lives[identity].failures += 1
        self.claim(identity, token, pod, "rescue")

    def orphans(self) -> set[Identity]:
        """Runs whose lease has expired."""
        return {i for i in self.of_status(Status.RUNNING) if not self.lives[i].leased}

    def may_rescue(self, identity: Identity) -> bool:
        return identity in self.orphans() and identity[0] not in self.paused

    def extend(self, timer: Timer, pod: str) -> bool:
        """True where the run goes on; its lease is there again if it had expired."""
        life = self.lives.get((timer.prefix, timer.id))
        if life is None or life.status is not Status.RUNNING or life.token != timer.token:
            return False
        if not life.leased:
            life.holder, life.leased = pod, True
        return True

    def settle(self, timer: Timer, after: Transition, pod: str, *, keeps: bool) -> str:
        """`keeps` is False where finished records are removed at once."""
        identity = (timer.prefix, timer.id)
        life = self.lives.get(identity)
        if life is None:
            return "missing"
        if life.token != timer.token:
            return "fenced"
        if life.status is not Status.RUNNING:
            return "already"
        life.spec = life.spec if after.spec is None else after.spec
        life.status, life.progress, life.leased = after.status, after.progress, False
        life.attempt = after.attempt if after.occurrence == life.occurrence else life.attempt
        code, _, text = encode_said(*after.cause).partition(" ")
        life.note(in_english(code, text), pod)
        life.attempt, life.failures, life.occurrence = after.attempt, after.failures, after.occurrence
        self._queue(life, after.due_ms)
        if after.status.finished and not keeps:
            del self.lives[identity]
        return "settled"

    def abandon(self, identities: Iterable[Identity], pod: str) -> None:
        for identity in identities:
            self.lives[identity].status = Status.UNHANDLED
            self.lives[identity].note("no live pod serves the prefix", pod)

    def abandon_run(self, identity: Identity, token: int, pod: str) -> None:
        life = self.lives[identity]
        life.status, life.token, life.failures = Status.UNHANDLED, token, life.failures + 1
        life.note("its pod died or lost the lease, and no live pod serves the prefix", pod)

    # What becomes of bare keys.

    def adopt(self, identity: Identity, value: bytes, spec: Mapping[str, Any]) -> str:
        life = self.lives.get(identity)
        there_value, until_ms = self.bare.get(identity, (None, None))
        if there_value != value or until_ms is None:
            return "gone"
        if life is not None and life.status is Status.RUNNING:
            return "running"
        if life is None or not life.adopted:
            self._adopted(identity, life, until_ms, spec)
            return "adopted"
        if abs(life.due_ms - until_ms) <= SAME_DUE_MS and life.spec == spec:
            return "same"
        life.due_ms, life.spec = until_ms, spec
        life.note("its bare key was set again")
        return "moved"

    def _adopted(self, identity: Identity, life: Life | None, due_ms: int, spec: Mapping[str, Any]) -> None:
        if life is None:
            life = self._born(identity, due_ms, spec, NO_PROGRESS)
        else:
            self._anew(identity, due_ms, spec, NO_PROGRESS, "adopted from its bare key")
        life.adopted = True

    def announce(self, identity: Identity, heard: int, now_ms: int) -> str:
        life = self.lives.get(identity)
        known = heard <= self.answered.get(identity, 0)
        if life is not None and life.status is Status.RUNNING:
            return "known" if known else "running"
        adopted = life is not None and life.adopted
        if life is not None and adopted and self._is_of_its_key(identity, life):
            return "known"
        if known and not adopted:
            return "known"
        self.answered[identity] = max(heard, self.answered.get(identity, 0))
        if life is None:
            self._born(identity, now_ms, {}, NO_PROGRESS).note("its bare key expired")
        elif adopted:
            life.adopted = False
            sooner = life.due_ms > now_ms + SAME_DUE_MS
            life.due_ms = now_ms if sooner else life.due_ms
            life.note("its bare key was set again and expired" if sooner else "its bare key expired")
            self._queue(life, life.due_ms)
        else:
            self._anew(identity, now_ms, {}, NO_PROGRESS, "its bare key expired")
        return "due"

    def look(self) -> set[Identity]:
        """Adopted timers whose key is gone; one whose key will never expire is cancelled."""
        adopted = [identity for identity, life in self.lives.items() if life.adopted]
        for identity in adopted:
            if identity in self.bare and self.bare[identity][1] is None:
                self._deleted(identity, "its bare key lost its TTL")
        return {identity for identity in adopted if identity not in self.bare}

    def conclude(self, identities: Iterable[Identity], *, deleted: bool) -> None:
        for identity in identities:
            if deleted:
                self._deleted(identity, "its bare key was deleted")
            else:
                self.lives[identity].adopted = False
                self.answered[identity] = ALL
                self.lives[identity].note("its bare key expired unheard")
                self._queue(self.lives[identity], self.lives[identity].due_ms)

    # How.

    def _is_of_its_key(self, identity: Identity, life: Life) -> bool:
        """Whether an adopted timer's record is up to date with a key that is still there."""
        until_ms = self.bare[identity][1] if identity in self.bare else None
        return until_ms is not None and abs(until_ms - life.due_ms) <= SAME_DUE_MS

    def _deleted(self, identity: Identity, note: str) -> None:
        life = self.lives[identity]
        life.status, life.adopted = Status.CANCELLED, False
        life.note(note)

    def _born(self, identity: Identity, due_ms: int, spec: Mapping[str, Any], progress: Progress) -> Life:
        life = self.lives[identity] = Life(due_ms, next(self._places), spec, progress)
        return life

    def _anew(self, identity: Identity, due_ms: int, spec: Mapping[str, Any], progress: Progress, note: str) -> Life:
        """Armed again: a new occurrence if the last has started, nothing counted, the token kept."""
        life = self.lives[identity]
        if life.status is Status.SCHEDULED:
            self._unset(identity, life)
        life.occurrence += life.attempt > 0
        life.status, life.attempt, life.failures = Status.SCHEDULED, 0, 0
        life.spec, life.progress = spec, progress
        life.note(note)
        self._queue(life, due_ms)
        return life

    def _queue(self, life: Life, due_ms: int) -> None:
        life.due_ms, life.place = due_ms, next(self._places)

    def _unset(self, identity: Identity, life: Life) -> None:
        """Its bare key goes with an adopted timer."""
        if life.adopted:
            self.bare.pop(identity, None)
            life.adopted = False

    def _refused(self, life: Life | None, now_ms: int, edit_lock_ms: int, version: int | None) -> str | None:
        if life is None:
            return "missing"
        if version is not None and version != life.version:
            return "version"
        if life.status is Status.RUNNING:
            return "running"
        if life.status is not Status.SCHEDULED:
            return "finished"
        return "locked" if self._locked(life, now_ms, edit_lock_ms) else None

    def _locked(self, life: Life, now_ms: int, edit_lock_ms: int) -> bool:
        return life.status is Status.SCHEDULED and edit_lock_ms > 0 and now_ms > life.due_ms - edit_lock_ms
