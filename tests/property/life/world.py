"""The machine's world: a real server and the oracle side by side, the steps, and the values drawn for them."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tests.conservation import conserved
from tests.property.oracle import Oracle
from tests.waiting import patient
from timers.bare.keys import BareKeys
from timers.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timers.core.model import Status, Timer
from timers.core.outcome import Done, Exhausted, Failed, HandBack, Missed, Outcome, Rearm, Snooze
from timers.store.servers import connect
from timers.store.store import Identity, Store

T = TypeVar("T")
Choice = tuple[Status | None, int]

SHARDS: Final = 2
REQUEST_SECONDS: Final = 4.0
"""A run that takes longer stands still: then the lock of a bare key expires, and what is due becomes a backlog."""

IDENTITIES: Final = [(prefix, timer_id) for prefix in ("mail", "push") for timer_id in ("1", "2", "3", "4", "5")]
VALUES: Final = [b'{"n":1}', b"[2]", b"not json", b"\xff"]

identities = st.sampled_from(IDENTITIES)
choices = st.tuples(st.sampled_from([None, *Status]), st.integers(0, len(IDENTITIES) - 1))
"""A timer by number among those of a status, or of all."""
prefixes = st.sampled_from(["mail", "push"])
pods = st.sampled_from(["a", "b", "c"])
offsets = st.sampled_from([-4000, -3000, -3000, -2000, HOUR_MS, 2 * HOUR_MS])
versions = st.sampled_from([None, None, "right", "wrong"])
edit_locks = st.sampled_from([0, MINUTE_MS, DAY_MS, DAY_MS])
spec = st.sampled_from(
    [
        {},
        {"payload": {"n": 1}},
        {"repeat": {"every": "1h", "count": 3}, "payload": 1},
        {"retry": {"backoff": ["1s", "1h"]}},
        {"tags": ["x"], "missed": "skip"},
    ]
)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Done(),
        Rearm(after="1h"),
        Rearm(after=0, payload=[3]),
        Failed("ValueError", "broken\nin two lines", final=True),
        Failed("ValueError", "broken"),
        Snooze("not yet", 0),
        HandBack("draining"),
        Missed(5000),
        Exhausted("its pods died"),
    ]
)


class Moment(NamedTuple):
    """When a call was carried out, as nearly as can be told (epoch ms of the server)."""

    earliest_ms: int
    latest_ms: int

    def of(self, code: str) -> int:
        """The time at which a code is likeliest: an edit lock ends when its timer is due."""
        return self.earliest_ms if code == "locked" else self.latest_ms


Step = TypeVar("Step", bound=Callable[..., None])
STEPS: Final[list[st.SearchStrategy[tuple[str, dict[str, Any]]]]] = []


def verb(**arguments: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """Marks a method that a step may call, with the strategies for its arguments."""

    def note(method: Step) -> Step:
        STEPS.append(st.tuples(st.just(method.__name__), st.fixed_dictionaries(arguments)))
        return method

    return note


class World(RuleBasedStateMachine):
    """`seen` counts what happened in all runs of the machine."""

    def __init__(self, runner: asyncio.Runner, url: str, seen: Counter[str]) -> None:
        super().__init__()
        self._runner, self.seen = runner, seen
        connections = connect(patient(url))
        self.redis = connections.commands
        self.do(self.redis.flushdb())
        self.store = Store(connections, shards=SHARDS)
        self.bare = BareKeys(self.store)
        self.oracle = Oracle()
        self.held: list[Timer] = []
        """The newest runs that any pod was given, most of them ended."""
        self.heard: Counter[Identity] = Counter()
        """How often each bare key has expired."""
        self.base_ms = self.now_ms = self.do(self.store.now_ms()) // 1000 * 1000
        self.top_token = [0] * SHARDS
        self._began = time.monotonic()

    def do(self, call: Awaitable[T]) -> T:
        return self._runner.get_loop().run_until_complete(_awaited(call))

    def teardown(self) -> None:
        self.do(conserved(self.store))
        self.do(self.store.connections.close())

    def do_timed(self, call: Awaitable[T]) -> tuple[T, Moment]:
        """Answers also when the server can have carried it out."""
        before_ms = self.do(self.store.now_ms())
        answer = self.do(call)
        return answer, Moment(before_ms, self.do(self.store.now_ms()))

    @property
    def stands_still(self) -> bool:
        return time.monotonic() - self._began > REQUEST_SECONDS

    def happened(self, what: str) -> None:
        self.seen[what] += 1

    def at(self, offset_ms: int) -> int:
        """A due time seconds ago, one of a few so that several timers share it, or far ahead."""
        return self.base_ms + offset_ms

    def the(self, choice: Choice) -> Identity:
        status, number = choice
        there = self.oracle.of_status(status) if status is not None else []
        return there[number % len(there)] if there else IDENTITIES[number]

    def version(self, identity: Identity, wanted: str | None) -> int | None:
        life = self.oracle.lives.get(identity)
        here = 1 if life is None else life.version
        return {None: None, "right": here, "wrong": here + 1}[wanted]

    def changed_ms(self, timer: Timer | None) -> int:
        """The server's time of a change, which must never go back."""
        assert timer is not None
        assert self.now_ms <= timer.updated_ms <= self.do(self.store.now_ms())
        self.now_ms = timer.updated_ms
        return timer.updated_ms


async def _awaited(call: Awaitable[T]) -> T:
    return await call
