"""Notifications from real servers: what is announced, how a subscription breaks, and what nobody can fake."""

import asyncio

import pytest

from tests.store.acts import PREFIX, armed, arming, claim, key_gone, lease_key, running, trigger_key
from tests.store.listening import SUBSCRIBED, Heard, listening
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.errors import Unavailable
from timers.store import notifications
from timers.store.notifications import (
    listen,
    parse_expired,
    parts,
    queue_of,
    subscribe,
)
from timers.store.servers import connect
from timers.store.store import Store

pytestmark = pytest.mark.one_server


async def touched(store: Store, key: str) -> None:
    """Touch a due key until it is gone, as the sweeper does."""

    async def gone() -> bool:
        await store.touch(0)
        return not await store.connections.commands.exists(key)

    await eventually(gone, f"the end of {key}")


async def test_a_due_timer_is_announced_when_it_is_touched(real: Store) -> None:
    async with listening(real.connections) as (heard, _):
        timer = await armed(real, "user:42", due="+20")
        await touched(real, trigger_key(timer))
        await heard.expect(("wake", 0, timer.due_ms), ("triggers", 0, PREFIX, [b"user:42"]))
    await claim(real)


async def test_an_expired_lease_is_announced(real: Store) -> None:
    async with listening(real.connections) as (heard, _):
        timer = await running(real, lease_ms=5)
        await touched(real, lease_key(timer))
        await heard.expect(("lease", 0, PREFIX, "a"))
    await real.rescue(0, [(PREFIX, "a")], pod="pod-2", lease_ms=30_000)


async def test_a_bare_key_is_announced(real: Store) -> None:
    redis = real.connections.commands
    async with listening(real.connections) as (heard, _):
        await redis.set("reminder:a:b", "payload", px=1)
        await key_gone(real, "reminder:a:b")
        await heard.expect(("bare", "reminder", "a:b"))


async def test_a_canary_is_heard(real: Store) -> None:
    redis = real.connections.commands
    async with listening(real.connections) as (heard, _):
        key = await notifications.set_canary(redis, "{0}pod-1", 1)
        while await notifications.touch_canary(redis, key):
            pass
        await heard.expect(("canary", "{0}pod-1", int(key.rpartition(":")[2])))


async def test_taking_extending_and_giving_up_a_lease_or_trigger_announces_nothing(real: Store) -> None:
    """Otherwise every lease of every pod would be taken for a timer."""
    async with listening(real.connections) as (heard, _):
        timer = await running(real)
        await real.extend(0, [timer], pod="pod-1", lease_ms=1000)
        await armed(real, "b", due="+3600000")
        await real.reschedule(PREFIX, "b", due="+7200000")
        await real.cancel(PREFIX, "b", purge=True)
        await real.connections.commands.publish("timers:wake:0", "{9} 9")
        await heard.expect(("wake", 9, 9))
        # The running timer's trigger was due: it may have expired before the claim.
        expected = (SUBSCRIBED, ("wake", 0, timer.due_ms), ("triggers", 0, PREFIX, [b"a"]), ("wake", 9, 9))
        assert [one for one in heard.all if one not in expected] == []


async def test_a_killed_subscription_ends_in_unavailable_and_the_next_reports_a_gap(real: Store) -> None:
    for _ in range(3):
        async with listening(real.connections) as (heard, stream):
            await real.connections.commands.client_kill_filter(_type="pubsub")
            with pytest.raises(Unavailable):
                await stream
            assert heard.all == [SUBSCRIBED]


async def test_a_server_that_is_away_ends_in_unavailable(tmp_path_factory: pytest.TempPathFactory) -> None:
    nobody = tmp_path_factory.mktemp("nobody") / "server.sock"
    with pytest.raises(Unavailable):
        await listen(parts(connect(f"unix://{nobody}"), 1)[0], Heard())


async def test_a_subscriber_is_gone_when_it_is_cancelled(real: Store) -> None:
    async with listening(real.connections):
        pass

    async def nobody_listens() -> bool:
        return await real.connections.commands.publish("timers:wake:0", "{0} 1") == 0

    await eventually(nobody_listens, "the end of the subscription")


async def test_forged_and_malformed_messages_are_ignored(real: Store) -> None:
    redis = real.connections.commands
    async with listening(real.connections) as (heard, _):
        for data in (b"", b"{0}", b"{0} x", b"{-1} 5", b"{0} 5 ", b"\xff\x00", b"{0} 1.5", b"0 5"):
            await redis.publish("timers:wake:0", data)
        for key in (
            b"",
            b"\xff",
            b"no-colon",
            b"UPPER:a",
            b"timers:a",
            b"a:",
            b":a",
            b"a:{x}:b",
            b"a:b c",
            b"a" * 65 + b":b",
        ):
            await redis.publish("__keyevent@0__:expired", key)
        await redis.publish("timers:wake:1", "{0} 1")
        await redis.publish("__keyevent@1__:expired", "reminder:{0}:a")
        await redis.publish("timers:wake:0", "{3} 7")
        await heard.expect(("wake", 3, 7))
        assert heard.all == [SUBSCRIBED, ("wake", 3, 7)]


async def test_a_forged_event_claims_nothing_that_is_not_due(real: Store) -> None:
    timer = await armed(real, due="+3600000")
    async with listening(real.connections) as (heard, _):
        await real.connections.commands.publish("__keyevent@0__:expired", trigger_key(timer))
        await heard.expect(("triggers", 0, PREFIX, [b"a"]))
    assert await claim(real) == []


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        (b"timers:{5}:lease:reminder:a:b", ("lease", 5, "reminder", "a:b")),
        (b"timers:canary:pod-1:7:1795000000000", ("canary", "pod-1:7", 1_795_000_000_000)),
        (b"timers:canary:pod-1:x", ("canary", "pod-1", 0)),
        (b"reminder:a", ("bare", "reminder", "a")),
        (b"timers:{5}:lease:reminder", None),
        (b"timers:{" + b"9" * 5000 + b"}:lease:reminder:a", None),
        (b"timers:{5}:bare:reminder:a", None),
        (b"timers:{5}:due:reminder", None),
        (b"timers:{5}:a", None),
        (b"timers:rate:reminder", None),
        (b"session.{0}", None),
        (b"reminder:a\n", None),
    ],
)
def test_the_name_of_an_expired_key_is_parsed(key: bytes, meaning: object) -> None:
    assert parse_expired(key) == meaning


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        (b"reminder:{0", (0, "reminder")),
        (b"a.b-c_d:{63", (63, "a.b-c_d")),
        (b"timers:{5", None),
        (b"timers.hook-1:{5", (5, "timers.hook-1")),
        (b"a:{x", None),
        (b"a:{", None),
        (b"A:{0", None),
        (b"a:b:{0", None),
        (b"a" * 65 + b":{0", None),
        (b"a:{" + b"9" * 5000, None),
        (b"\xff:{0", None),
    ],
)
def test_the_queue_of_a_trigger_key_is_parsed(name: bytes, queue: object) -> None:
    assert queue_of(name) == queue


@pytest.mark.parametrize("words", [b"{0} " + b"9" * 5000, b"{%s} 1" % (b"9" * 5000), b"{%s} outbox" % (b"9" * 5000)])
async def test_a_forged_wake_up_of_thousands_of_digits_broke_the_subscription(real: Store, words: bytes) -> None:
    async with listening(real.connections) as (heard, _):
        await real.connections.commands.publish(real.connections.wake, words)
        await real.connections.commands.publish(real.connections.wake, b"{0} 7")
        await heard.expect(("wake", 0, 7))


async def test_triggers_that_expire_together_are_reported_together(real: Store) -> None:
    async with listening(real.connections) as (heard, _):
        await real.arm([arming(str(n), due="+1") for n in range(50)])
        for n in range(50):
            await touched(real, f"{PREFIX}:{{0}}:{n}")
        await real.connections.commands.publish("timers:wake:0", "{9} 9")
        await heard.expect(("wake", 9, 9))
        together = [said[-1] for said in heard.all if said[0] == "triggers"]
    assert sorted(int(timer_id) for ids in together for timer_id in ids) == list(range(50))
    assert len(together) < 10


async def test_a_silent_connection_is_asked_for_a_sign_of_life(real: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.store.notifications.SILENCE_SECONDS", 1.0)
    heard: list[bytes | None] = []
    quiet = subscribe(real.connections, [b"quiet"], lambda _, data: heard.append(data))
    stream = asyncio.create_task(quiet)
    await pinged_again(real, 2)
    assert not stream.done()
    assert heard == [None]
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def pinged_again(store: Store, times: int) -> None:
    """Wait until the server has answered this many more PINGs."""
    before = await pings(store)

    async def enough() -> bool:
        return await pings(store) >= before + times

    await eventually(enough, f"{times} pings")


async def pings(store: Store) -> int:
    stats = await store.connections.commands.info("commandstats")
    return int(stats.get("cmdstat_ping", {"calls": 0})["calls"])


async def test_a_connection_without_a_sign_of_life_ends(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-open connection: what is sent gets lost and nothing comes back."""
    monkeypatch.setattr("timers.store.notifications.SILENCE_SECONDS", 1.0)
    path = tmp_path_factory.mktemp("hole") / "s"

    async def black_hole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while command := await reader.read(4096):
            if b"SUBSCRIBE" not in command:
                for _ in range(command.count(b"*")):
                    writer.write(b"+OK\r\n")
                continue
            writer.write(b"*3\r\n$9\r\nsubscribe\r\n$5\r\nquiet\r\n:1\r\n")
            break
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_unix_server(black_hole, path):
        connections = connect(f"unix://{path}")
        heard: list[bytes | None] = []
        with pytest.raises(Unavailable, match="does not answer"):
            await subscribe(connections, [b"quiet"], lambda _, data: heard.append(data))
        assert heard == [None]
        await connections.close()
        await over.wait()


async def test_a_connection_that_never_opens_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever accepted it, such as a load balancer, says nothing."""
    path = tmp_path_factory.mktemp("hole") / "s"

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_unix_server(swallow, path):
        connections = connect(f"unix://{path}", answer_timeout_seconds=0.1)
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(Unavailable):
                await subscribe(connections, [b"quiet"], lambda *_: None)
        await connections.close()
        await over.wait()
