"""Owns the verdict: the world tells the oracle what happens, and what breaks a promise becomes a finding.

Every command is seen as the server executes it, so the whole history of each record is known, and who changed it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha1
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.data import Hash, Keys, Reply
from tests.simulation.lives import FINISHED, Call, Life, Loss, Row, Run, State, letter_of, shown
from tests.simulation.loop import Actor
from tests.simulation.rules import MAX_ATTEMPTS, WRITERS, Step, broken_by
from timers.core.model import Status, Timer
from timers.engine.intake import HOLD_SECONDS
from timers.errors import (
    AlreadyExists,
    LedgerUnavailable,
    NoProcessor,
    NotFound,
    NotScheduled,
    Refused,
    Running,
    Unavailable,
)
from timers.store.store import Identity

if TYPE_CHECKING:
    from timers.core.policies import Limits

CALM_SECONDS: Final = 0.3
"""How late a timer may start while nothing goes wrong."""

QUIET_MS: Final = 1000
"""How long after its deadline a bare key may take to start its timer."""

LEDGER: Final = "the ledger"
"""Who has made a timer that was accepted while the server was away."""

CHANGE: Final = "change"
RUN: Final = "run"
"""What is noted: a script changed a record, and a processor's start or end."""


_WORDS: Final = {
    "s": "scheduled",
    "w": "scheduled",
    "r": "running",
    "c": "completed",
    "f": "failed",
    "u": "unhandled",
    "x": "cancelled",
}


_ENDED: Final = tuple(_WORDS[status] for status in FINISHED)


class Finding(NamedTuple):
    """A broken promise."""

    rule: str
    timer: str
    said: str


class Promise(NamedTuple):
    """Since when (the loop's seconds) the ledger has accepted a timer, created then (server's ms) or later, with a due
    time; None if it may be another, because somebody else has made one of that name."""

    at: float
    earliest_ms: int
    latest_ms: float
    due_ms: int | None

    def is_kept_by(self, state: State) -> bool:
        return self.earliest_ms <= state.created <= self.latest_ms and self.due_ms in (None, state.due)


class Oracle:
    """What it sees goes to `note` too, with who did it."""

    def __init__(self, keys: Keys, lease_ms: int, *, now: Callable[[], float], note: Callable[..., None]) -> None:
        """`now` is the loop's time."""
        self._keys, self._lease_ms, self._now, self._note = keys, lease_ms, now, note
        self.limits: Mapping[str, Limits] = {}
        """By prefix."""
        self.may_run: Callable[[str, str], bool] = lambda _pod, _prefix: True
        """Whether a pod has the own processor of a prefix."""
        self.lives: dict[Identity, Life] = {}
        self._places: list[tuple[Identity, Life, bytes, bytes]] = []
        self.calls: list[Call] = []
        self.findings: list[Finding] = []
        self.has_ledger = False
        self.ledger_away_until: Callable[[], float] = lambda: 0.0
        self.promises: dict[Identity, list[Promise]] = {}
        """What the ledger has accepted."""
        self.rows = Counter[Identity]()
        """How many rows of the inbox may make a timer; again, if the server loses which ones it has done."""
        self._done_rows = Counter[Identity]()
        self.is_calm = True
        """Whether nothing has gone wrong yet."""
        self._troubles: dict[str, list[float]] = {}

    # What is told.

    def watch(self, identity: Identity, shard: int) -> None:
        """A name that will be used."""
        life = self.lives[identity] = Life()
        member = ":".join(identity).encode()
        bucket = f"timers:{{{shard}}}:rec:{sha1(member, usedforsecurity=False).hexdigest()[:2]}".encode()
        self._places.append((identity, life, bucket, member))

    def trouble(self, actor: str, seconds: float) -> None:
        """For so long something is wrong that can cost an actor, or through the `server` all actors, leases."""
        self.is_calm = False
        self._troubles.setdefault(actor, []).append(self._now() + seconds)

    def lose(self, rows: Mapping[Identity, Row]) -> None:
        """The server loses everything; this is what the ledger has."""
        self._done_rows.clear()
        for identity, life in self.lives.items():
            row = rows.get(identity)
            told = {
                call.heard.created_ms for call in self.calls if call.timer == identity and isinstance(call.heard, Timer)
            }
            if (
                life.state is not None
                and life.state.created in told
                and (row is None or row.created < life.state.created)
            ):
                self._find("the ledger has it first", identity, f"the ledger has {row}, the server {shown(life.state)}")
            life.states.append(None)
            life.since.append(self._now())
            life.raw = None
            life.lost = Loss(self._now(), len(life.states), row, frozenset(life.takers))

    def executed(self, actor: Actor, name: str, command: tuple[bytes, ...], reply: Reply) -> None:
        """The server has executed a command."""
        if name == "extend" and type(reply) is list:
            self._extended(command, reply)
        if name not in WRITERS:
            return
        for identity, life, bucket, member in self._places:
            records = self._keys.peek(bucket)
            raw = records.get(member) if type(records) is Hash else None
            if raw is not life.raw:
                life.raw = raw
                after = None if raw is None else State.read(raw, self._keys.now_ms)
                self._changed(
                    identity, Step(name, actor, life, life.state, after, self._may(actor, identity), self._excused)
                )

    def started(self, pod: Actor, timer: Timer) -> Run:
        """A processor is called."""
        identity, run = (timer.prefix, timer.id), Run(pod, timer, self._now())
        self._note(pod.name, RUN, "starts to run", identity, timer.token, timer.attempt)
        life = self.lives[identity]
        if (wrong := self._wrong_start(life, run)) is not None:
            self._find(wrong, identity, f"{pod.name} started attempt {timer.attempt}; it is {shown(life.state)}")
        if not self._may(pod, identity):
            self._find("the right processor", identity, f"{pod.name} ran it")
        self._overlaps(identity, life, run)
        if life.keys and timer.payload is not None and timer.attempt == 1:
            self._own_value(identity, life, timer)
        if self.is_calm and not self.limits[timer.prefix].over_fleet:
            self._punctual(identity, life, run)
        life.runs[timer.token] = run
        return run

    def ended(self, run: Run, how: str) -> None:
        """A processor has returned or raised."""
        timer = run.timer
        self._note(run.pod.name, RUN, f"ends with '{how}'", (timer.prefix, timer.id), timer.token, timer.attempt)
        run.ended, run.how = self._now(), how

    def heard(self, call: Call) -> None:
        """A caller was answered."""
        call.ended = self._now()
        life, heard = self.lives[call.timer], call.heard
        between = life.during(call)
        if isinstance(heard, Timer):
            fits = self._true(call, heard, life, between)
            if call.given.get("purge") and life.lost is not None:
                life.lost.row = None
        elif isinstance(heard, AlreadyExists) and between[0] is None and self._made_it(call, life, between):
            fits = False
        elif isinstance(heard, Refused):
            fits = self._refused(call, heard, life, between)
        else:
            fits = isinstance(heard, Unavailable | LedgerUnavailable)
        if not fits:
            said = f"{call.verb} was answered {heard!s:.150}; it was {', '.join(map(shown, between))}"
            self._find("answers are true", call.timer, said)

    def _refused(self, call: Call, heard: Refused, life: Life, between: list[State | None]) -> bool:
        if isinstance(heard, NotFound) and call.verb != "get" and self._waits(call, life):
            return False  # a read goes on without the ledger
        if isinstance(heard, AlreadyExists) and self.has_ledger and (self._rivals(call) or life.is_missing):
            return True  # the ledger has another one that the server has not
        if isinstance(heard, NoProcessor) and call.began <= self.ledger_away_until():
            return True  # nobody knows any prefix
        return any(_explains(heard, call, state) for state in between)

    def _waits(self, call: Call, life: Life) -> bool:
        """Whether somebody had been told, when the call began, that the timer is there, and it is not yet."""
        if life.is_missing and life.lost is not None and life.lost.at < call.began:
            return True
        before = [state for state in life.states if state is not None]
        told = (each for each in self.promises.get(call.timer, ()) if each.at <= call.began)
        return any(not any(map(each.is_kept_by, before)) for each in told)

    def written(self, identity: Identity, due_ms: int) -> None:
        """An application has committed a row that makes a timer."""
        self.promises.setdefault(identity, []).append(Promise(self._now(), 0, inf, due_ms))

    # The verdict.

    def finish(self) -> None:
        """Judge the end: nothing is lost, everybody was answered."""
        for identity, life in self.lives.items():
            if self.is_calm and len(life.fired) < (
                ends := sum(not (key.is_replaced or key.is_late) for key in life.keys)
            ):
                self._find("a bare key fires", identity, f"{ends} have expired, {len(life.fired)} fired")
            if life.is_missing:
                self._find("nothing is lost", identity, "the ledger has it, and the server lost it")
            if life.state is not None and (life.state.status not in FINISHED or life.state.status == "u"):
                self._find("nothing is lost", identity, f"in the end it is {shown(life.state)}")
        for identity, promise in self._unarmed():
            self._find("what is accepted is armed", identity, f"due {promise.due_ms}")
        for call in self.calls:
            if call.ended is None:
                self._find("callers are answered", call.timer, f"{call.verb} of {call.actor} was never answered")

    def _unarmed(self) -> Iterator[tuple[Identity, Promise]]:
        """What callers were told is accepted, and the server has not got yet."""
        for identity, told in self.promises.items():
            there = [state for state in self.lives[identity].states if state is not None]
            yield from ((identity, each) for each in told if not any(map(each.is_kept_by, there)))

    @property
    def is_quiet(self) -> bool:
        """Whether every timer has ended."""
        if any(self._unarmed()):
            return False
        return all(
            (life.state is None or life.state.status in FINISHED)
            and not life.is_missing
            and max((key.deadline_ms for key in life.keys), default=0) < self._keys.now_ms - QUIET_MS
            for life in self.lives.values()
        )

    def unlike(self, rows: Mapping[Identity, Row], waiting: int) -> list[Finding]:
        """What the ledger has otherwise than the server. `waiting` are rows of its inbox."""
        wrong = [Finding("the ledger agrees", "", f"{waiting} rows wait in the inbox")] if waiting else []
        for identity, life in self.lives.items():
            state, row = life.state, rows.get(identity)
            there = None if state is None else (_WORDS[state.status], state.created, state.version)
            is_known = _came_back(life) if row is None else self._is_unheard(identity, row)
            if (row and (*row[:3], row.pending)) != (there and (*there, 0)) and not is_known:
                said = f"the ledger has {row}, the server {shown(state)}"
                wrong.append(Finding("the ledger agrees", ":".join(identity), said))
        return wrong

    def _is_unheard(self, identity: Identity, row: Row) -> bool:
        """Whether a row may be all that is left of a create whose caller was not answered, also of one that the server
        has refused. Pods look for such rows every minute."""
        unheard = (call for call in self.calls if isinstance(call.heard, LedgerUnavailable) and call.verb == "create")
        return row.version == 1 and identity in {call.timer for call in unheard}

    def _changed(self, identity: Identity, step: Step) -> None:
        life, before, after = step.life, step.before, step.after
        if life.lost is not None:
            self._after_loss(identity, life, life.lost, step)
        life.states.append(after)
        life.since.append(self._now())
        self._note(step.actor.name, CHANGE, step.script, identity, before, after)
        if (wrong := broken_by(step)) is not None:
            self._find(wrong, identity, f"{step.script} of {step.actor.name} made {shown(before)} into {shown(after)}")
        if step.script == "arm" and step.actor.name not in {call.actor for call in self.calls}:
            self._done_rows[identity] += 1
            if self._done_rows[identity] > self.rows[identity]:
                self._find("a row is carried out once", identity, f"{step.actor.name} made {shown(after)}")
        if after is None:
            return
        if before is None or after.created != before.created:
            life.makers[after.created] = LEDGER if step.script == "restore" else step.actor.name
        known = before.version if before is not None and before.created == after.created else 0
        life.unseen.update((after.created, version) for version in range(known + 1, after.version))
        life.newest_token = max(life.newest_token, after.token)
        if step.script in ("claim", "rescue"):
            life.takers[after.token] = step.actor
            life.leased_until[after.token] = after.at_ms + self._lease_ms
            life.fired.add((after.created, after.occurrence))

    def _after_loss(self, identity: Identity, life: Life, lost: Loss, step: Step) -> None:
        """What the ledger has comes back before anything is made anew, and what had ended does not run again."""
        row, after = lost.row, step.after
        if row is None or after is None:
            return
        if life.is_missing and step.script != "restore" and after.created != row.created:
            self._find(
                "what was lost comes back first", identity, f"{step.script} of {step.actor.name} made {shown(after)}"
            )
        lost.is_asked = lost.is_asked or step.script in ("arm", "rearm", "reschedule")
        is_again = (after.created, after.occurrence) == (row.created, row.occurrence)
        if step.script == "claim" and is_again and row.status in _ENDED and not lost.is_asked:
            self._find("what has ended stays", identity, f"{step.actor.name} made {shown(after)}")

    def _extended(self, command: tuple[bytes, ...], reply: list[Any]) -> None:
        """See which leases got longer: `EVALSHA digest 1 root wake pod lease_ms (prefix id token)…`."""
        lease_ms, parts, lost = int(command[6]), command[7:], set(reply[1])
        for place in range(reply[2]):
            prefix, timer_id, token = parts[3 * place : 3 * place + 3]
            life = self.lives.get((prefix.decode(), timer_id.decode()))
            if life is not None and place not in lost:
                life.leased_until[int(token)] = self._keys.now_ms + lease_ms

    def _wrong_start(self, life: Life, run: Run) -> str | None:
        """Whether a run may start: its pod holds the record, which says what it was told, under a live lease."""
        timer, state = run.timer, life.state
        if timer.token in life.runs:
            return "one start a token"
        if life.lost is not None and timer.token in life.lost.tokens:
            return None  # the server has lost what it knew of it
        if state is None or state.status != "r" or state.token != timer.token:
            return "only the holder runs"
        if life.takers[timer.token] is not run.pod:
            return "only the holder runs"
        if life.leased_until[timer.token] < self._keys.now_ms:
            return "no start without a lease"
        if state.failures >= MAX_ATTEMPTS:
            return "tries are bounded"
        fits = (state.attempt, state.occurrence) == (timer.attempt, timer.occurrence)
        return None if fits else "what runs is the record"

    def _overlaps(self, identity: Identity, life: Life, run: Run) -> None:
        for other in life.runs.values():
            if other.ended is None and not other.pod.stopped and not self._excused(other.pod):
                self._find("one at a time", identity, f"{run.pod.name} started while {other.pod.name} runs it")
        limit = self.limits[identity[0]].concurrency
        if limit is None:
            return
        running = [
            each.pod
            for (prefix, _), of_name in self.lives.items()
            for token, each in of_name.runs.items()
            if prefix == identity[0] and each.ended is None and not each.pod.stopped
            if of_name.state is not None and of_name.state.token == token
        ]
        if len(running) >= limit and not any(map(self._excused, [*running, run.pod])):
            self._find("limits hold", identity, f"{run.pod.name} started beside {[pod.name for pod in running]}")

    def _own_value(self, identity: Identity, life: Life, timer: Timer) -> None:
        """A bare key's timer has the value of the key whose end it is, or none."""
        number = dict(timer.payload)["key"] if isinstance(timer.payload, Mapping) else -1
        if life.keys[number].deadline_ms != timer.due_ms:
            self._find("no value of another key", identity, f"it is due {timer.due_ms}, with the value of key {number}")

    def _punctual(self, identity: Identity, life: Life, run: Run) -> None:
        """Nothing went wrong, so it starts soon after it is due, or after it was armed if that was later."""
        armed = max(
            since for since, state in zip(life.since, life.states, strict=True) if state and state.status in "sw"
        )
        due = self._now() + (run.timer.due_ms - self._keys.now_ms) / 1000
        if run.began - max(due, armed) > CALM_SECONDS:
            self._find("on time", identity, f"{run.pod.name} started it {run.began - due:.3f} s late")

    def _true(self, call: Call, heard: Timer, life: Life, between: list[State | None]) -> bool:
        """Whether the timer was as the caller was told, at some moment of the call."""
        if call.given.get("purge"):
            return None in between
        if call.verb == "cancel" and heard.status is not Status.CANCELLED:
            return False
        if (heard.created_ms, heard.version) in life.unseen:
            return True
        is_kept = self.has_ledger and call.given.get("if_exists") == "keep"
        if not heard.armed:
            self._promise(call, heard, is_kept=is_kept)
            return self.has_ledger and call.verb == "create"
        said = (heard.created_ms, heard.version, letter_of(heard.status), heard.due_ms)
        if any(said == _as_told(state) for state in between if state is not None):
            return True
        # While the server is away it is as the ledger has it, which follows, or has what nobody was told of.
        if is_kept and heard.version == 1:
            self._promise(call, heard, is_kept=True)
            return True
        return is_kept and any(said == _as_told(state) for state in life.states if state is not None)

    def _promise(self, call: Call, heard: Timer, *, is_kept: bool) -> None:
        """A caller was told of what the ledger has. What is kept may be made anew by whoever finds that the server
        lacks it."""
        latest = inf if is_kept or heard.version > 1 else heard.created_ms
        due_ms = None if is_kept else heard.due_ms
        self.promises.setdefault(call.timer, []).append(Promise(self._now(), heard.created_ms, latest, due_ms))

    def _made_it(self, call: Call, life: Life, between: list[State | None]) -> bool:
        """Whether nobody but this call can have made the timer of which it was told."""
        since = 0.0 if self.has_ledger else call.began  # the ledger follows, and may still have the one before
        is_alone = not any(other.ended is None or other.ended >= since for other in self._rivals(call))
        made = {life.makers.get(state.created) for state in between if state is not None}
        return is_alone and made == {call.actor}

    def _rivals(self, call: Call) -> list[Call]:
        """The other creates of its timer."""
        return [
            other for other in self.calls if other is not call and (other.verb, other.timer) == ("create", call.timer)
        ]

    def _may(self, actor: Actor, identity: Identity) -> bool:
        return self.may_run(actor.name, identity[0])

    def _excused(self, actor: Actor, ago_s: float = 0.0) -> bool:
        """Whether trouble of the actor or of the server may have cost it a lease by now, or so many seconds ago."""
        since = self._now() - ago_s - self._lease_ms / 1000 - 1.0
        held = since - HOLD_SECONDS  # after an outage pods leave lost leases alone for so long
        of_actor, of_server = self._troubles.get(actor.name, ()), self._troubles.get("server", ())
        return any(until >= since for until in of_actor) or any(until >= held for until in of_server)

    def _find(self, rule: str, identity: Identity, said: str) -> None:
        self.findings.append(Finding(rule, ":".join(identity), f"at {self._now():.4f}: {said}"))


def _came_back(life: Life) -> bool:
    """Whether the timer was removed while the call that made it was under way, and made by that call once more. Pods
    look for such timers every minute."""
    until = max((place for place, state in enumerate(life.states) if state is None), default=0)
    return life.state is not None and life.state.created in {state.created for state in life.states[:until] if state}


def _as_told(state: State) -> tuple[int, int, str, int]:
    """What a caller is told of a state."""
    return state.created, state.version, state.status.replace("w", "s"), state.due


def _explains(refused: Refused, call: Call, state: State | None) -> bool:
    """Whether a refusal is right in a state."""
    match refused:
        case NotFound():
            return state is None
        case AlreadyExists():
            return state is not None
        case Running():
            return state is not None and state.status == "r"
        case NotScheduled():
            return state is not None and state.status in (FINISHED if call.verb != "retry" else "swc")
        case _:
            return False
