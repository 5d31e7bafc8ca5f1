"""Callers, as steps of the machine: arm, cancel, change, fire, retry, pause."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.property.life.world import (
    Choice,
    World,
    choices,
    edit_locks,
    identities,
    offsets,
    spec,
    verb,
    versions,
)
from timers.client.planning import plan
from timers.core.model import Progress, Status
from timers.core.spec import NewTimer
from timers.store.store import Arming, Identity, Reply


class CallerVerbs(World):
    """The verbs of the client."""

    @verb(
        identity=identities,
        offset=st.one_of(st.none(), offsets),
        wanted=spec,
        if_exists=st.sampled_from(["error", "replace", "keep"]),
        edit_lock_ms=edit_locks,
    )
    def arm(
        self,
        *,
        identity: Identity,
        offset: int | None,
        wanted: dict[str, Any],
        if_exists: str,
        edit_lock_ms: int,
    ) -> None:
        """Without an offset the timer is due when it is armed."""
        due = {"delay": 0} if offset is None else {"due_at": self.at(offset)}
        new = {"prefix": identity[0], "id": identity[1], "if_exists": if_exists, **due, **wanted}
        self.arm_all([plan(NewTimer.parse(new), self.now_ms)], edit_lock_ms)

    @verb(many=st.lists(identities, min_size=2, max_size=6), offset=offsets)
    def arm_many(self, *, many: list[Identity], offset: int) -> None:
        self.arm_all([Arming(prefix, timer_id, f"@{self.at(offset)}", {}) for prefix, timer_id in many])

    def arm_all(self, armings: Sequence[Arming], edit_lock_ms: int = 0) -> None:
        answers, moment = self.do_timed(self.store.arm(armings, edit_lock_ms=edit_lock_ms))
        for arming, answer in zip(armings, answers, strict=True):
            assert answer.timer is not None
            due_ms = int(arming.due[1:])
            if arming.due[0] == "+":
                due_ms += answer.timer.updated_ms
            code = self.oracle.arm(arming, due_ms, moment.of(answer.code), edit_lock_ms)
            assert answer.code == code
            self.happened(f"arm: {code}")

    @verb(chosen=choices, purge=st.booleans(), edit_lock_ms=edit_locks, wanted=versions)
    def cancel(self, *, chosen: Choice, purge: bool, edit_lock_ms: int, wanted: str | None) -> None:
        identity = self.the(chosen)
        version = self.version(identity, wanted)
        removal = self.store.cancel(*identity, edit_lock_ms=edit_lock_ms, version=version, purge=purge)
        answer, moment = self.do_timed(removal)
        now_ms = moment.of(answer.code)
        assert answer.code == self.oracle.cancel(identity, now_ms, edit_lock_ms, version, purge=purge)
        self.happened(f"cancel: {answer.code}")

    @verb(
        chosen=choices,
        offset=st.one_of(st.none(), offsets),
        payload=st.one_of(st.none(), st.just({"n": 7})),
        edit_lock_ms=edit_locks,
        wanted=versions,
    )
    def change(
        self, *, chosen: Choice, offset: int | None, payload: object, edit_lock_ms: int, wanted: str | None
    ) -> None:
        identity = self.the(chosen)
        due_ms = None if offset is None else self.at(offset)
        given = {} if payload is None else {"payload": payload}
        progress = None if offset is None else Progress(slot_ms=due_ms, anchor_ms=due_ms)
        version = self.version(identity, wanted)
        answer, moment = self.do_timed(
            self.store.reschedule(
                *identity,
                due="" if due_ms is None else f"@{due_ms}",
                spec=given or None,
                progress=progress,
                edit_lock_ms=edit_lock_ms,
                version=version,
            )
        )
        assert answer.code == self.oracle.change(
            identity,
            moment.of(answer.code),
            edit_lock_ms,
            version,
            due_ms=due_ms,
            spec=given or None,
            progress=progress,
            note="changed",
        )
        self.happened(f"change: {answer.code}")

    @verb(chosen=choices)
    def fire(self, *, chosen: Choice) -> None:
        identity = self.the(chosen)
        answer = self.do(self.store.reschedule(*identity, due="+0", cause="fired"))
        due_ms = self._due_now(answer, "changed")
        assert answer.code == self.oracle.change(identity, self.now_ms, due_ms=due_ms, note="fired on request")
        self.happened(f"fire: {answer.code}")

    @verb(chosen=st.tuples(st.sampled_from(list(Status)), st.integers(0, 3)))
    def retry(self, *, chosen: Choice) -> None:
        identity = self.the(chosen)
        answer = self.do(self.store.rearm(*identity, cause="retried"))
        assert answer.code == self.oracle.rearm(identity, self._due_now(answer, "changed"), "retried on request")
        self.happened(f"retry: {answer.code}")

    @verb(chosen=st.tuples(st.sampled_from(list(Status)), st.integers(0, 3)), offset=offsets, wanted=versions)
    def replay(self, *, chosen: Choice, offset: int, wanted: str | None) -> None:
        identity, due_ms = self.the(chosen), self.at(offset)
        version = self.version(identity, wanted)
        revival = self.store.rearm(*identity, due=f"@{due_ms}", version=version, completed=True, cause="replayed")
        answer = self.do(revival)
        assert answer.code == self.oracle.rearm(identity, due_ms, "replayed", version, completed=True)
        self.happened(f"replay: {answer.code}")

    def _due_now(self, answer: Reply, code: str) -> int:
        if answer.code != code or answer.timer is None:
            return 0
        assert answer.timer.due_ms == self.changed_ms(answer.timer)
        return answer.timer.due_ms
