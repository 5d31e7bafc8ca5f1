"""The witness outside the service: what really happened, one appended line per event, readable after any kill.

Each process writes its own file in one directory, each event as a single `write` to a file opened with `O_APPEND`:
what was written survives the process, in the page cache. A kill may still cut a `write` short where it
crosses a page, so a last line without a newline is dropped: its effect had not begun. On one host
all processes share CLOCK_MONOTONIC, so the merged history is in total order.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, TypedDict, Unpack

_LINE_BYTES = 4096
_TEXT_CHARACTERS = 200
_SUFFIX = ".jsonl"


class Kind(StrEnum):
    """The kinds of lines. A call is `invoke`, then its answer; `info` means that nobody knows if it took effect.
    `waited` is how long a process had no core since the line before."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"
    START = "start"
    END = "end"
    FAULT_ON = "fault-on"
    FAULT_OFF = "fault-off"
    WAITED = "waited"


class Verb(StrEnum):
    """The driver's calls."""

    CREATE = "create"
    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RETRY = "retry"


class Outcome(StrEnum):
    """How a run ended, as the processor saw it."""

    DONE = "done"
    REARMED = "rearmed"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    SNOOZED = "snoozed"
    GAVE_UP = "gave-up"
    HANDED_BACK = "handed-back"


class Made(StrEnum):
    """What a create did (`outcome` of `ok`), or why it was refused (`outcome` of `fail`). `set`: a bare key was set
    again, which need not be a timer yet."""

    CREATED = "created"
    REPLACED = "replaced"
    KEPT = "kept"
    EXISTS = "exists"
    REFUSED = "refused"
    SET = "set"


class FaultKind(StrEnum):
    """The faults of a pod.

    `kill` is SIGKILL, `stop` SIGTERM, `pause` SIGSTOP; `partition` and `disconnect` cut its connections for a time and
    for an instant; a stopped server is a partition of every pod. `absent` is a time in which no pod works. `starved` is
    measured, not made: the machine had no core for the pod for most of half a lease. `pubsub` cuts subscribers only,
    `scripts` makes the server forget its scripts: neither affects a lease, so neither explains a duplicate. `loss`
    takes data of the server that the ledger gives back, all but what it has not copied by then; `power` takes for good
    what was answered while it lasted. `quota`, `slow` and `memory` take from a pod most of its core, delay the server's
    replies, and leave it no memory: none costs a lease.
    """

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    PARTITION = "partition"
    ABSENT = "absent"
    STARVED = "starved"
    DISCONNECT = "disconnect"
    PUBSUB = "pubsub"
    SCRIPTS = "scripts"
    QUOTA = "quota"
    SLOW = "slow"
    MEMORY = "memory"
    LOSS = "loss"
    POWER = "power"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line; 0 and "" mean none.

    `timer` is `prefix/id`. `call` links an answer to its call and a fault's end to its start. `due_ms` is epoch
    milliseconds: on a call the earliest that was asked for, on a start the one that the timer shows. `slots` is how
    often the timer of a create is to run, 0 for nothing said. `processor` is the one that was called, `key` the
    run's idempotency key.
    `exit_code` is set for a pod that was told to stop, `waited_ms` for one that waited for a core (`*`: the server),
    `lag_ms` for a loss before which the ledger was behind by so much.
    """

    kind: Kind
    mono_ns: int
    wall_ns: int
    pid: int
    pod: str = ""
    timer: str = ""
    verb: str = ""
    call: str = ""
    if_exists: str = ""
    occurrence: int = 0
    attempt: int = 0
    token: int = 0
    due_ms: int = 0
    slots: int = 0
    processor: str = ""
    key: str = ""
    outcome: str = ""
    fault: str = ""
    proof: str = ""
    exit_code: int = 0
    waited_ms: int = 0
    lag_ms: int = 0

    def to_line(self) -> str:
        """Compact JSON without the empty fields."""
        present = {name: value for name in _FIELDS if (value := getattr(self, name)) not in ("", 0)}
        return json.dumps(present, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> "Event":
        """The reverse of `to_line`; ValueError or TypeError for anything else. Repeated text is stored once."""
        said: dict[str, Any] = {
            name: sys.intern(value) if isinstance(value, str) else value for name, value in json.loads(line).items()
        }
        return cls(**said | {"kind": Kind(said["kind"])})


_FIELDS = tuple(field.name for field in fields(Event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What identifies one run of a timer in start and end lines, its due time, the processor that was called, and the
    idempotency key."""

    timer: str
    occurrence: int
    attempt: int
    token: int
    due_ms: int
    processor: str = ""
    key: str = ""


class Said(TypedDict, total=False):
    """The fields of an event that the caller chooses."""

    pod: str
    timer: str
    verb: str
    call: str
    if_exists: str
    occurrence: int
    attempt: int
    token: int
    due_ms: int
    slots: int
    processor: str
    key: str
    outcome: str
    fault: str
    proof: str
    exit_code: int
    waited_ms: int
    lag_ms: int


class _Identity(TypedDict):
    timer: str
    occurrence: int
    attempt: int
    token: int


def _identity(run: Attempt) -> _Identity:
    return {"timer": run.timer, "occurrence": run.occurrence, "attempt": run.attempt, "token": run.token}


class Witness:
    """Appends events of one process to one file. Safe to use from threads; never buffers.

    `pod` names this process in its start and end lines. Raises OSError if a line cannot be written whole."""

    def __init__(self, directory: Path, pod: str) -> None:
        self._pod = pod
        self._pid = os.getpid()
        self._calls = count(1)
        path = directory / f"{pod}-{self._pid}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        """Closes the file. Nothing is left to flush."""
        os.close(self._file)

    def invoke(self, verb: Verb, timer: str, *, due_ms: int = 0, slots: int = 0, if_exists: str = "") -> Event:
        """Writes that a call is about to be made. If it takes effect, no start may come before `due_ms`."""
        call = f"{self._pod}-{self._pid}-{next(self._calls)}"
        return self._write(
            Kind.INVOKE, verb=verb, timer=timer, call=call, due_ms=due_ms, slots=slots, if_exists=if_exists
        )

    def answer(self, call: Event, kind: Kind, outcome: str = "") -> Event:
        """Writes how `call` ended: OK, it took effect; FAIL, it did not; INFO, nobody knows."""
        return self._write(kind, verb=call.verb, timer=call.timer, call=call.call, outcome=outcome[:_TEXT_CHARACTERS])

    def start(self, run: Attempt) -> Event:
        """Writes that a run begins. Call it before the effect."""
        return self._write(Kind.START, due_ms=run.due_ms, processor=run.processor, key=run.key, **_identity(run))

    def end(self, run: Attempt, outcome: Outcome) -> Event:
        """Writes that a run's effect is over. Call it before the service hears of it."""
        return self._write(Kind.END, outcome=outcome, **_identity(run))

    def fault_on(self, fault: FaultKind, pod: str, proof: str = "", *, lag_ms: int = 0) -> Event:
        """Writes that a fault is about to hit `pod` (`*`: all). It counts only with proof, here or at its end."""
        call = f"{self._pod}-{self._pid}-{next(self._calls)}"
        return self._write(
            Kind.FAULT_ON, fault=fault, pod=pod, call=call, proof=proof[:_TEXT_CHARACTERS], lag_ms=lag_ms
        )

    def fault_off(self, fault: Event, proof: str = "", *, exit_code: int = 0) -> Event:
        """Writes that the fault is over, or after a kill, that the process is gone."""
        return self._write(
            Kind.FAULT_OFF,
            fault=fault.fault,
            pod=fault.pod,
            call=fault.call,
            proof=proof[:_TEXT_CHARACTERS],
            exit_code=exit_code,
        )

    def waited(self, pod: str, waited_ms: int) -> Event:
        """Writes how long `pod` (`*`: the server) has had no core since the line before."""
        return self._write(Kind.WAITED, pod=pod, waited_ms=waited_ms)

    def _write(self, kind: Kind, **said: Unpack[Said]) -> Event:
        said.setdefault("pod", self._pod)
        event = Event(kind=kind, mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), pid=self._pid, **said)
        self._append(event.to_line().encode() + b"\n")
        return event

    def _append(self, line: bytes) -> None:
        if len(line) >= _LINE_BYTES:
            raise ValueError(f"a witness line has to stay below {_LINE_BYTES} bytes, this one has {len(line)}")
        if os.write(self._file, line) != len(line):
            raise OSError("the witness file did not take a whole line")


def read_history(directory: Path) -> list[Event]:
    """All events of all files in `directory`, in the order in which they happened.

    Raises ValueError, which names the line, for anything that is not an event.
    """
    events = [event for path in sorted(directory.glob(f"*{_SUFFIX}")) for event in _read_file(path)]
    return sorted(events, key=lambda event: event.mono_ns)


def _read_file(path: Path) -> Iterator[Event]:
    whole_lines = path.read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(whole_lines, start=1):
        try:
            yield Event.from_line(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path.name}, line {number} is not an event: {error}") from error
