"""A timer service in memory: a second implementation of what the scripts should do, without Redis, to compare with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from timers.core.decide import Transition
from timers.core.model import NO_PROGRESS, Progress, Status, Timer, in_english
from timers.core.shapes import HISTORY_LIMIT
from timers.store.codec import encode_cause
from timers.store.store import Arming, Identity

Line = tuple[Status, int, str | None, str]
"""What a history entry says: status, attempt, pod, note."""


@dataclass(slots=True)
class Life:
    """One timer. `place` is its position among those of the same due time; `leased` says if its lease key exists."""

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
        """Record a change: one more history line, the next version."""
        self.version += 1
        self.lines.append((self.status, self.attempt, pod, said))

    @property
    def shown(self) -> list[Line]:
        """The history as a reader gets it: all of it, or the newest lines behind a marker."""
        kept = HISTORY_LIMIT - 1
        dropped = len(self.lines) - kept
        first = "created" if dropped <= 0 else f"{dropped + 1} older entries dropped"
        return [(Status.SCHEDULED, 0, None, first), *self.lines[-kept:]]

    @property
    def came_from_key(self) -> bool:
        """Whether the kept history says that the newest life began with a bare key."""
        said = [note for *_, note in self.shown if note == "replaced" or "its bare key" in note]
        return bool(said) and said[-1] != "replaced"

    @property
    def is_retrying(self) -> bool:
        """Whether it waits for its next try after a failed one."""
        return self.status is Status.SCHEDULED and self.failures > 0


class Oracle:
    """All timers of a db, and the bare keys that clients have set."""

    def __init__(self) -> None:
        self.lives: dict[Identity, Life] = {}
        self.paused: set[str] = set()
        self.bare: dict[Identity, tuple[bytes, int | None]] = {}
        """Value and expiry (ms; None for never) of each bare key that is there."""
        self.known: dict[Identity, int] = {}
        """The deadlines of the keys that were taken in."""
        self.meanwhile: dict[Identity, tuple[int, int, Mapping[str, Any]]] = {}
        """Deadline, occurrence that ran, and spec of the keys that were found during a run."""
        self.answered: dict[Identity, int] = {}
        """The number of the last expiry of a bare key that was answered."""
        self.unheard = set[Identity]()
        """The keys of which one more was answered, though perhaps no pod heard it."""
        self._places = count()

    # Callers.

    def arm(self, arming: Arming, due_ms: int, now_ms: int, edit_lock_ms: int = 0) -> str:
        """`due_ms` is the arming's due time, as an absolute time."""
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
        life.adopted = False
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
        life.adopted = False
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

    # Pods.

    def due(self, prefix: str, now_ms: int) -> list[Identity]:
        """The claimable timers of a queue, in order."""
        waiting = [i for i in self.queued(prefix) if self.lives[i].due_ms <= now_ms]
        return sorted(waiting, key=lambda i: (self.lives[i].due_ms, self.lives[i].place))

    def queued(self, prefix: str) -> list[Identity]:
        """The timers of a queue, due or not."""
        return [i for i, life in self.lives.items() if i[0] == prefix and life.status is Status.SCHEDULED]

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
        """Returns True if the run goes on. A lease that had expired exists again."""
        life = self.lives.get((timer.prefix, timer.id))
        if life is None or life.status is not Status.RUNNING or life.token != timer.token:
            return False
        if not life.leased:
            life.holder, life.leased = pod, True
        return True

    def settle(self, timer: Timer, after: Transition, pod: str, *, keeps: bool) -> str:
        """`keeps` is False if finished records are removed at once."""
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
        code, _, text = encode_cause(*after.cause).partition(" ")
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

    # Bare keys.

    def adopt(
        self, identity: Identity, known_ms: int | None, deadline_ms: int, spec: Mapping[str, Any], now_ms: int
    ) -> str:
        life = self.lives.get(identity)
        if self.known.get(identity) != known_ms or deadline_ms <= now_ms:
            return "stale"
        if known_ms is not None and known_ms <= now_ms:
            self.unheard.add(identity)
        if life is not None and life.status is Status.RUNNING:
            self.known.pop(identity, None)
            self.meanwhile[identity] = (deadline_ms, life.occurrence, spec)
            return "running"
        return self._adopt(identity, deadline_ms, spec)

    def _adopt(self, identity: Identity, deadline_ms: int, spec: Mapping[str, Any]) -> str:
        life = self.lives.get(identity)
        self.meanwhile.pop(identity, None)
        self.known[identity] = deadline_ms
        if life is not None and life.adopted:
            life.spec = spec
            life.note("its bare key was set again")
            self._queue(life, deadline_ms)
            return "moved"
        if life is None:
            life = self._born(identity, deadline_ms, spec, NO_PROGRESS)
            life.note("adopted from its bare key")
        else:
            self._anew(identity, deadline_ms, spec, NO_PROGRESS, "adopted from its bare key")
        life.adopted = True
        return "adopted"

    def _remembered(self, identity: Identity) -> tuple[int, Mapping[str, Any]] | None:
        """What was found during the run that was the last."""
        life = self.lives.get(identity)
        deadline_ms, occurrence, spec = self.meanwhile.get(identity, (0, 0, {}))
        if identity in self.known or (life is not None and life.occurrence != occurrence):
            self.meanwhile.pop(identity, None)
        return (deadline_ms, spec) if identity in self.meanwhile else None

    def after_run(self, identity: Identity, now_ms: int, *, gone: bool) -> str:
        life, found = self.lives.get(identity), self._remembered(identity)
        if found is None:
            return "stale"
        if gone and now_ms < found[0]:
            del self.meanwhile[identity]
            return "forgotten"
        return "running" if life is not None and life.status is Status.RUNNING else self._adopt(identity, *found)

    def announce(self, identity: Identity, heard: int, now_ms: int) -> str:
        life = self.lives.get(identity)
        if identity in self.known:
            return "look"
        found, runs = self._remembered(identity), life is not None and life.status is Status.RUNNING
        if found is not None and not runs:
            self._adopt(identity, *found)
            return "look"
        if heard <= self.answered.get(identity, 0):
            return "known"
        if identity in self.unheard:
            self.unheard.remove(identity)
            self.answered[identity] = heard
            return "known"
        if life is not None and (life.status is Status.SCHEDULED or not life.came_from_key):
            return "refused"
        if runs:
            if found is not None and now_ms < found[0]:
                del self.meanwhile[identity]
            return "running"
        self.answered[identity] = heard
        if life is None:
            self._born(identity, now_ms, {}, NO_PROGRESS).note("its bare key expired")
        else:
            self._anew(identity, now_ms, {}, NO_PROGRESS, "its bare key expired")
        return "due"

    def resolve(self, identity: Identity, what: str, now_ms: int) -> str:
        life, deadline_ms = self.lives.get(identity), self.known[identity]
        waits = life is not None and life.adopted
        if what in ("there", "ending") and not waits:
            return "spare"
        if what == "there":
            return "waits"
        if what != "ending":
            del self.known[identity]
        if what == "expired" and (waits or deadline_ms <= now_ms):
            self.unheard.add(identity)
        if life is None or not waits:
            return "forgotten"
        life.adopted = False
        if what in ("ending", "expired"):
            life.note("its bare key existed until its due time" if what == "ending" else "its bare key expired")
            self._queue(life, deadline_ms if what == "ending" else min(deadline_ms, now_ms))
            return "due"
        life.status = Status.CANCELLED
        life.note("its bare key was deleted" if what == "deleted" else "its bare key lost its TTL")
        return "cancelled"

    # Helpers.

    def _born(self, identity: Identity, due_ms: int, spec: Mapping[str, Any], progress: Progress) -> Life:
        life = self.lives[identity] = Life(due_ms, next(self._places), spec, progress)
        return life

    def _anew(self, identity: Identity, due_ms: int, spec: Mapping[str, Any], progress: Progress, note: str) -> Life:
        """Arm again: a new occurrence if the last one has started, counts at zero, the same token."""
        life = self.lives[identity]
        life.adopted = False
        life.occurrence += life.attempt > 0
        life.status, life.attempt, life.failures = Status.SCHEDULED, 0, 0
        life.spec, life.progress = spec, progress
        life.note(note)
        self._queue(life, due_ms)
        return life

    def _queue(self, life: Life, due_ms: int) -> None:
        life.due_ms, life.place = due_ms, next(self._places)

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
        return life.status is Status.SCHEDULED and life.due_ms - edit_lock_ms < now_ms < life.due_ms
