"""The doctor says which durabilities a service can give, and which replica a failover would take."""

from pathlib import Path

from redis.asyncio import Redis

from tests.members import declare
from tests.replicas import Replicated, replicated
from timers.client import open_store
from timers.doctor.checks import Check
from timers.doctor.failover import durability_check
from timers.embedded import Family
from timers.store.membership import Member
from timers.store.servers import connect


async def check_of(url: str, *settings: str) -> Check:
    """The check, beside pods with these settings of TIMERS_DURABILITY."""
    connections = connect(url)
    try:
        store = await open_store(connections)
        await declare(store, "note")
        members = [Member("pod", settings={"TIMERS_DURABILITY": each}) for each in settings]
        return await durability_check(store, members, has_ledger=False)
    finally:
        await connections.close()


async def prefer(group: Replicated, *priorities: int) -> None:
    for replica, priority in zip(group.replicas, priorities, strict=True):
        async with Redis.from_url(replica.url) as redis:
            await redis.config_set("replica-priority", priority)


async def test_what_a_server_with_replicas_can_give(family: Family, tmp_path: Path) -> None:
    async with replicated(family, tmp_path) as group:
        check = await check_of(group.primary.url, "fast", "replicated")
        assert (check.level, check.said) == (
            "ok",
            "fast or replicated; not fsync: appendonly is no; replica-priority 100, 100",
        )
        check = await check_of(group.primary.url, "fsync", "ledger")
        assert check.level == "fail"
        assert "pods are configured for fsync and ledger" in check.means
        await prefer(group, 10, 100)
        check = await check_of(group.primary.url)
        assert check.level == "warn"
        assert sorted(check.said.partition("replica-priority ")[2].removesuffix(": they differ").split(", ")) == [
            "10",
            "100",
        ]
        await prefer(group, 0, 0)
        assert (await check_of(group.primary.url)).said.endswith("replica-priority 0, 0: none may be promoted")


async def test_a_replica_that_does_not_answer_is_unknown(family: Family, tmp_path: Path) -> None:
    async with replicated(family, tmp_path, replicas=1) as group:
        group.stop(0)
        check = await check_of(group.primary.url)
        assert (check.level, check.said.rpartition("; ")[2]) == ("ok", "replica-priority unknown")


async def test_without_replicas_pods_that_want_them_are_told(family: Family, tmp_path: Path) -> None:
    async with replicated(family, tmp_path, replicas=0) as group:
        check = await check_of(group.primary.url, "replicated")
        assert (check.level, check.said) == (
            "fail",
            "fast; not fsync: appendonly is no; not replicated: it has no replica",
        )
