"""`redis+sentinel://`: every connection goes to the primary, and leaves it as soon as another server is to be it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from tests.clusters import Node
from tests.sentinels import Sentinels
from tests.store.acts import armed, arming
from tests.waiting import DEADLINE_SECONDS, eventually, patient
from timers.client import open_store
from timers.errors import Unavailable
from timers.store.notifications import listen, parts
from timers.store.servers import connect
from timers.store.servers.sentinel import Said, primary_of
from timers.store.store import Store

LATER = "+86400000"
SET = "return redis.call('SET', KEYS[1], 1)"

pytestmark = pytest.mark.every_server


@pytest.fixture
async def store(sentinels: Sentinels) -> AsyncIterator[Store]:
    """A store behind Sentinels. Its calls wait as long as a test may take."""
    connections = connect(patient(sentinels.url), answer_timeout_seconds=DEADLINE_SECONDS)
    store = await open_store(connections)
    await store.identity.make()
    yield store
    await connections.close()


async def on(node: Node, timer_id: str) -> bool:
    """Whether a server has a timer."""
    return f"reminder:{{0}}:{timer_id}" in await node.ask("KEYS", "reminder:*")


async def asked_of(store: Store) -> int:
    """The port of the server that answers commands."""
    given: Any = await store.connections.commands.config_get("port")
    return int(given["port"])


class Arms:
    """Arms one timer after another and keeps those that were acknowledged."""

    def __init__(self, store: Store) -> None:
        self.acknowledged: list[str] = []
        self.failures = 0
        self._store = store
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in range(1_000_000):
            try:
                await self._store.arm([arming(str(number), due=LATER)])
                self.acknowledged.append(str(number))
            except Unavailable:
                self.failures += 1
            await asyncio.sleep(0.001)

    async def more(self) -> None:
        """Returns when a timer was armed from now on: the second that is acknowledged, since the first answer may have
        been on its way."""
        before = len(self.acknowledged)

        async def grew() -> bool:
            return len(self.acknowledged) > before + 1

        await eventually(grew, "another timer is armed")

    async def lost(self) -> list[str]:
        """End, and tell which timers were acknowledged but are not there."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        found = [await self._store.get([("reminder", timer_id)]) for timer_id in self.acknowledged]
        return [timer_id for timer_id, (timer,) in zip(self.acknowledged, found, strict=True) if timer is None]


async def test_a_planned_failover_loses_nothing_that_was_acknowledged(sentinels: Sentinels, store: Store) -> None:
    arms = Arms(store)
    await arms.more()
    successor = await sentinels.fail_over()
    await arms.more()
    assert await asked_of(store) == successor.port
    assert await arms.lost() == []


async def test_each_connection_leaves_the_old_primary_at_once(sentinels: Sentinels, store: Store) -> None:
    """The old one would serve them for ten seconds more, silently."""
    subscribed = asyncio.Event()
    listening = asyncio.create_task(listen(parts(store.connections, store.shards)[0], lambda *_: subscribed.set()))
    await subscribed.wait()
    scripts, reader = store.connections.dial_scripts(DEADLINE_SECONDS), store.connections.dial()
    connecting: Awaitable[None] = reader.connect()  # type: ignore[no-untyped-call]
    await connecting
    await scripts.execute_command("EVAL", SET, 1, "before")
    successor = await sentinels.fail_over()
    with pytest.raises(Unavailable):
        await listening
    with pytest.raises(ConnectionError):
        await reader.read_response()
    await scripts.execute_command("EVAL", SET, 1, "after")
    assert await successor.ask("GET", "after")
    await armed(store, "b", due=LATER)
    assert await on(successor, "b")
    await scripts.aclose()


async def test_a_killed_primary_is_replaced_and_comes_back_as_a_replica(sentinels: Sentinels, store: Store) -> None:
    arms, killed = Arms(store), await sentinels.primary()
    await arms.more()
    killed.down()
    await arms.more()
    assert await asked_of(store) != killed.port
    assert arms.failures
    await sentinels.heal()
    # On a machine without CPU time the Sentinels may have left the successor too, for the only other server.
    is_chosen_again = (await sentinels.primary()).port == killed.port
    assert await killed.is_replica() != is_chosen_again
    await arms.more()
    await arms.lost()


async def test_calls_of_a_paused_primary_end_with_its_rule(sentinels: Sentinels, store: Store) -> None:
    """Its calls would hang for their whole time limit. When it goes on it still takes itself for the primary."""
    paused = await sentinels.primary()
    paused.hang()
    with pytest.raises(Unavailable):
        await armed(store, "a", due=LATER)
    await armed(store, "b", due=LATER)
    paused.go_on()
    assert (await paused.ask("ROLE"))[0] == "master"
    assert await asked_of(store) != paused.port
    assert not await on(paused, "b")


async def test_without_any_sentinel_the_last_primary_stays_it(sentinels: Sentinels, store: Store) -> None:
    for sentinel in sentinels.sentinels:
        sentinel.down()
    await store.connections.scripts.aclose()
    await armed(store, "a", due=LATER)


async def test_one_sentinel_that_answers_is_enough(sentinels: Sentinels) -> None:
    sentinels.sentinels[0].down()
    sentinels.sentinels[1].hang()
    connections = connect(patient(sentinels.url))
    await connections.commands.ping()
    await connections.close()


def test_the_newest_configuration_counts() -> None:
    old, new = ("one", 6379), ("two", 6379)
    assert primary_of([Said(4, old), Said(5, new), Said(4, None)]) == new
    assert primary_of([Said(4, old), Said(4, None), Said(4, old)]) is None
    assert primary_of([Said(4, old)]) == old
