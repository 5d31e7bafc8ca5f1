"""Owns how many calls a pod makes to each target, so that a slow or dead target holds up no other."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from timers import Fail, Retry

TARGETS_KEPT: Final = 10_000
"""At most this many targets are remembered. A target without calls or failures is forgotten at once."""

_SMOOTHING: Final = 0.2
"""Weight of the newest call in the average length of a target's calls."""

_rng = Random()  # noqa: S311 (jitter, not a secret)


def later(seconds: float) -> float:
    """The wait plus up to a tenth, so that timers that were postponed together do not come back together."""
    return seconds * _rng.uniform(1.0, 1.1)


class Unanswered(Exception):
    """A call got no answer: not connected, cut off, or too slow. Raised within a turn."""


@dataclass(slots=True)
class Target:
    """The calls to one target, with those that wait, and how it has answered."""

    slots: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    calls: int = 0
    average_seconds: float = 0.1
    free_at: float = 0.0
    failures: int = 0
    broken_until: float = 0.0
    pauses: int = 0

    def answered(self) -> None:
        """Forget its failures and pauses."""
        self.failures, self.pauses, self.broken_until = 0, 0, 0.0


@dataclass(kw_only=True, eq=False)
class Targets:
    """The targets of one pod, by name. A call runs within a `turn`.

    A target gets `at_once` calls at a time; `waiting` more may wait, each for at most `wait_seconds`. `in_all` bounds
    these of all targets together. A call that finds no room comes back within `longest_busy_seconds`. After `failures`
    unanswered calls in a row the target is left alone for `pause_seconds`, then gets one call. If that is not answered
    either, the next pause is twice as long, up to `longest_pause_seconds`."""

    at_once: int = 20
    waiting: int = 80
    in_all: float = math.inf
    wait_seconds: float = 1.0
    failures: int = 5
    pause_seconds: float = 10.0
    longest_pause_seconds: float = 160.0
    longest_busy_seconds: float = 300.0
    clock: Callable[[], float] = time.monotonic
    known: dict[str, Target] = field(default_factory=dict, init=False)
    """The targets that have calls or failures."""
    together: Target = field(default_factory=Target, init=False)
    """The calls to all of them."""

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """A call may be made within this context. Raises Retry if it may not: a snooze if the target has enough to do.
        Unanswered counts as a failure of the target and becomes a Retry; a call that succeeds clears the failures."""
        if self.together.calls >= self.in_all:
            raise self._busy("all targets", self.together, self.in_all)
        target = self._target(name)
        self._check_pause(name, target)
        if target.calls >= self.at_once + self.waiting:
            raise self._busy(name, target, self.at_once)
        target.calls += 1
        self.together.calls += 1
        try:
            await self._wait_for_slot(name, target)
            started, pauses = self.clock(), target.pauses
            try:
                self._begin(name, target)
                yield
                target.answered()
            except Unanswered as error:
                self.count_failure(target, pauses)
                raise Retry(f"{name}: {error}") from error
            finally:
                target.slots.release()
                for each in (target, self.together):
                    each.average_seconds += _SMOOTHING * (self.clock() - started - each.average_seconds)
        finally:
            target.calls -= 1
            self.together.calls -= 1
            self._forget(name, target)

    def _target(self, name: str) -> Target:
        if len(self.known) >= TARGETS_KEPT and name not in self.known:
            idle = (known for known, target in self.known.items() if not target.calls)
            self.known.pop(next(idle, ""), None)
        return self.known.setdefault(name, Target(asyncio.Semaphore(self.at_once)))

    def _forget(self, name: str, target: Target) -> None:
        if not target.calls and not target.failures and target.free_at <= self.clock():
            self.known.pop(name, None)

    async def _wait_for_slot(self, name: str, target: Target) -> None:
        try:
            async with asyncio.timeout(self.wait_seconds):
                await target.slots.acquire()
        except TimeoutError:
            raise self._busy(name, target, self.at_once) from None

    def _busy(self, name: str, target: Target, at_once: float) -> Retry:
        """Calls without room come back one after the other, at the rate at which the target has taken calls so far."""
        now, each = self.clock(), target.average_seconds / at_once
        target.free_at = max(target.free_at, now + self.wait_seconds) + each
        after = min(target.free_at - now, self.longest_busy_seconds)
        return Retry(f"this pod already makes as many calls to {name} as it may", after=after, snooze=True)

    def _check_pause(self, name: str, target: Target) -> None:
        """Raises Retry during a pause."""
        left = target.broken_until - self.clock()
        if left > 0:
            raise Retry(f"not tried: recent calls to {name} failed", after=later(left))

    def _begin(self, name: str, target: Target) -> None:
        """After a pause one call goes; the others are refused for another `pause_seconds`, unless that call gets an
        answer."""
        self._check_pause(name, target)
        if target.pauses:
            target.broken_until = self.clock() + self.pause_seconds

    def count_failure(self, target: Target, pauses: int) -> float:
        """Count a call that began after so many pauses. Returns the seconds of the pause that it starts, or 0: one that
        began before the last pause starts no new one, so twenty calls that hang together cause one pause."""
        target.failures += 1
        if target.failures < self.failures or target.pauses != pauses:
            return 0.0
        pause: float = min(self.pause_seconds * 2 ** min(target.pauses, 10), self.longest_pause_seconds)
        target.broken_until = self.clock() + pause
        target.pauses += 1
        return pause

    @contextmanager
    def holding_off(self, target: Target) -> Iterator[None]:
        """For a target with a prefix of its own, where any failure counts, and the pod itself starts nothing in a
        pause. Raises Retry with `hold_off` for a failure that starts one. A call that was on its way starts none."""
        pauses = target.pauses if self.clock() >= target.broken_until else -1
        try:
            yield
        except Fail:
            target.answered()
            raise
        except Exception as error:
            retry = error if isinstance(error, Retry) else None
            pause = 0.0 if retry is not None and retry.snooze else self.count_failure(target, pauses)
            if not pause:
                raise
            after = None if retry is None else retry.after
            raise Retry(f"{error}; other calls wait for {pause:g} s", after=after, hold_off=pause) from error
        target.answered()
