"""What becomes of bare keys, as steps of the machine: clients set, delete, let expire; pods adopt, announce, review."""

from typing import Final

from hypothesis import strategies as st

from tests.property.life.world import IDENTITIES, SHARDS, VALUES, World, identities, verb
from timers.core.durations import HOUR_MS
from timers.store.bare import Gone, Heard, spec_of
from timers.store.store import Identity

LAST_MOMENT_MS: Final = 8


class BareVerbs(World):
    """Clients' verbs, and pods' upon them."""

    @verb(
        identity=identities,
        value=st.sampled_from(VALUES),
        offset=st.sampled_from([HOUR_MS, 2 * HOUR_MS, None]),
        again=st.booleans(),
    )
    def set_bare(self, *, identity: Identity, value: bytes, offset: int | None, again: bool) -> None:
        """A new key, or rather one that is adopted."""
        adopted = [i for i, life in self.oracle.lives.items() if life.adopted and again]
        self.put_bare(adopted[0] if adopted else identity, value, offset)

    def put_bare(self, identity: Identity, value: bytes, offset: int | None) -> None:
        until_ms = None if offset is None else self.at(offset)
        self.do(self.redis.set(":".join(identity), value, pxat=until_ms))
        self.oracle.bare[identity] = (value, until_ms)

    @verb(which=st.integers(0))
    def delete_bare(self, *, which: int) -> None:
        if identity := self._some_bare(which):
            self.do(self.redis.delete(":".join(identity)))
            del self.oracle.bare[identity]

    @verb(which=st.integers(0), told=st.booleans())
    def expire_bare(self, *, which: int, told: bool) -> None:
        """Its event comes at once, or another time."""
        if identity := self._some_bare(which):
            self.do(self.redis.pexpire(":".join(identity), 1))
            self._until_gone(identity)
            if told:
                self._announce(identity, 0)

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
        """With `stale` the keys have got another value since they were read."""
        values = self.do(self.bare.values(IDENTITIES))
        assert values == {i: self.oracle.bare[i][0] for i in IDENTITIES if i in self.oracle.bare}
        read = {i: value + b"?" for i, value in values.items()} if stale else values
        self.take_in(read)

    def take_in(self, values: dict[Identity, bytes]) -> None:
        for shard in range(SHARDS):
            mine = {i: value for i, value in values.items() if self.store.shard_of(*i) == shard}
            codes = self.do(self.bare.adopt(shard, mine))
            for (identity, value), code in zip(mine.items(), codes, strict=True):
                self._adopted(identity, value, code)

    def _adopted(self, identity: Identity, value: bytes, code: str) -> None:
        """The server counts from what is left of the key's life, which may cost a millisecond or two."""
        assert code == self.oracle.adopt(identity, value, spec_of(value))
        self.happened(f"adopt: {code}")
        if code in ("adopted", "moved"):
            (timer,) = self.do(self.store.get([identity]))
            life = self.oracle.lives[identity]
            assert timer is not None
            assert abs(timer.due_ms - life.due_ms) <= 2
            life.due_ms = timer.due_ms

    @verb(which=st.integers(0), late=st.integers(0, 1))
    def announce(self, *, which: int, late: int) -> None:
        """Two pods have heard all expiries of a key, or are late by one."""
        heard = sorted(self.heard)
        for identity in heard[which % len(heard) :][:1] * 2 if heard else ():
            self._announce(identity, late)

    def _announce(self, identity: Identity, late: int) -> None:
        heard = self.heard[identity] - late
        if heard <= 0:
            return
        before_ms = self.do(self.store.now_ms())
        (code,) = self.do(self.bare.announce(self.store.shard_of(*identity), {identity: Heard(heard, 0)}))
        (timer,) = self.do(self.store.get([identity]))
        now_ms = timer.due_ms if timer is not None and timer.due_ms >= before_ms else before_ms
        assert code == self.oracle.announce(identity, heard, now_ms)
        assert now_ms <= self.do(self.store.now_ms()) or code != "due"
        self.happened(f"announce: {code}")

    @verb(identity=identities)
    def adopt_in_the_last_moment(self, *, identity: Identity) -> None:
        """A key that is adopted and gone at its due time; or gone before, where the machine is slow."""
        due_ms = self.do(self.store.now_ms()) + LAST_MOMENT_MS
        value = str(due_ms).encode()
        self.do(self.redis.set(":".join(identity), value, pxat=due_ms))
        self.oracle.bare[identity] = (value, due_ms)
        (code,) = self.do(self.bare.adopt(self.store.shard_of(*identity), {identity: value}))
        if code != "gone":
            self._adopted(identity, value, code)
        self._until_gone(identity)

    @verb(deleted=st.booleans())
    def look(self, *, deleted: bool) -> None:
        """Review the adopted, and take all whose key is gone for deleted, or those that were due for expired."""
        gone = [g for shard in range(SHARDS) for g in self.do(self.bare.look(shard, 0, 100))[0]]
        adopted = sum(life.adopted for life in self.oracle.lives.values())
        assert {(g.prefix, g.id) for g in gone} == self.oracle.look()
        self.seen["look: never expires"] += adopted > sum(life.adopted for life in self.oracle.lives.values())
        now_ms = self.do(self.store.now_ms())
        self._conclude([g for g in gone if deleted or g.due_ms <= now_ms], deleted=deleted)

    def _conclude(self, gone: list[Gone], *, deleted: bool) -> None:
        for shard in range(SHARDS):
            mine = [g for g in gone if self.store.shard_of(g.prefix, g.id) == shard]
            self.do(self.bare.conclude(shard, mine, deleted=deleted))
            self.oracle.conclude([(g.prefix, g.id) for g in mine], deleted=deleted)
        self.seen["conclude: deleted" if deleted else "conclude: expired"] += len(gone)
