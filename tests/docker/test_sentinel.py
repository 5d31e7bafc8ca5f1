"""The servers and Sentinels of compose.sentinel.yaml and of the overlay, started by the script that both mount."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis.asyncio import Redis

from tests.docker.dockerfile import FOLDER
from tests.docker.started import HOST, Started
from tests.docker.test_compose import compose
from tests.members import declare
from tests.servers import free_port
from tests.waiting import eventually, patient
from timers.client import client_over, open_store
from timers.doctor.examining import examine
from timers.embedded import Family
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.servers.sentinel import SentinelConnections
from timers.store.store import Store

FINE: Final = ("persistence", "eviction", "replicas", "rights", "replay", "flags", "delivery", "sentinels", "failover")
"""What the doctor must find fine; besides, the replicas' flags."""


class Watched(Started):
    """Three servers and three Sentinels."""

    def __init__(self, family: Family, folder: Path) -> None:
        super().__init__(family, folder)
        self._servers, self._sentinels = [free_port() for _ in range(3)], [free_port() for _ in range(3)]

    @property
    def url(self) -> str:
        """The pods' URL, with the addresses of these Sentinels."""
        places = ",".join(f"{HOST}:{port}" for port in self._sentinels)
        given, found = re.subn(
            r"@sentinel-0,sentinel-1,sentinel-2/", f"@{places}/", self.url_of_pods("pods-sentinel.env")
        )
        assert found == 1
        return patient(given)

    def up(self) -> None:
        """Start all, on the data of before."""
        given = {"ACL": self.secrets / "redis.acl", "FIRST": HOST, "FIRST_PORT": self._servers[0]}
        for what, ports in (("server", self._servers), ("sentinel", self._sentinels)):
            for port in ports:
                self.start(what, HOST, port, **given)

    async def fail_over(self) -> None:
        """Ask a Sentinel for another primary."""
        redis: Any = Redis(host=HOST, port=self._sentinels[0], username="sentinel", password=self.password)
        async with redis:
            await redis.execute_command("SENTINEL", "FAILOVER", "timers")


@pytest.fixture
def started(family: Family, tmp_path: Path) -> Iterator[Watched]:
    """All of it, up."""
    made = Watched(family, tmp_path)
    made.up()
    yield made
    made.down()


async def whole(store: Store) -> bool:
    """Whether all that a failover needs is there."""
    try:
        found = {check.name: check.level for check in await examine(store)}
    except Unavailable:
        return False
    return all(found.get(name) == "ok" for name in (*FINE, "replicas' flags"))


async def opened(url: str) -> Store:
    """A store, once the Sentinels lead to a primary."""
    connections = connect(url)

    async def answers() -> Store | None:
        try:
            return await open_store(connections)
        except Unavailable:
            return None

    return await eventually(answers, "the Sentinels lead to a primary")


@pytest.mark.drill
async def test_a_failover_works_with_new_secrets_on_old_data(started: Watched) -> None:
    store = await opened(started.url)
    await eventually(lambda: whole(store), "the doctor finds nothing")
    await store.connections.close()
    started.down()
    started.make_secrets_anew()
    started.up()
    again = await opened(started.url)
    await eventually(lambda: whole(again), "the doctor finds nothing")
    sentinels = again.connections
    assert isinstance(sentinels, SentinelConnections)
    first = sentinels.sentinels.primary
    await started.fail_over()

    async def replaced() -> bool:
        return sentinels.sentinels.primary not in (None, first)

    await eventually(replaced, "another primary")
    await again.connections.close()


@pytest.mark.drill
async def test_a_failover_outlasts_a_restart_of_all(started: Watched) -> None:
    store = await opened(started.url)
    await eventually(lambda: whole(store), "the doctor finds nothing")
    sentinels = store.connections
    assert isinstance(sentinels, SentinelConnections)
    first = sentinels.sentinels.primary
    await started.fail_over()

    async def replaced() -> bool:
        return sentinels.sentinels.primary not in (None, first) and await whole(store)

    await eventually(replaced, "another primary with all that it needs")
    second = sentinels.sentinels.primary
    await declare(store, "log")
    async with client_over(store) as client:
        await client.create("log", "a", delay="1h")
        started.down()
        started.up()
        again = await opened(started.url)
        await eventually(lambda: whole(again), "the doctor finds nothing")
        assert sentinels.sentinels.primary == second
        assert (await client.get("log", "a")).status == "scheduled"
    await again.connections.close()
    await store.connections.close()


def test_compose_and_the_overlay_start_the_same_number_of_each() -> None:
    services = compose("compose.sentinel.yaml")["services"].values()
    asked = [each["command"][1] for each in services if "command" in each]
    files = (FOLDER / "redis" / "redis.yaml", FOLDER / "kubernetes" / "overlays" / "sentinel" / "sentinel.yaml")
    sets = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "StatefulSet"]
    there = {each["spec"]["template"]["spec"]["containers"][0]["args"][0]: each["spec"]["replicas"] for each in sets}
    assert {what: asked.count(what) for what in asked} == there == {"server": 3, "sentinel": 3}
