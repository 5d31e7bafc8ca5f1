"""Bare keys, as steps of the machine: clients set, delete and let expire; pods adopt, announce and inspect."""

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from tests.property.life.world import IDENTITIES, VALUES, World, identities, verb
from timers.bare.keys import GONE, NO_TTL, Heard, KeyState, spec_of
from timers.core.durations import HOUR_MS
from timers.core.model import Status
from timers.store.store import Identity

LAST_MOMENT_MS: Final = 8
CANARY_MS: Final = 1
"""When the canary expired after which all pods count."""


class BareVerbs(World):
    """The verbs for bare keys, of clients and pods."""

    @verb(
        identity=identities,
        value=st.sampled_from(VALUES),
        offset=st.sampled_from([HOUR_MS, 2 * HOUR_MS, None]),
        again=st.booleans(),
    )
    def set_bare(self, *, identity: Identity, value: bytes, offset: int | None, again: bool) -> None:
        """Set a key: a new one, or preferably one that is adopted."""
        adopted = [i for i, life in self.oracle.lives.items() if life.adopted and again]
        self.put_bare(adopted[0] if adopted else identity, value, offset)

    def put_bare(self, identity: Identity, value: bytes, offset: int | None) -> None:
        until_ms = None if offset is None else self.at(offset)
        self.do(self.redis.set(":".join(identity), value, pxat=until_ms))
        self.oracle.bare[identity] = (value, until_ms)

    @verb(which=st.integers(0), found=st.booleans())
    def delete_bare(self, *, which: int, found: bool) -> None:
        """Delete a key, preferably one that was found during a run: then pods look after the runs."""
        during = sorted(self.oracle.meanwhile.keys() & self.oracle.bare.keys()) if found else []
        if identity := during[which % len(during)] if during else self._some_bare(which):
            self.do(self.redis.delete(":".join(identity)))
            del self.oracle.bare[identity]
        if during:
            self.look_after_runs()

    @verb(which=st.integers(0), told=st.booleans())
    def expire_bare(self, *, which: int, told: bool) -> None:
        """Let a key expire. Its event comes now or later."""
        if identity := self._some_bare(which):
            self.do(self.redis.pexpire(":".join(identity), 1))
            self._until_gone(identity)
            if told:
                self.announce_heard(identity, 0)

    def _some_bare(self, which: int) -> Identity | None:
        there = sorted(self.oracle.bare)
        return there[which % len(there)] if there else None

    def _until_gone(self, identity: Identity) -> None:
        while self.do(self.redis.exists(":".join(identity))):
            pass
        del self.oracle.bare[identity]
        self.heard[identity] += 1

    @verb(stale=st.booleans())
    def adopt(self, *, stale: bool) -> None:
        """With `stale`, the shard has changed since the pod looked at the keys."""
        self.take_in(IDENTITIES, stale=stale)

    def take_in(self, some: Sequence[Identity], *, stale: bool = False) -> None:
        states, _ = self.do(self.bare.inspect(some, 0))
        for identity, state in states.items():
            assert state.known_ms == self.oracle.known.get(identity)
            if state.deadline_ms not in (NO_TTL, GONE, state.known_ms):
                assert state.value == self.oracle.bare[identity][0]
                self._adopt(identity, state._replace(known_ms=(state.known_ms or 0) + 1) if stale else state)

    def _adopt(self, identity: Identity, key: KeyState) -> str:
        assert key.value is not None
        before_ms = self.do(self.store.now_ms())
        (code,) = self.do(self.bare.report("adopted", {identity: key})).values()
        spec = spec_of(key.value)
        if code == "stale" and key.deadline_ms <= self.do(self.store.now_ms()):
            return code
        assert code == self.oracle.adopt(identity, key.known_ms, key.deadline_ms, spec, before_ms)
        self.happened(f"adopt: {code}")
        return code

    @verb(which=st.integers(0), late=st.integers(0, 1), forged=st.booleans())
    def announce(self, *, which: int, late: int, forged: bool) -> None:
        """Two pods report expiries of a key: all that happened, or one less. A forged one is of any key, preferably one
        whose timer runs."""
        running = [i for i in self.oracle.of_status(Status.RUNNING) if self.oracle.lives[i].came_from_key]
        some = (running or IDENTITIES) if forged else sorted(self.heard)
        for identity in some[which % len(some) :][:1] * 2 if some else ():
            self.heard[identity] += forged
            self.announce_heard(identity, late)

    def announce_heard(self, identity: Identity, late: int) -> None:
        heard = self.heard[identity] - late
        if heard <= 0:
            return
        before_ms = self.do(self.store.now_ms())
        (code,) = self.do(self.bare.announce({identity: Heard(CANARY_MS, "", heard)})).values()
        (timer,) = self.do(self.store.get([identity]))
        now_ms = timer.due_ms if timer is not None and timer.due_ms >= before_ms else before_ms
        assert code == self.oracle.announce(identity, heard, now_ms)
        assert now_ms <= self.do(self.store.now_ms()) or code != "due"
        self.happened(f"announce: {code}")
        self._look_if_over(identity)

    @verb(identity=identities)
    def adopt_in_the_last_moment(self, *, identity: Identity) -> None:
        """Adopt a key that is gone at its due time, or earlier on a slow machine."""
        due_ms = self.do(self.store.now_ms()) + LAST_MOMENT_MS
        value = str(due_ms).encode()
        self.do(self.redis.set(":".join(identity), value, pxat=due_ms))
        self.oracle.bare[identity] = (value, due_ms)
        code = self._adopt(identity, KeyState(self.oracle.known.get(identity), due_ms, value))
        self._until_gone(identity)
        if code in ("adopted", "moved"):
            self._resolve(identity, "expired")

    @verb()
    def look_after_runs(self) -> None:
        """Inspect the keys that were found during a run. Those of another occurrence are forgotten."""
        found = sorted(self.do(self.bare.meanwhile()))
        states, _ = self.do(self.bare.inspect(found, 0))
        for identity in found:
            gone, before_ms = states[identity].deadline_ms == GONE, self.do(self.store.now_ms())
            (code,) = self.do(self.bare.after_runs({identity: gone})).values()
            assert code == self.oracle.after_run(identity, before_ms, gone=gone)
            self.happened(f"after a run: {code}")
            self._look_if_over(identity)

    def _look_if_over(self, identity: Identity) -> None:
        """Look at a key whose deadline has passed: a claim takes its timer out of the due index, and the look puts it
        back."""
        if self.oracle.known.get(identity, self.base_ms * 2) <= self.do(self.store.now_ms()):
            self._resolve(identity, "expired")

    @verb(which=st.integers(0), soon=st.sampled_from([False, False, True]), expired=st.booleans())
    def inspect(self, *, which: int, soon: bool, expired: bool) -> None:
        """Inspect a known key. A key that is gone counts as expired, as if its event had been heard, or as deleted."""
        known = sorted(self.oracle.known)
        if not known:
            return
        identity = known[which % len(known)]
        deadline_ms = self.do(self.bare.inspect([identity], 0))[0][identity].deadline_ms
        if deadline_ms == GONE:
            self._resolve(identity, "expired" if expired else "deleted")
        elif deadline_ms == NO_TTL:
            self._resolve(identity, "lost-ttl")
        elif deadline_ms == self.oracle.known[identity]:
            code = self._resolve(identity, "ending" if soon else "there")
            if code in ("due", "spare"):
                assert self.do(self.bare.take({identity: deadline_ms})) == [identity]
                del self.oracle.bare[identity]
                self._resolve(identity, "deleted")

    def _resolve(self, identity: Identity, what: str) -> str:
        seen = KeyState(self.oracle.known[identity], GONE)
        before_ms = self.do(self.store.now_ms())
        (code,) = self.do(self.bare.report(what, {identity: seen})).values()
        (timer,) = self.do(self.store.get([identity]))
        after_ms = self.do(self.store.now_ms())
        now_ms = timer.due_ms if timer is not None and before_ms <= timer.due_ms <= after_ms else before_ms
        assert code == self.oracle.resolve(identity, what, now_ms)
        self.happened(f"resolve: {code}")
        self.happened(what)
        return code
