"""`rediss+cluster://` and `rediss+sentinel://`: everything is encrypted to each node, server and Sentinel, and both
sides prove who they are."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.certificates import authority
from tests.clusters import HOST, SLOTS, Node
from tests.engine.fleet import Calls, Fleet, until
from tests.sentinels import SERVICE, Sentinel
from tests.servers import free_port
from tests.waiting import eventually
from timers.client import TimerClient
from timers.embedded import Family
from timers.errors import Unavailable

FAMILY: Final[Family] = "redis"
"""The Valkey of the tests knows no TLS."""
SHARDS: Final = 8


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Of an authority, and of a server at the address that nodes and Sentinels name."""
    return authority(tmp_path / "certificates", f"IP:{HOST}")


def tls(certificates: Path, port: int) -> dict[str, str]:
    """The options of a server that encrypts all, and wants a certificate from whoever connects."""
    files = {"ca-cert": "ca.crt", "cert": "server.crt", "key": "server.key"}
    return {f"tls-{name}-file": str(certificates / file) for name, file in files.items()} | {
        "tls-port": str(port),
        "tls-auth-clients": "yes",
        "tls-replication": "yes",
    }


def words(options: dict[str, str]) -> list[str]:
    """Options as a server's arguments."""
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def query(certificates: Path, authority: str = "ca") -> str:
    """The part of a URL that has the certificates."""
    files = {"ssl_ca_certs": f"{authority}.crt", "ssl_certfile": "server.crt", "ssl_keyfile": "server.key"}
    return "&".join(f"{name}={certificates / file}" for name, file in files.items())


async def runs_timers(url: str, shards: int) -> None:
    """A pod over this URL runs a timer of each shard, and hears of all."""
    fleet = await Fleet.over(url, shards=shards)
    try:
        calls = Calls()
        pod = await fleet.pod(calls)
        await until(lambda: pod.worker.health().ready, "the pod is ready")
        for number in range(shards):
            names = (f"n{number}-{n}" for n in range(1000))
            await fleet.client.create(
                "note", next(name for name in names if fleet.store.shard_of("note", name) == number), delay="20ms"
            )
        await until(lambda: len(calls) == shards, "all have run")
        assert pod.worker.health().notifications == "ok"
    finally:
        await fleet.close()


async def refused(url: str) -> str:
    """How a client fails."""
    async with TimerClient(url) as client:
        with pytest.raises(Unavailable) as caught:
            await client.stats()
    return str(caught.value)


@pytest.fixture
async def cluster(tmp_path: Path, certificates: Path) -> AsyncIterator[list[int]]:
    """The TLS ports of two primaries with half of the slots each, whose bus is encrypted too."""
    ports = [free_port(), free_port()]
    nodes, buses = list[Node](), [free_port(), free_port()]
    for number, port in enumerate(ports):
        bus = {"cluster-enabled": "yes", "tls-cluster": "yes", "cluster-port": str(buses[number])}
        options = words({**tls(certificates, port), **bus, "cluster-announce-ip": HOST})
        nodes.append(Node(FAMILY, tmp_path / f"node-{number}", *options))
    try:
        await asyncio.gather(*(node.up() for node in nodes))
        for number, node in enumerate(nodes):
            await node.ask("CLUSTER ADDSLOTSRANGE", number * SLOTS // 2, (number + 1) * SLOTS // 2 - 1)
            await node.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
        await nodes[0].ask("CLUSTER MEET", HOST, ports[1], buses[1])

        async def is_whole() -> bool:
            infos: list[Any] = [await node.ask("CLUSTER INFO") for node in nodes]
            return all(info["cluster_state"] == "ok" for info in infos)

        await eventually(is_whole, "the cluster takes commands")
        yield ports
    finally:
        for node in nodes:
            node.down()


async def test_a_pod_runs_the_timers_of_each_node_over_tls(cluster: list[int], certificates: Path) -> None:
    """The URL names one node. The other's TLS port comes from the cluster."""
    first = f"rediss+cluster://{HOST}:{cluster[0]}/?"
    await runs_timers(first + query(certificates), SHARDS)
    assert "certificate verify failed" in await refused(first + query(certificates, "other"))
    without = f"{first}ssl_ca_certs={certificates / 'ca.crt'}"
    assert "Redis is not available" in await refused(without)


async def test_a_pod_runs_timers_behind_a_sentinel_over_tls(tmp_path: Path, certificates: Path) -> None:
    """Server and Sentinel have accounts of their own."""
    ports, user = (free_port(), free_port()), ["--user", "pods", "on", ">of-server", "~*", "&*", "+@all"]
    node = Node(FAMILY, tmp_path / "node", *words(tls(certificates, ports[0])), *user)
    sentinel = Sentinel(FAMILY, tmp_path / "sentinel", node)
    config = tmp_path / "sentinel" / "sentinel.conf"
    given = "\n".join(f"{name} {value}" for name, value in tls(certificates, ports[1]).items())
    account = "user default off\nuser watch on >of-sentinels ~* &* +@all\n"
    config.write_text(f"{config.read_text().replace(f' {node.port} ', f' {ports[0]} ')}{given}\n{account}")
    try:
        await node.up()
        sentinel.up()
        place = f"rediss+sentinel://pods:of-server@{HOST}:{ports[1]}/{SERVICE}/3"
        url = f"{place}?sentinel_username=watch&sentinel_password=of-sentinels&"

        async def answers() -> bool:
            try:
                async with TimerClient(url + query(certificates)) as client:
                    return bool(await client.stats())
            except Unavailable:  # the Sentinel is starting
                return False

        await eventually(answers, "the Sentinel leads to the server")
        await runs_timers(url + query(certificates), 1)
        assert "certificate verify failed" in await refused(url + query(certificates, "other"))
    finally:
        sentinel.down()
        node.down()
