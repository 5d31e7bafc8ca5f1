"""Whoever reads from a replica, so as not to burden the master, can."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.life.test_losses import free_port
from tests.members import declare
from tests.servers import start_server
from tests.waiting import eventually, patient
from timers.client import TimerClient, client_over, open_store
from timers.embedded import Family
from timers.errors import Unavailable
from timers.store.servers import connect


@pytest.mark.every_server
async def test_a_replica_refused_to_list_timers(family: Family, tmp_path: Path) -> None:
    port = free_port()
    async with (
        await start_server(family, tmp_path / "master", "--port", str(port)) as master,
        await start_server(family, tmp_path / "replica", "--replicaof", f"127.0.0.1 {port}") as replica,
    ):
        store = await open_store(connect(patient(master.url)))
        await declare(store, "note")
        async with client_over(store) as client, Redis.from_url(replica.url) as redis:
            await client.create("note", "x", delay="1h")

            async def arrived() -> bool:
                state: dict[str, Any] = await redis.info("replication")
                return state["master_link_status"] == "up" and bool(await redis.exists("note:{0}:x"))

            await eventually(arrived, "the replica has it")
        async with TimerClient(replica.url) as reader:
            assert [timer.id for timer in (await reader.list()).items] == ["x"]
            assert (await reader.get("note", "x")).status == "scheduled"
            assert (await reader.stats()).to_json()["by_status"]["scheduled"] == 1
            assert [view.prefix for view in await reader.prefixes()] == ["note"]
            assert await reader.pods() == []
            with pytest.raises(Unavailable, match=r"read.only"):
                await reader.cancel("note", "x")
