"""The simulation's own Redis answers as a real one does."""

from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any, Final

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.conftest import SharedServers
from tests.simulation.data import Keys, Refused
from tests.simulation.lua import Lua
from timers.embedded import Family

FAR_MS: Final = b"4102444800000"

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
async def real(servers: SharedServers, family: Family) -> AsyncIterator[Ask]:
    """Asks a real server with an empty db: its answer, or the first word of its error."""
    redis = Redis.from_url((await servers.of(family)).url, db=7, protocol=2)
    await redis.flushdb()
    connection = await redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    async def ask(*command: bytes) -> Any:
        await connection.send_command(*command)
        try:
            return await connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return str(error)[:9]

    yield ask
    await redis.aclose()


def own() -> Keys:
    return Keys(lambda: 1_800_000_000_000_000, lambda _channel, _message: 0)


def said(reply: Any) -> Any:
    """A reply without what may differ: how an error goes on."""
    return str(reply)[:9].removeprefix("ERR ") if isinstance(reply, Refused) else reply


def command_of(rng: Random) -> tuple[bytes, ...]:
    """A command as the service gives it, on one of few keys, so that it often meets a value, also of another type."""
    key, name, other = rng.choice((b"k1", b"k2", b"k3", b"k4")), rng.choice((b"a", b"b", b"c")), b"d"
    number, low, high = (b"%d" % rng.randint(-3, 9) for _ in range(3))
    score = b"%d.5" % rng.randint(0, 9)
    commands = (
        *((b"GET", key), (b"SET", key, name), (b"SET", key, name, b"NX"), (b"SET", key, name, b"PXAT", FAR_MS)),
        *((b"GETDEL", key), (b"INCRBY", b"n", number), (b"EXISTS", key, b"k1"), (b"DEL", key), (b"PEXPIRETIME", key)),
        *((b"HSET", key, name, number, other, low), (b"HSETNX", key, name, number), (b"HGET", key, name)),
        *((b"HDEL", key, name), (b"HGETALL", key), (b"HKEYS", key), (b"HLEN", key), (b"HEXISTS", key, name)),
        *((b"HMGET", key, name, other), (b"HINCRBY", b"h", name, number), (b"HSCAN", key, b"0", b"COUNT", b"100")),
        *((b"SADD", key, name), (b"SREM", key, name), (b"SISMEMBER", key, name), (b"SMEMBERS", key)),
        *((b"ZADD", key, number, name, score, other), (b"ZADD", key, b"LT", number, name), (b"ZREM", key, name)),
        *((b"ZSCORE", key, name), (b"ZMSCORE", key, name, other), (b"ZCARD", key), (b"ZCOUNT", key, low, high)),
        *(
            (b"ZRANGE", key, low, high),
            (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"),
            (b"ZRANGE", key, b"0", b"1", b"REV"),
        ),
        *((b"ZRANGEBYSCORE", key, b"(" + low, b"+inf"), (b"ZRANGEBYSCORE", key, b"-inf", high, b"LIMIT", b"1", b"2")),
        *((b"ZREVRANGEBYSCORE", key, high, b"(" + low, b"WITHSCORES"), (b"ZREMRANGEBYSCORE", key, low, b"(" + high)),
        *((b"ZSCAN", key, b"0"), (b"XLEN", key), (b"RENAME", key, b"k4")),
    )
    return rng.choice(commands)


async def test_its_commands_answer_as_a_real_server_does(real: Ask) -> None:
    rng, keys = Random(1), own()
    for _ in range(1500):
        command = command_of(rng)
        if command[0] == b"RENAME" and not keys.run(b"EXISTS", command[1]):
            continue
        assert said(keys.run(*command)) == await real(*command), command


async def test_its_scripts_answer_as_a_real_server_does(real: Ask) -> None:
    keys, lua = own(), Lua()
    for code in (
        "return {1, 2.9, -1.5, 'x', true, false, {3, {}}, 'unseen'}",
        "return {1, nil, 3}",
        "return redis.call('SET', KEYS[1], ARGV[1])",
        "return redis.call('GET', KEYS[1]) == ARGV[1]",
        "return type(redis.call('GET', 'nothing'))",
        "return tostring(redis.call('HGET', 'nothing', 'x'))",
        "return redis.pcall('HGET', KEYS[1], 'x').err ~= nil",
        "return redis.call('HGET', KEYS[1], 'x')",
        "return redis.error_reply('NO reason')",
        "error({err = 'NO table'})",
        "return redis.call('ZADD', 'z', 1800000000000.25, 'a', 3, 'b')",
        "return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')",
        "return redis.call('ZSCORE', 'z', 'a')",
        "return redis.sha1hex('a')",
        "return struct.pack('>I4I8', 7, 1800000000000)",
        "return {struct.unpack('>I4I8', struct.pack('>I4I8', 7, 1800000000000))}",
        "return string.format('%d %.17g', 2^53, 0.1)",
    ):
        script, arguments = f"#!lua\n{code}".encode(), (b"key", b"value")
        mine = said(lua.run(keys, script, [arguments[0]], [arguments[1]]))
        theirs = await real(b"EVAL", script, b"1", *arguments)
        assert mine == theirs or str(mine)[:6] == str(theirs)[:6], code


async def test_a_key_is_announced_when_it_is_found_expired() -> None:
    now, heard = [0], list[tuple[bytes, bytes]]()

    def published(channel: bytes, message: bytes) -> int:
        heard.append((channel, message))
        return 1

    keys = Keys(lambda: now[0], published)
    keys.run(b"SET", b"k", b"v", b"PX", b"5")
    now[0] = 5_999
    assert keys.run(b"GET", b"k") == b"v"
    now[0] = 6_000
    assert not heard
    assert keys.run(b"GET", b"k") is None
    assert heard == [(b"__keyevent@0__:expired", b"k")]
