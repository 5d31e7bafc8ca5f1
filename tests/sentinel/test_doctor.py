"""The doctor behind Sentinels: who decides, who can take over, and what that one would announce."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.sentinels import Sentinels
from tests.waiting import eventually, patient
from timers.client import open_store
from timers.doctor.checks import Check
from timers.doctor.examining import examine, unreachable
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.store import Store

FLAGS = "notify-keyspace-events"


@pytest.fixture
async def store(sentinels: Sentinels) -> AsyncIterator[Store]:
    """A store behind Sentinels."""
    connections = connect(patient(sentinels.url))
    yield await open_store(connections)
    await connections.close()


async def finding(store: Store, name: str, **how: Any) -> Check:
    """What the doctor says of this."""
    return next(check for check in await examine(store, **how) if check.name == name)


async def test_all_sentinels_and_who_is_primary_are_named(sentinels: Sentinels, store: Store) -> None:
    primary = await sentinels.primary()
    found = await finding(store, "sentinels")
    assert (found.level, found.said) == (
        "ok",
        f"3 of 3 Sentinels answer, quorum 2; 'timers' has the primary {primary.name}",
    )


async def test_a_sentinel_that_is_away_is_named_and_a_lost_majority_fails(sentinels: Sentinels, store: Store) -> None:
    first, second, _ = sentinels.sentinels
    first.down()
    found = await finding(store, "sentinels")
    assert (found.level, first.name in found.said) == ("warn", True)
    second.down()
    found = await finding(store, "sentinels")
    assert (found.level, found.said.partition(",")[0]) == ("fail", "1 of 3 Sentinels answer")


async def test_a_sentinel_that_refuses_the_password_is_told_from_one_that_is_away(
    sentinels: Sentinels, store: Store
) -> None:
    refusing, away, _ = sentinels.sentinels
    await refusing.ask("ACL", "SETUSER", "default", "-sentinel")
    away.down()
    found = await finding(store, "sentinels")
    await refusing.ask("ACL", "SETUSER", "default", "+sentinel")
    names = found.said.partition("without an answer: ")[2].split(", ")
    assert names[0].startswith(f"{refusing.name} (")
    assert "permission" in names[0]
    assert names[1:] == [away.name]


async def test_a_primary_that_is_away_beside_a_lost_majority_is_told_with_it(
    sentinels: Sentinels, store: Store
) -> None:
    primary = await sentinels.primary()
    for sentinel in sentinels.sentinels[:2]:
        sentinel.down()
    primary.down()
    with pytest.raises(Unavailable) as refused:
        await examine(store)
    server, decide, *_ = await unreachable(store, refused.value)
    assert (server.name, decide.name) == ("server", "sentinels")
    assert (server.level, decide.level) == ("fail", "fail")
    assert decide.said.startswith("1 of 3 Sentinels answer")


async def test_a_primary_that_may_be_cut_off_is_warned_of(sentinels: Sentinels, store: Store) -> None:
    found = await finding(store, "failover")
    assert (found.level, found.said) == ("warn", "min-replicas-to-write is 0")
    primary = await sentinels.primary()
    await primary.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    found = await finding(store, "failover")
    await primary.ask("CONFIG", "SET", "min-replicas-to-write", 0)
    replicas = {node.name for node in sentinels.nodes if node is not primary}
    assert found.level == "ok"
    assert set(found.said.removeprefix("these can take over: ").split(", ")) == replicas


async def test_replicas_that_the_primary_refuses_cannot_take_over(sentinels: Sentinels, store: Store) -> None:
    """As after a failover with another `masterauth`: all were up, and the doctor named them as successors."""
    primary = await sentinels.primary()
    replicas = [node for node in sentinels.nodes if node is not primary]
    for node in replicas:
        await node.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong")
    await primary.ask("CLIENT", "KILL", "TYPE", "replica")

    async def none_follows() -> Check | None:
        found = await finding(store, "failover")
        return found if found.level == "fail" else None

    try:
        found = await eventually(none_follows, "the doctor sees it")
    finally:
        for node in replicas:
            await node.ask("CONFIG", "SET", "masteruser", "", "masterauth", "")
    assert found is not None
    assert found.said.startswith("no replica can take over; replicas are away: ")
    assert all(f"{node.name} (it does not follow the primary)" in found.said for node in replicas)


async def test_flags_that_a_replica_lacks_are_named_and_set(sentinels: Sentinels, store: Store) -> None:
    primary = await sentinels.primary()
    replica = next(node for node in sentinels.nodes if node is not primary)
    await replica.ask("CONFIG", "SET", FLAGS, "")
    found = await finding(store, "replicas' flags")
    assert (found.level, found.said) == ("warn", f"{replica.name} lacks 'Ex'")
    assert (await finding(store, "replicas' flags", fix=True)).level == "ok"
    assert (await replica.ask("CONFIG", "GET", FLAGS))[1]


async def test_a_replica_that_would_refuse_the_user_is_named(sentinels: Sentinels, store: Store) -> None:
    assert (await finding(store, "replicas' rights")).level == "ok"
    primary = await sentinels.primary()
    first, second = sorted((node for node in sentinels.nodes if node is not primary), key=lambda node: node.name)
    await first.ask("ACL", "SETUSER", "default", "-zadd")
    await second.ask("ACL", "SETUSER", "other", "on", ">rotated", "~*", "&*", "+@all")
    await primary.ask("ACL", "SETUSER", "other", "on", ">old", "~*", "&*", "+@all")
    connections = connect(patient(sentinels.url.replace("://", "://other:old@")))
    try:
        lacking = await finding(store, "replicas' rights")
        refusing = await finding(await open_store(connections), "replicas' rights")
    finally:
        await connections.close()
        await first.ask("ACL", "SETUSER", "default", "+@all")
    assert (lacking.level, refusing.level) == ("warn", "warn")
    assert lacking.said == f"{first.name}: the Redis user lacks permission for: zadd timers:x"
    for node in (first, second):
        assert f"{node.name}: Redis is not available: invalid username-password pair" in refusing.said
