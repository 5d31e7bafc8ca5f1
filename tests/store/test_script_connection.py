"""The connection that callers share: it reconnects by itself, and each answer reaches its own command only."""

import asyncio
import gc
from contextlib import suppress
from dataclasses import replace

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError

from tests.chaos.proxy import Proxy
from tests.conftest import SharedServers
from tests.servers import Kind, free_port
from tests.store.acts import arming, put
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.servers.connections import NotSent, ScriptConnection, Scripts, _RedisProtocol
from timers.store.store import Store

pytestmark = pytest.mark.one_server

ECHO = "return ARGV[1]"


@pytest.fixture
async def connection(real: Store) -> ScriptConnection:
    assert isinstance(real.connections.scripts, ScriptConnection)
    return real.connections.scripts


@pytest.fixture
async def redis(real: Store) -> Redis:
    return real.connections.commands


async def echoed(connection: Scripts, word: str) -> str:
    answer: bytes = await connection.execute_command("EVAL", ECHO, 0, word)
    return answer.decode()


async def clients(redis: Redis) -> set[str]:
    return {client["id"] for client in await redis.client_list()}


async def test_commands_share_one_connection(redis: Redis, connection: ScriptConnection) -> None:
    before = await clients(redis)
    assert [await echoed(connection, word) for word in "abc"] == ["a", "b", "c"]
    assert len(await clients(redis) - before) == 1


async def test_commands_sent_together_are_answered_in_their_order(redis: Redis, connection: ScriptConnection) -> None:
    before = await clients(redis)
    words = [str(number) for number in range(100)]
    assert await asyncio.gather(*(echoed(connection, word) for word in words)) == words
    assert len(await clients(redis) - before) == 1


async def test_a_command_that_is_given_up_leaves_those_sent_with_it_alone(
    redis: Redis, connection: ScriptConnection
) -> None:
    await echoed(connection, "a")
    before = await clients(redis)
    await redis.client_pause(60_000, all=False)
    try:
        sent = [asyncio.create_task(echoed(connection, word)) for word in "bc"]
        await asyncio.sleep(0)  # both are sent
        sent[0].cancel()
        assert isinstance((await asyncio.gather(sent[0], return_exceptions=True))[0], asyncio.CancelledError)
    finally:
        await redis.client_unpause()
    assert await asyncio.gather(sent[1], *(echoed(connection, word) for word in "de")) == ["c", "d", "e"]
    assert await clients(redis) == before


async def test_a_server_that_does_not_let_in_fails_all_who_wait(redis: Redis, connection: ScriptConnection) -> None:
    """They share one attempt: one after the other would take as many times as long."""
    await redis.config_set("maxclients", 1)
    try:
        lost = await asyncio.gather(*(echoed(connection, word) for word in "abc"), return_exceptions=True)
        assert [type(error) for error in lost] == [NotSent] * 3
        assert len(set(map(id, lost))) == 1
    finally:
        await redis.config_set("maxclients", 10_000)
    assert await echoed(connection, "d") == "d"


@pytest.mark.parametrize(
    ("timers", "payload"), [(1, ""), (2, ""), (1, "p" * 20_000)], ids=["short", "many words", "a long word"]
)
async def test_a_server_that_came_to_want_a_password_is_away_and_has_done_nothing(
    real: Store, redis: Redis, connection: ScriptConnection, timers: int, payload: str
) -> None:
    """It refuses commands of more than ten words, or with a word of more than 16 KiB, before it reads them, and in
    other words."""
    await put(real, "before")
    await redis.config_set("requirepass", "secret")  # who is connected already goes on
    try:
        await connection.aclose()
        with pytest.raises(Unavailable, match=r"Redis is not available: Authentication required\.") as refused:
            await real.arm([arming(str(n), spec={"payload": payload}) for n in range(timers)])
        assert refused.value.nothing_done
    finally:
        await redis.config_set("requirepass", "")
    assert (await put(real, "0")).code == "created"


async def test_a_server_that_has_no_such_db_is_away(servers: SharedServers) -> None:
    """It may have been started with fewer. A pod gives up nothing that it has to write, and waits."""
    async with Proxy((await servers.of("redis")).url) as proxy:  # over TCP, redis-py says it as the server does
        connections = connect(f"{proxy.url.partition('?')[0]}?db=99")
        with pytest.raises(Unavailable, match="Redis is not available: DB index is out of range") as refused:
            await Store(connections).touch(0)
        assert refused.value.nothing_done
        await connections.close()


async def test_an_attempt_that_all_have_given_up_fails_without_a_word() -> None:
    """Whoever is cancelled while the connection opens, as a request is whose client has gone, no longer asks."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, said: complaints.append(said["message"]))
    connection = ScriptConnection(connect(f"redis://127.0.0.1:{free_port()}").dial(), answer_s=5.0)
    asked = asyncio.create_task(echoed(connection, "a"))
    await asyncio.sleep(0)  # it opens
    opening = connection._opening
    assert opening is not None
    asked.cancel()
    await asyncio.wait({asked, opening})
    del opening
    connection._opening = None
    gc.collect()
    assert complaints == []


async def test_who_waits_for_a_connection_that_is_closed_is_not_cancelled() -> None:
    """As to a node that a cluster no longer names. A service that waited ended as if it had cancelled itself."""
    came = asyncio.Semaphore(0)

    async def keep_waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.release()
        await reader.read()
        writer.close()
        came.release()

    silent = await asyncio.start_server(keep_waiting, "127.0.0.1", 0)
    node = connect(f"redis://timers:secret@127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    asked = asyncio.create_task(echoed(node.scripts, "a"))
    written = asyncio.create_task(node.durable("replicated")([("EVAL", ECHO, 0, "a")]))
    for _ in range(2):
        await came.acquire()
    await asyncio.gather(node.close(), node.close())  # as by each refresh that does not find it
    for waiting in (asked, written):
        with pytest.raises(ConnectionError):
            await waiting
    for _ in range(2):
        await came.acquire()
    silent.close()


async def test_an_error_is_an_answer_and_stops_nothing(redis: Redis, connection: ScriptConnection) -> None:
    await echoed(connection, "a")
    before = await clients(redis)
    with pytest.raises(ResponseError, match="on purpose"):
        await connection.execute_command("EVAL", "return redis.error_reply('ERR on purpose')", 0)
    assert await echoed(connection, "b") == "b"
    assert await clients(redis) == before


async def test_a_server_that_hung_up_meanwhile_is_called_again(redis: Redis, connection: ScriptConnection) -> None:
    await echoed(connection, "a")
    # As a server does with connections that were idle for long.
    await redis.client_kill_filter(skipme=True, _type="normal")

    async def heard() -> bool:
        return connection._wire is not None and connection._wire.has_ended()

    await eventually(heard, "the end has arrived here")
    assert await echoed(connection, "b") == "b"


async def test_a_server_that_hangs_up_as_it_is_reached_has_done_nothing(
    real: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares an attempt to connect has a turn only after it: the connection may have ended by then."""
    await real.arm([arming("first")])
    connection = ScriptConnection(real.connections.dial(), answer_s=5.0)
    opens = connection._open

    async def opened_in_vain() -> _RedisProtocol:
        wire, gone = await opens(), asyncio.Event()
        monkeypatch.setattr(wire, "connection_lost", lambda _error: gone.set())
        wire._transport.abort()
        await gone.wait()
        return wire

    monkeypatch.setattr(connection, "_open", opened_in_vain)
    monkeypatch.setattr(real, "connections", replace(real.connections, scripts=connection))
    with pytest.raises(Unavailable) as refused:
        await real.arm([arming("second")])
    await connection.aclose()
    assert refused.value.nothing_done


async def test_an_answer_in_many_parts_arrives_whole(connection: ScriptConnection) -> None:
    assert await echoed(connection, long := "x" * 3_000_000) == long


async def test_an_answer_that_nobody_asked_for_is_nobodys(redis: Redis, connection: ScriptConnection) -> None:
    await echoed(connection, "a")
    before = await clients(redis)
    assert connection._wire is not None
    connection._wire.data_received(b"+stray\r\n")
    assert await echoed(connection, "b") == "b"
    assert await clients(redis) != before


async def test_a_cancelled_call_leaves_no_answer_behind(redis: Redis, connection: ScriptConnection) -> None:
    """The late answer is never taken for the answer to the next command."""
    await echoed(connection, "a")
    await redis.client_pause(60_000, all=False)  # scripts wait, as all writes do
    try:
        given_up = asyncio.create_task(echoed(connection, "given up"))

        async def waits() -> bool:
            return any("b" in client["flags"] for client in await redis.client_list())

        await eventually(waits, "the script is with the server")
        given_up.cancel()
        assert isinstance((await asyncio.gather(given_up, return_exceptions=True))[0], asyncio.CancelledError)
    finally:
        await redis.client_unpause()
    assert await echoed(connection, "next") == "next"


async def test_a_slow_call_is_unavailable_and_the_next_is_not(
    real: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.arm([arming("first")])
    connection = ScriptConnection(real.connections.dial(), answer_s=0.05)
    monkeypatch.setattr(real, "connections", replace(real.connections, scripts=connection))
    await redis.client_pause(60_000, all=False)
    try:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await real.arm([arming("slow")])
    finally:
        await redis.client_unpause()

    async def answers() -> bool:
        with suppress(TimeoutError):  # 50 ms may be too short
            return await echoed(connection, "next") == "next"
        return False

    await eventually(answers, "the next is answered")
    await connection.aclose()


async def test_a_late_answer_ends_the_connection_also_if_nobody_waits_for_it(real: Store, redis: Redis) -> None:
    """Callers with less patience than the connection would meet the same dead one again and again."""
    connection = ScriptConnection(real.connections.dial(), answer_s=1.0)
    await echoed(connection, "a")
    wire = connection._wire
    assert wire is not None
    await redis.client_pause(60_000, all=False)
    try:
        asked = asyncio.create_task(echoed(connection, "b"))
        await asyncio.sleep(0)  # it is sent
        asked.cancel()

        async def ended() -> bool:
            return wire.has_ended()

        await eventually(ended, "the connection has ended")
    finally:
        await redis.client_unpause()
    assert await echoed(connection, "c") == "c"
    await connection.aclose()


async def test_a_server_without_the_script_is_given_it(real: Store, redis: Redis) -> None:
    await redis.script_flush()
    assert [(await real.arm([arming(name)]))[0].code for name in ("a", "b")] == ["created", "created"]


async def test_a_lost_answer_is_unavailable_and_the_create_is_done(servers: SharedServers, kind: Kind) -> None:
    async with Proxy((await servers.of(kind)).url) as proxy:
        connections = connect(proxy.url)
        store = Store(connections)
        await connections.commands.flushdb()
        await store.arm([arming("first")])
        losing = proxy.lose_reply("arm", patience_s=DEADLINE_SECONDS)
        with pytest.raises(Unavailable):
            await store.arm([arming("second")])
        assert await losing
        (again,) = await store.arm([arming("second", if_exists="keep")])
        assert again.code == "kept"
        await connections.close()


async def test_lines_are_closed_with_the_other_connections(real: Store, servers: SharedServers, kind: Kind) -> None:
    redis = real.connections.commands
    others = connect((await servers.of(kind)).url)
    before = await clients(redis)
    await echoed(others.scripts, "a")
    assert len(await clients(redis) - before) == 1
    await others.close()

    async def gone() -> bool:
        return not await clients(redis) - before

    await eventually(gone, "the connection is closed")
