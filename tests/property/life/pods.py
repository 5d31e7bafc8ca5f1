"""Pods, as steps of the machine: claim, end runs in time or late, rescue, extend, abandon, prune, list."""

from collections import Counter
from random import Random
from typing import Final

from hypothesis import strategies as st

from tests.property.life.world import IDENTITIES, SHARDS, World, identities, outcomes, pods, prefixes, verb
from tests.store.acts import prune
from timers.core.decide import decide
from timers.core.durations import DAY_MS, HOUR_MS
from timers.core.model import Status, Timer
from timers.core.outcome import Outcome
from timers.core.policies import RetryPolicy
from timers.store import keys
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.permits import Permits
from timers.store.store import Identity, Settlement

LEASE_MS: Final = HOUR_MS
"""Leases expire when a step makes them."""

RETENTION_MS: Final = 14 * DAY_MS
ONE_TRY_MORE: Final = RetryPolicy(max_attempts=2, backoff="fixed", base="0s")
HELD_LIMIT: Final = 10


class PodVerbs(World):
    """The verbs of the engine."""

    @verb(prefix=prefixes, paused=st.booleans(), pod=pods)
    def pause(self, *, prefix: str, paused: bool, pod: str) -> None:
        changed = self.do(self.store.pause(prefix, paused=paused))
        assert changed is (paused is not (prefix in self.oracle.paused))
        (self.oracle.paused.add if paused else self.oracle.paused.discard)(prefix)
        self.happened("pause" if paused else "resume")
        self.claim_of_all_shards(pod, prefix, 2, None)

    @verb(pod=pods, prefix=prefixes, most=st.integers(1, 5), concurrency=st.sampled_from([None, None, 1, 2]))
    def claim(self, *, pod: str, prefix: str, most: int, concurrency: int | None) -> None:
        self.claim_of_all_shards(pod, prefix, most, concurrency)

    def claim_of_all_shards(self, pod: str, prefix: str, most: int, concurrency: int | None) -> None:
        for shard in range(SHARDS):
            self._claim(shard, pod, prefix, most, concurrency)

    def _claim(self, shard: int, pod: str, prefix: str, most: int, concurrency: int | None) -> None:
        room = most if concurrency is None else min(most, concurrency - self._running(prefix))
        paused = prefix in self.oracle.paused
        due = [i for i in self.oracle.due(prefix, self.do(self.store.now_ms())) if self.store.shard_of(*i) == shard]
        asked = room if concurrency != 1 or self._is_next(shard, prefix) else 0
        wanted = [(prefix, asked)] if asked > 0 else []
        claimed = self.do(
            self.store.claim(shard, wanted, pod=pod, lease_ms=LEASE_MS, cause="event", in_order=concurrency == 1)
        )
        got = [(timer.prefix, timer.id) for timer in claimed.timers]
        assert not claimed.quarantined
        assert got in ([[]] if paused else self._allowed(due, room, one_at_a_time=concurrency == 1))
        assert prefix not in claimed.more or len(got) == asked
        assert prefix in claimed.more or paused or asked <= 0 or len(due) <= asked
        for timer in claimed.timers:
            self._take(shard, timer, pod)
            self.oracle.claim((timer.prefix, timer.id), timer.token, pod, "event")
        self._tell_claim(due, got, room, most, paused=paused)

    def _is_next(self, shard: int, prefix: str) -> bool:
        """True if the holder of the only permit is sent to this shard. False for all shards while one timer runs."""
        next_shard = self.do(Permits(self.store).next_shards([prefix]))[prefix]
        assert next_shard is None or not self._running(prefix)
        return next_shard == shard

    def _allowed(self, due: list[Identity], room: int, *, one_at_a_time: bool) -> list[list[Identity]]:
        """The timers that a claim may return from a shard. A queue that runs one at a time spans all shards: the
        earliest comes first, and of several in the same millisecond any."""
        first = due[: max(room, 0)]
        if not one_at_a_time or not first:
            return [first]
        shard, due_ms = self.store.shard_of(*first[0]), self.oracle.lives[first[0]].due_ms
        elsewhere = [i for i in self.oracle.queued(first[0][0]) if self.store.shard_of(*i) != shard]
        earliest_ms = min((self.oracle.lives[i].due_ms for i in elsewhere), default=due_ms + 1)
        return [[]] if earliest_ms < due_ms else [first] if earliest_ms > due_ms else [first, []]

    def _tell_claim(self, due: list[Identity], got: list[Identity], room: int, most: int, *, paused: bool) -> None:
        told = {
            "claim": bool(got),
            "claim of a batch": len(got) > 1,
            "claim of a paused queue": paused and bool(due),
            "claim at the limit": len(got) < min(len(due), most) and not paused,
            "claim in order": bool(got) and len(got) < len(due) and room > 0,
        }
        for what, true in told.items():
            self.seen[what] += true

    def _running(self, prefix: str) -> int:
        return sum(i[0] == prefix for i in self.oracle.of_status(Status.RUNNING))

    def _take(self, shard: int, timer: Timer, pod: str) -> None:
        """Take a claimed timer. Its token must be greater than all that the shard ever gave."""
        assert timer.token > self.top_token[shard]
        self.top_token[shard] = timer.token
        assert timer.lease is not None
        assert timer.lease.pod == pod
        self.held = [*self.held, timer][-HELD_LIMIT:]

    @verb(pod=pods, which=st.integers(0), outcome=outcomes, keeps=st.sampled_from([True, True, True, False]))
    def settle(self, *, pod: str, which: int, outcome: Outcome, keeps: bool) -> None:
        runs = [timer for timer in self.held if self._runs(timer)]
        if runs:
            self.end(runs[which % len(runs)], pod, outcome, keeps=keeps)

    @verb(pod=pods, which=st.integers(0), outcome=outcomes)
    def settle_late(self, *, pod: str, which: int, outcome: Outcome) -> None:
        """Settle a run that its pod has lost, or has ended without getting the answer. Nothing may change."""
        late = [timer for timer in self.held if not self._runs(timer)]
        if late:
            self.end(late[which % len(late)], pod, outcome, keeps=True)

    def _runs(self, timer: Timer) -> bool:
        life = self.oracle.lives.get((timer.prefix, timer.id))
        return life is not None and life.status is Status.RUNNING and life.token == timer.token

    def end(self, timer: Timer, pod: str, outcome: Outcome, *, keeps: bool) -> None:
        after = decide(timer, outcome, self.do(self.store.now_ms()), ONE_TRY_MORE, Random(0))
        shard = self.store.shard_of(timer.prefix, timer.id)
        retention_ms = RETENTION_MS if keeps else 0
        (code,) = self.do(
            self.store.settle(shard, [Settlement(timer, after)], pod=pod, retention_ms=retention_ms, keeps_failed=keeps)
        )
        assert code == self.oracle.settle(timer, after, pod, keeps=keeps)
        self.happened(f"settle: {code}")
        if code == "settled":
            self.happened(type(outcome).__name__)

    @verb(which=st.integers(0))
    def expire(self, *, which: int) -> None:
        """Let a lease end."""
        leased = [i for i in self.oracle.of_status(Status.RUNNING) if self.oracle.lives[i].leased]
        if leased:
            self.let_expire(leased[which % len(leased)])

    def let_expire(self, identity: Identity) -> None:
        member, root = ":".join(identity), keys.root(self.store.shard_of(*identity))
        self.do(self.redis.delete(f"{root}lease:{member}"))
        self.do(self.redis.zadd(f"{root}leases", {member: self.base_ms - 1}))
        self.oracle.lives[identity].leased = False
        self.happened("expire")

    @verb(pod=pods, some=st.lists(identities, min_size=1, max_size=4, unique=True))
    def rescue(self, *, pod: str, some: list[Identity]) -> None:
        """Rescue some runs. Those that are no orphans must not change."""
        for shard in range(SHARDS):
            asked = [i for i in some if self.store.shard_of(*i) == shard]
            rescued = self.do(self.store.rescue(shard, asked, pod=pod, lease_ms=LEASE_MS)).timers
            assert [(t.prefix, t.id) for t in rescued] == [i for i in asked if self.oracle.may_rescue(i)]
            for timer in rescued:
                self._take(shard, timer, pod)
                self.oracle.rescue((timer.prefix, timer.id), timer.token, pod)
                self.happened("rescue")

    @verb(pod=pods, which=st.integers(0))
    def extend(self, *, pod: str, which: int) -> None:
        timer = self.held[which % len(self.held)]
        shard = self.store.shard_of(timer.prefix, timer.id)
        lost = self.do(self.store.extend(shard, [timer], pod=pod, lease_ms=LEASE_MS))
        goes_on = self.oracle.extend(timer, pod)
        assert lost == ([] if goes_on else [timer])
        self.happened("extend" if goes_on else "extend: lost")

    @verb(pod=pods, prefix=prefixes, most=st.integers(1, 3))
    def abandon(self, *, pod: str, prefix: str, most: int) -> None:
        for shard in range(SHARDS):
            due = [i for i in self.oracle.due(prefix, self.base_ms - 1) if self.store.shard_of(*i) == shard][:most]
            asked = [i for i in IDENTITIES if i[0] == prefix and self.store.shard_of(*i) == shard]
            lost = [i for i in asked if i in self.oracle.orphans()]
            if prefix in self.oracle.paused:
                due, lost = [], []
            runs = [timer_id for _, timer_id in asked]
            ids = self.do(self.store.abandon(shard, prefix, runs, before_ms=self.base_ms, most=most, pod=pod))
            assert [(prefix, timer_id) for timer_id in ids] == due + lost
            self.oracle.abandon(due, pod)
            for timer in self.do(self.store.get(lost)):
                assert timer is not None
                assert timer.token > self.oracle.lives[timer.prefix, timer.id].token
                self.oracle.abandon_run((timer.prefix, timer.id), timer.token, pod)
            self.seen["abandon"] += len(due)
            self.seen["abandon: runs"] += len(lost)

    @verb(most=st.integers(0, 2))
    def prune(self, *, most: int) -> None:
        """Prune with a retention that ends now, which removes everything finished."""
        before = {i for i, life in self.oracle.lives.items() if life.status.finished}
        removed = sum(self.do(prune(self.store, retention_ms=-1, most=most, shard=shard)) for shard in range(SHARDS))
        left = {i for i, t in zip(before, self.do(self.store.get(list(before))), strict=True) if t is not None}
        of_shards = Counter(self.store.shard_of(*i) for i in before)
        assert removed == len(before) - len(left) == sum(min(most, n) for n in of_shards.values())
        for identity in before - left:
            del self.oracle.lives[identity]
        self.seen["prune"] += removed

    @verb()
    def touch(self) -> None:
        due: dict[str, int] = {}
        orphans: set[Identity] = set()
        for shard in range(SHARDS):
            touched = self.do(self.store.touch(shard))
            orphans.update(self.do(self.store.orphans(shard))[0])
            due.update(touched.due)
        waiting = {i[0] for i in IDENTITIES if self.oracle.due(i[0], self.do(self.store.now_ms()))}
        assert set(due) == waiting - self.oracle.paused
        assert orphans == {i for i in self.oracle.orphans() if self.oracle.may_rescue(i)}
        self.seen["touch: orphans"] += bool(orphans)

    @verb(prefix=st.one_of(st.none(), prefixes), status=st.one_of(st.none(), st.sampled_from(Status)))
    def page(self, *, prefix: str | None, status: Status | None) -> None:
        """List page after page: each timer once, running ones first."""
        listed: list[Timer] = []
        cursor: str | None = None
        while cursor is not None or not listed:
            page = self.do(
                read_page(
                    self.store,
                    Filter(prefix=prefix, status=None if status is None else (status,)),
                    limit=3,
                    cursor=cursor,
                )
            )
            listed, cursor = [*listed, *page.items], page.next_cursor
            if cursor is None:
                break
        wanted = {
            identity: life.status
            for identity, life in self.oracle.lives.items()
            if prefix in (None, identity[0])
            and (life.is_retrying if status is Status.RETRYING else status in (None, life.status))
        }
        assert {(timer.prefix, timer.id): timer.status for timer in listed} == wanted
        assert len(listed) == len(wanted)
        self.seen["page"] += len(listed) > 3
