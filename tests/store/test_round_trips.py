"""A batch of many scripts is one round trip, and keeps its order even if the server has forgotten scripts."""

from collections.abc import Awaitable
from typing import Any

import pytest

from tests.conftest import SharedServers
from tests.store.acts import PREFIX, an_end, arming, claim, put, settle
from tests.store.backends import Backend, open_store
from timers.store.servers.connections import _RedisProtocol
from timers.store.store import ARM_LIMIT, Store

MANY = 4 * ARM_LIMIT


def count_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what the store's pool sends from now on, one entry per send."""
    kind = store.connections.commands.connection_pool.connection_class
    send, sent = kind.send_packed_command, list[str]()

    async def count(connection: Any, command: Any, check_health: bool = True) -> None:
        sent.append(type(command).__name__)
        await send(connection, command, check_health)

    monkeypatch.setattr(kind, "send_packed_command", count)
    return sent


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes over the connection of scripts from now on: the commands sent, and `answer` for what comes."""
    ask, received, heard = _RedisProtocol.ask, _RedisProtocol.data_received, list[str]()

    def note_ask(wire: _RedisProtocol, command: tuple[str, ...]) -> Awaitable[Any]:
        heard.append(command[0])
        return ask(wire, command)

    def note_answer(wire: _RedisProtocol, data: bytes) -> None:
        heard.append("answer")
        received(wire, data)

    monkeypatch.setattr(_RedisProtocol, "ask", note_ask)
    monkeypatch.setattr(_RedisProtocol, "data_received", note_answer)
    return heard


async def test_a_thousand_timers_are_armed_in_one_round_trip(real: Store, heard: list[str]) -> None:
    await put(real, "first")
    heard.clear()
    answers = await real.arm([arming(f"user-{i}") for i in range(MANY)])
    assert heard.index("answer") == heard.count("EVALSHA") == MANY / ARM_LIMIT
    assert [(answer.code, answer.timer.id) for answer in answers if answer.timer] == [
        ("created", f"user-{i}") for i in range(MANY)
    ]


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_server_that_knows_no_script_arms_them_in_their_order(
    servers: SharedServers, backend: Backend, shards: int
) -> None:
    async with open_store(servers, backend, shards=shards) as store:
        await store.connections.commands.script_flush()
        twice = [arming("same", spec={"payload": n}) for n in range(2)]
        others = [arming(f"user-{i}") for i in range(2 * ARM_LIMIT)]
        answers = await store.arm([twice[0], *others, twice[1]])
        assert [answer.code for answer in answers] == ["created"] * (len(others) + 1) + ["exists"]
        assert answers[-1].timer == answers[0].timer
        (found,) = await store.get([(PREFIX, "same")])
        assert found is not None
        assert found.payload == 0


async def test_large_records_take_more_calls_but_no_more_round_trips(real: Store, heard: list[str]) -> None:
    """A hundred payloads of 64 KiB in one script would hold the server up for long."""
    await put(real, "first", due="+3600000")
    heard.clear()
    answers = await real.arm([arming(f"user-{i}", spec={"payload": "x" * 60_000}) for i in range(40)])
    assert [answer.code for answer in answers] == ["created"] * 40
    assert heard.index("answer") == heard.count("EVALSHA") == 3
    claimed = [timer for _ in range(2) for timer in await claim(real)]
    assert {timer.id for timer in claimed} == {f"user-{i}" for i in range(40)}
    heard.clear()
    assert await settle(real, *map(an_end, claimed)) == ["settled"] * 40
    assert heard.index("answer") == heard.count("EVALSHA") == 3


async def test_nothing_to_arm_asks_nobody(real: Store, heard: list[str]) -> None:
    assert await real.arm([]) == []
    assert heard == []
