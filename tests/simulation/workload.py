"""Owns what is asked of a world: timers of every kind, and what callers and other programs do to them near their due
times. All of it follows from a seed; an act can be left out without changing the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

from tests.simulation.rules import MAX_ATTEMPTS
from timers.core.policies import RetryPolicy
from timers.processor import Processor, processor
from timers.store.store import Identity

PLAIN: Final = "job"
OWN: Final = "job-own"
"""A prefix of which only some pods have the own processor; the others have PLAIN's."""

SINGLE: Final = "single"
"""A prefix of which one timer runs at a time."""

OWNERS: Final = "bc"
"""The kinds of pods that have the processor of OWN."""

CALLERS: Final = ("x", "y")
OTHER: Final = "other"
"""A program that sets bare keys."""

APPLICATION: Final = "app"
"""Who writes into the inbox of a ledger."""


@dataclass(frozen=True, slots=True)
class Act:
    """At `at` seconds from the beginning an actor does something to a timer. `given` are the keywords of the call."""

    at: float
    actor: str
    verb: str
    timer: Identity
    given: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.at:.4f} {self.actor}: {self.verb} {':'.join(self.timer)} {dict(self.given) or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """A world before anything goes wrong. Times in seconds, the lease in ms; `share` of all moments go wrong."""

    pods: str
    lease_ms: int
    shards: int
    share: float
    adopts: bool
    ledger: bool
    acts: tuple[Act, ...]

    @property
    def timers(self) -> list[Identity]:
        """All names, in the order of their first acts."""
        return list(dict.fromkeys(act.timer for act in self.acts))


def plan_of(seed: int, *, ledger: bool = False) -> Plan:
    """The plan that follows from a seed; with a ledger it is another one."""
    rng = Random(f"plan {seed}")
    lease_ms = rng.choice((600, 1000))
    adopts = rng.random() < 0.3
    share = rng.choice((0.0, 0.03, 0.06, 0.1, 0.2))
    acts: list[Act] = []
    meet = [rng.uniform(0.2, 0.9) for _ in range(2)]
    if rng.random() < 0.4:
        acts += _burst(rng, meet[0], lease_ms / 1000)
    for number in range(rng.randint(1, 4)):
        if adopts and rng.random() < 0.5:
            acts += _bare(rng, (PLAIN, f"bare{number}"))
        else:
            prefix = rng.choice((PLAIN, PLAIN, OWN, SINGLE))
            due = (
                rng.choice(meet) + rng.choice((0, 0.001, 0.002, 0.005)) if rng.random() < 0.6 else rng.uniform(0.0, 0.9)
            )
            acts += _timer(rng, (prefix, f"t{number}"), round(due, 3), lease_ms / 1000)
    if ledger:
        acts += _by_ledger(rng, [act.timer for act in acts if act.verb == "create"])
        if Random(f"wiped {seed}").random() < 0.25:  # a key of another program is lost for good
            acts = [
                *(act for act in acts if act.actor != OTHER),
                Act(round(rng.uniform(0.3, 1.5), 4), "world", "wipe", ("", "")),
            ]
    pods = rng.choice(("ab", "ab", "bb", "abc"))
    drains = [Act(round(rng.uniform(0.1, 1.2), 3), "world", "drain", ("", pods[0])) for _ in range(rng.random() < 0.25)]
    return Plan(
        pods,
        lease_ms,
        rng.choice((1, 1, 2)),
        share,
        adopts,
        ledger,
        tuple(sorted([*acts, *drains], key=lambda act: act.at)),
    )


def _burst(rng: Random, due: float, lease: float) -> list[Act]:
    """Timers of one queue that become due one ms after the other; some are cancelled meanwhile."""
    prefix, takes = rng.choice(((PLAIN, 0.0), (OWN, 1.2 * lease), (SINGLE, 0.15)))
    payload = {"takes": round(takes, 3), "ends": ["done"], "by": "attempt"}
    acts: list[Act] = []
    for number in range(4):
        name, at = (prefix, f"b{number}"), round(due + number / 1000, 3)
        acts.append(
            Act(round(max(due - 0.1, 0.0), 3), CALLERS[number % 2], "create", name, {"due": at, "payload": payload})
        )
        if rng.random() < 0.3:
            acts.append(Act(round(at + rng.uniform(-0.003, 0.003), 4), CALLERS[0], "cancel", name))
    return acts


def _timer(rng: Random, name: Identity, due: float, lease: float) -> list[Act]:
    """A timer, and what else is done to it."""
    takes = rng.choice((0.0, 0.0, 0.01, 0.2, 0.6 * lease, 1.5 * lease, 2.5 * lease))
    kind = rng.choices(
        ("done", "retried", "fails", "gives up", "re-armed", "repeats", "snoozes"), (4, 3, 2, 1, 2, 3, 1)
    )[0]
    by_attempt = {
        "retried": ["fail", "done"],
        "fails": ["fail"],
        "gives up": ["give up"],
        "snoozes": ["snooze", "done"],
    }
    ends = by_attempt.get(kind) or (["rearm", "rearm", "done"] if kind == "re-armed" else ["done"])
    payload = {"takes": round(takes, 3), "ends": ends, "by": "occurrence" if kind == "re-armed" else "attempt"}
    given: dict[str, Any] = {"due": due, "payload": payload}
    if kind == "repeats":
        given["repeat"] = {"every": "0.2s", "count": 3}
    caller, other = rng.sample(CALLERS, 2)
    made = round(max(due - rng.uniform(0.0, 0.6), 0.0), 3)
    acts = [Act(made, caller, "create", name, given)]
    ms = rng.uniform(-0.02, 0.02)
    near = round(max(due + ms, made), 4)
    late = round(near + rng.uniform(0.0, 0.8), 4)
    chance = rng.random()
    if chance < 0.3:
        acts.append(Act(near, other, "cancel", name, {"purge": True} if rng.random() < 0.25 else {}))
    elif chance < 0.5:
        acts.append(Act(near, other, "reschedule", name, {"due": round(due + rng.choice((-0.05, 0.01, 0.4)), 3)}))
    elif chance < 0.6:
        acts.append(Act(near, caller, "create", name, {**given, "due": round(due + 0.2, 3), "if_exists": "replace"}))
    elif chance < 0.65:
        acts.append(Act(near, other, "fire", name))
    if rng.random() < 0.2:
        acts.append(Act(late, other, rng.choice(("get", "retry", "cancel", "fire")), name))
    if rng.random() < 0.1:
        acts.append(Act(late, caller, "create", name, {**given, "due": round(late + 0.1, 3)}))
    return acts


def _by_ledger(rng: Random, others: Sequence[Identity]) -> list[Act]:
    """Rows for the inbox, of timers of their own and of others, and times when the server is away."""
    acts: list[Act] = []
    for number in range(rng.randint(0, 3)):
        name = rng.choice(others) if others and rng.random() < 0.5 else (rng.choice((PLAIN, SINGLE)), f"i{number}")
        at = rng.uniform(0.0, 0.9)
        given = {
            "due": round(at + rng.uniform(-0.1, 0.5), 3),
            "payload": {"takes": 0, "ends": ["done"], "by": "attempt"},
        }
        if name in others:
            given["if_exists"] = rng.choice(("replace", "replace", "keep", "error"))
        acts.append(Act(round(at, 4), APPLICATION, "arm", name, given))
        if rng.random() < 0.4:
            acts.append(Act(round(at + rng.choice((0.0, 0.05, 0.4)), 4), APPLICATION, "cancel", name))
    for _ in range(rng.randint(0, 2)):
        given = {"seconds": round(rng.uniform(0.05, 1.0), 3)}
        acts += [Act(round(rng.uniform(0.1, 1.2), 4), "world", "outage", ("", ""), given)]
    return acts


def _bare(rng: Random, name: Identity) -> list[Act]:
    """A key that another program sets, and perhaps sets again or deletes."""
    at, life = rng.uniform(0.1, 0.7), rng.choice((0.03, 0.2, 0.6, 0.9))
    acts = [Act(round(at, 3), OTHER, "set", name, {"px": round(life * 1000)})]
    near = at + life + rng.uniform(-0.25, 0.05)
    chance = rng.random()
    if chance < 0.2:
        acts.append(Act(round(max(near, at), 4), OTHER, "delete", name))
    elif chance < 0.4:
        acts.append(Act(round(max(near, at), 4), OTHER, "set", name, {"px": 400}))
    elif chance < 0.8:  # lives too short to be found by a scan, in the midst of the first and right after its end
        for _ in range(rng.randint(1, 3)):
            at += rng.choice((rng.uniform(0.02, 0.15), rng.uniform(0.35, 0.5), life + 0.02))
            acts.append(Act(round(at, 4), OTHER, "set", name, {"px": rng.choice((5, 15, 100))}))
    return acts


RETRY: Final = RetryPolicy(max_attempts=MAX_ATTEMPTS, backoff="fixed", base="0.1s")


@cache
def processors(kind: str, act: Any) -> Sequence[Processor]:
    """What a pod of a kind serves."""
    served = (processor(PLAIN, retry=RETRY)(act), processor(SINGLE, retry=RETRY, concurrency=1)(act))
    return (*served, processor(OWN, retry=RETRY)(act)) if kind in OWNERS else served
