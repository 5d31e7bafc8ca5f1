"""In a fleet whose pods have different processors, each timer is run by its own: it belongs to the longest prefix
that any pod declared, even while that pod is away."""

from collections.abc import Sequence

import pytest

from tests.engine.fleet import Calls, Fleet, Held, Pod, until
from tests.store.test_round_trips import count_sent
from tests.waiting import eventually
from timers.client.fleet import Declared
from timers.core.explain import explain
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.doctor.examining import examine
from timers.errors import NoProcessor, NotFound, Refused

UNHANDLED_AFTER_MS = 200
BUILT_IN = ("log", "send-message")
LONGER = ("login-check", "send-message-vip")
WHOSE = {
    "log": "log",
    "log-x": "log",
    "login-check": "login-check",
    "login-check.daily": "login-check",
    "send-message": "send-message",
    "send-message-24h": "send-message",
    "send-message-vip": "send-message-vip",
    "send-message-vip-24h": "send-message-vip",
    "send-message-vips": "send-message",
}
"""Prefixes of timers, and the processor that each is for once both kinds of pods have been there."""


def calls_of(prefixes: Sequence[str]) -> list[Calls]:
    return [Calls(prefix) for prefix in prefixes]


async def knows(pod: Pod, prefix: str) -> None:
    """Wait until the pod knows of the declaration, which takes one beat."""
    await until(lambda: pod.worker.peers.owner(prefix) == prefix, f"{pod.name} knows of {prefix}")


def ran(calls: Sequence[Calls]) -> dict[str, set[str]]:
    """The prefixes of the timers that each processor got."""
    return {each.processor.prefix: {timer.prefix for timer in each.timers} for each in calls}


async def test_log_and_send_message_ran_half_of_login_check_and_send_message_vip(fleet: Fleet) -> None:
    """Pod 1 has the built-in processors, pod 2 has two more. The right processor runs each timer, whichever pod hears
    the event first, and the history names it."""
    first, second = calls_of(BUILT_IN), calls_of((*BUILT_IN, *LONGER))
    one = await fleet.pod(*first, name="one")
    await fleet.pod(*second, name="two")
    for prefix in LONGER:
        await knows(one, prefix)
    news = [NewTimer(prefix=prefix, id=f"n{n}", delay=n) for prefix in WHOSE for n in (0, 0.05, 0.1)]
    news = [new.model_copy(update={"id": f"n{n}"}) for n, new in enumerate(news)]
    await fleet.client.batch(news)
    for new in news:
        timer = await fleet.completed(str(new.id), new.prefix)
        assert [entry.processor for entry in timer.history if entry.status is Status.RUNNING] == [WHOSE[new.prefix]]
        assert f"by {WHOSE[new.prefix]}" in " ".join(explain(timer, timer.updated_ms))
    for prefixes in (ran(first), ran(second)):
        assert all(WHOSE[prefix] == processor for processor, found in prefixes.items() for prefix in found)
    assert not any(timer.prefix == "send-message-vip" for each in first for timer in each.timers)


async def test_a_rolling_deploy_from_two_to_two_pods_runs_none_with_the_old_processor(fleet: Fleet) -> None:
    old = [calls_of(BUILT_IN) for _ in range(2)]
    new = [calls_of((*BUILT_IN, *LONGER)) for _ in range(2)]
    before = [await fleet.pod(*calls, name=f"old-{n}") for n, calls in enumerate(old)]
    ids = iter(range(1000))
    for round_of in range(2):
        await fleet.pod(*new[round_of], name=f"new-{round_of}")
        for pod in before[round_of:]:
            await knows(pod, "send-message-vip")
        armed = [NewTimer(prefix=prefix, id=f"n{next(ids)}", delay=0) for prefix in WHOSE for _ in range(3)]
        await fleet.client.batch(armed)
        await fleet.drain(before[round_of])
        for timer in armed:
            await fleet.completed(str(timer.id), timer.prefix)
    for calls in (*old, *new):
        assert all(WHOSE[prefix] == processor for processor, found in ran(calls).items() for prefix in found)


async def test_a_timer_whose_pod_is_gone_waits_and_no_other_pod_takes_it(fleet: Fleet) -> None:
    """They were all run by `send-message`. Now a create without the pod is accepted; the timer waits, becomes
    `unhandled`, and a retry runs it once the pod is back."""
    shorter = calls_of(BUILT_IN)
    watch = await fleet.pod(*shorter, name="one", unhandled_after_ms=UNHANDLED_AFTER_MS)
    gone = await fleet.pod(*calls_of(LONGER), name="two")
    await knows(watch, "send-message-vip")
    await fleet.drain(gone)
    await fleet.client.create("send-message-vip-24h", "x", delay=0)
    (view,) = [v for v in await fleet.client.prefixes() if v.prefix == "send-message-vip-24h"]
    assert (view.processor, view.pods, view.away) == ("send-message-vip", [], True)
    timer = await fleet.reached(Status.UNHANDLED, "x", "send-message-vip-24h")
    assert timer.attempt == 0
    back = calls_of(LONGER)
    await fleet.pod(*back, name="three")
    await fleet.client.retry("send-message-vip-24h", "x")
    await fleet.completed("x", "send-message-vip-24h")
    assert [len(each) for each in (*shorter, *back)] == [0, 0, 0, 1]


async def test_a_timer_armed_in_a_gap_of_the_workers_runs_when_they_are_back(fleet: Fleet) -> None:
    await fleet.drain(await fleet.pod(Calls("welcome"), name="old"))
    await fleet.client.create("welcome-mail", "x", delay=0)
    (armed,) = await fleet.client.batch([{"prefix": "welcome", "id": "y", "delay": 0}])
    assert not isinstance(armed, Exception)
    calls = Calls("welcome")
    await fleet.pod(calls, name="new")
    for prefix, timer_id in (("welcome-mail", "x"), ("welcome", "y")):
        await fleet.completed(timer_id, prefix)
    assert sorted(calls.ids) == ["x", "y"]


async def test_a_prefix_that_nobody_ever_declared_is_refused(fleet: Fleet) -> None:
    await fleet.pod(Calls("log"))
    with pytest.raises(NoProcessor, match=r"prefix: 'login' is not accepted; expected .* \(log, note\)"):
        await fleet.client.create("login", "x", delay=0)
    (refused,) = await fleet.client.batch([{"prefix": "login", "id": "x", "delay": 0}])
    assert isinstance(refused, NoProcessor)


async def test_a_dead_pods_run_is_not_rescued_by_a_shorter_prefix(fleet: Fleet) -> None:
    shorter, held = calls_of(BUILT_IN), Held("send-message-vip")
    watch = await fleet.pod(*shorter, name="one", unhandled_after_ms=UNHANDLED_AFTER_MS, forget_after_ms=500)
    dying = await fleet.pod(held, name="two")
    await knows(watch, "send-message-vip")
    await fleet.client.create("send-message-vip", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(dying)
    await fleet.expire_lease("x", "send-message-vip")
    timer = await fleet.reached(Status.UNHANDLED, "x", "send-message-vip")
    assert timer.history[1].processor == "send-message-vip"
    assert [len(each) for each in shorter] == [0, 0]


async def test_a_rescue_names_the_processor_too(fleet: Fleet) -> None:
    held, calls = Held("mail"), Calls("mail")
    dying = await fleet.pod(held, name="one")
    await fleet.client.create("mail-x", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(dying)
    await fleet.expire_lease("x", "mail-x")
    await fleet.pod(calls, name="two")
    timer = await fleet.completed("x", "mail-x")
    started = [entry for entry in timer.history if entry.status is Status.RUNNING]
    assert [(entry.cause == "rescue", entry.processor) for entry in started] == [(True, "mail"), (False, "mail")]


async def test_a_run_in_progress_continues_when_a_longer_prefix_is_declared(fleet: Fleet) -> None:
    held, longer = Held("send-message"), Calls("send-message-vip")
    one = await fleet.pod(held, name="one")
    for timer_id in ("first", "second"):
        await fleet.client.create("send-message-vip", timer_id, delay=0 if timer_id == "first" else "1h")
    await until(lambda: len(held) == 1, "it runs")
    await fleet.pod(longer, name="two")
    await knows(one, "send-message-vip")
    held.release.set()
    assert (await fleet.completed("first", "send-message-vip")).history[-2].processor == "send-message"
    await fleet.client.fire("send-message-vip", "second")
    assert (await fleet.completed("second", "send-message-vip")).history[1].processor == "send-message-vip"
    assert (held.ids, longer.ids) == (["first"], ["second"])


async def test_just_after_a_flush_a_shorter_prefix_ran_what_another_pod_had_not_declared_again(fleet: Fleet) -> None:
    shorter, longer = Calls("send-message"), Calls("send-message-vip")
    one = await fleet.pod(shorter, name="one", forget_after_ms=3_600_000)
    two = await fleet.pod(longer, name="two")
    await knows(one, "send-message-vip")
    await two.freeze()
    await fleet.redis.flushdb()

    async def declared() -> bool:
        return bool(await fleet.redis.hexists("timers:{pods}:declared", "send-message"))

    await eventually(declared, "the other pod has declared its prefix again")
    for prefix in ("send-message-vip", "send-message"):
        await fleet.client.create(prefix, "x", delay=0)
    await fleet.completed("x", "send-message")
    two.thaw()
    await fleet.completed("x", "send-message-vip")
    assert ran([shorter, longer]) == {"send-message": {"send-message"}, "send-message-vip": {"send-message-vip"}}


async def test_forget_gives_a_prefix_to_the_shorter_one(fleet: Fleet) -> None:
    shorter = Calls("send-message")
    one = await fleet.pod(shorter, name="one")
    two = await fleet.pod(Calls("send-message-vip"), name="two")
    await knows(one, "send-message-vip")
    with pytest.raises(Refused, match=r"'send-message-vip' is declared by the live pods two; stop them"):
        await fleet.client.forget("send-message-vip")
    await fleet.drain(two)
    await fleet.client.create("send-message-vip", "x", delay=0)
    assert [check.level for check in await examine(fleet.store) if check.name == "prefixes"] == ["fail"]
    await fleet.client.forget("send-message-vip")
    timer = await fleet.completed("x", "send-message-vip")
    assert (shorter.ids, timer.history[1].processor) == (["x"], "send-message")
    with pytest.raises(NotFound, match="no pod has declared the prefix 'send-message-vip'"):
        await fleet.client.forget("send-message-vip")


async def test_a_client_that_forgot_a_prefix_arms_nothing_more_under_it(fleet: Fleet) -> None:
    await fleet.drain(await fleet.pod(Calls("mail")))
    await fleet.client.create("mail", "x", delay="1h")
    await fleet.client.forget("mail")
    with pytest.raises(NoProcessor):
        await fleet.client.create("mail", "y", delay="1h")


async def test_a_bare_key_belongs_to_the_longest_prefix_too(fleet: Fleet) -> None:
    """If its pod is away, it is adopted, waits and becomes `unhandled`; if its pod is there, that pod runs it."""
    shorter, longer = Calls("send-message"), Calls("send-message-vip")
    one = await fleet.pod(shorter, name="one", adopt_every_ms=50, unhandled_after_ms=UNHANDLED_AFTER_MS)
    two = await fleet.pod(longer, name="two", adopt_every_ms=50)
    await knows(one, "send-message-vip")
    await until(lambda: two.seen.subscriptions, "the pod hears of expiries")
    await fleet.redis.set("send-message-vip:here", "1", px=1_000)
    await until(lambda: longer.ids == ["here"], "the bare key fires")
    await fleet.drain(two)
    await until(lambda: one.worker.peers.rank(0, adopting=True) == 0, "the other pod looks for bare keys")
    await fleet.redis.set("send-message-vip:away", "1", px=4_000)
    timer = await fleet.reached(Status.UNHANDLED, "away", "send-message-vip")
    assert (timer.payload, timer.attempt) == (1, 0)
    assert len(shorter) == 0


async def test_a_thousand_declared_prefixes(fleet: Fleet) -> None:
    """Two pods with 500 processors each, and one pod with the shortest prefix."""
    halves = [calls_of([f"kind-{n}" for n in range(first, first + 500)]) for first in (0, 500)]
    pods = [await fleet.pod(*calls, name=f"pod-{n}") for n, calls in enumerate(halves)]
    short = Calls("kind")
    shortest = await fleet.pod(short, name="short")
    for pod in (*pods, shortest):
        await knows(pod, "kind-999")
        await knows(pod, "kind-0")
    chosen = [*range(0, 1000, 53), 1000, 2000]
    await fleet.client.batch([NewTimer(prefix=f"kind-{n}-x", id="x", delay=0) for n in chosen])
    for n in chosen:
        timer = await fleet.completed("x", f"kind-{n}-x")
        assert timer.history[-2].processor == (f"kind-{n}" if n < 1000 else "kind")
    views = {view.prefix: view for view in await fleet.client.prefixes()}
    assert len(views) >= 1001
    assert views["kind-999"].pods == ["pod-1"]
    assert views["kind-53-x"].processor == "kind-53"


async def test_a_pod_whose_sign_cannot_be_read_stops_no_other(fleet: Fleet) -> None:
    calls, other = Calls(), Calls()
    await fleet.pod(calls, name="a")
    await fleet.pod(other, name="b")
    for part in ("cards", "states"):
        await fleet.redis.hset(f"timers:{{pods}}:{part}", "b", b"{nonsense")
    await fleet.redis.delete("timers:{pods}:version")
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{n}", delay=0.1) for n in range(20)])
    for n in range(20):
        await fleet.completed(f"n{n}")
    assert {member.pod for member in await fleet.client.pods()} == {"a", "b"}
    assert all(member.to_json() for member in await fleet.client.pods())


async def test_a_create_sends_one_call_in_the_steady_state(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads declarations once a second, not at every create."""
    declared, ran = Declared(fleet.store, fresh_seconds=3_600.0), list[str]()
    assert await declared.refusals(["note"]) == {}
    sent = count_sent(fleet.store, monkeypatch)
    for _ in range(20):
        assert await declared.refusals(["note"]) == {}
    assert sent == []
    await fleet.client.create("note", "first", delay="1h")
    fleet.store.called = lambda script, _seconds: ran.append(script)
    for n in range(20):
        await fleet.client.create("note", f"n{n}", delay="1h")
    assert ran == ["arm"] * 20
