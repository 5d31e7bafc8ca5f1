"""The nodes of compose.cluster.yaml and of the overlay, started and made a cluster by the scripts that both mount."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis.asyncio import Redis

from tests.cli.commands import Process
from tests.docker.dockerfile import FOLDER
from tests.docker.started import HOST, Started
from tests.docker.test_compose import compose, stack
from tests.members import declare
from tests.servers import binary_for, free_port
from tests.waiting import DEADLINE_SECONDS, eventually, patient
from timers.client import client_over, open_store
from timers.doctor.examining import examine
from timers.embedded import Family
from timers.errors import Unavailable
from timers.store import keys
from timers.store.servers import connect
from timers.store.store import Store

NAME: Final = "localhost"
"""What the nodes announce. The pods' URL has the address, so only who heeds that knows the name."""

SIZE: Final = 6
NUMBER: Final = 40
"""With so many timers every primary has some, but in one of ten million runs."""

FINE: Final = {"persistence", "eviction", "role", "replicas", "rights", "replay", "flags", "delivery"}
"""What the doctor must find fine."""

pytestmark = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli (Debian: redis-tools)")


class Clustered(Started):
    """Six nodes."""

    def __init__(self, family: Family, folder: Path) -> None:
        super().__init__(family, folder)
        self.ports = {free_port(): free_port() for _ in range(SIZE)}

    @property
    def url(self) -> str:
        """The pods' URL, with the addresses of these nodes."""
        places = ",".join(f"{HOST}:{port}" for port in self.ports)
        names = ",".join(f"redis-{number}" if number else "redis" for number in range(SIZE))
        given, found = re.subn(f"@{names}$", f"@{places}", self.url_of_pods("pods-cluster.env"))
        assert found == 1
        return patient(given)

    def node(self, port: int) -> None:
        """Start one, on the data of before."""
        self.start("node", NAME, port, ACL=self.secrets / "redis-cluster.acl", BUS_PORT=self.ports[port])

    async def form(self) -> None:
        """Make a cluster of them."""
        words = [str(FOLDER / "redis" / "cluster"), *(f"{NAME}:{port}:{bus}" for port, bus in self.ports.items())]
        environment = os.environ | {"SECRETS": str(self.secrets)}
        ended = await asyncio.to_thread(subprocess.run, words, env=environment, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr

    async def who_has_what(self) -> Any:
        """By node: its role, its primary and its slots."""
        redis: Any = Redis(host=HOST, port=next(iter(self.ports)), username="cluster", password=self.password)
        async with redis:
            said = await redis.execute_command("CLUSTER NODES")
        return {
            each["node_id"]: (each["flags"].removeprefix("myself,"), each["master_id"], each["slots"])
            for each in said.values()
        }

    def move(self) -> None:
        """Start all that are down at other addresses, on the data of before."""
        was, self.ports = self.ports, {free_port(): free_port() for _ in range(SIZE)}
        for old, new in zip(was, self.ports, strict=True):
            (self.folder / str(old)).rename(self.folder / str(new))
            (self.folder / str(new) / "node.conf").unlink()
            self.node(new)


@pytest.fixture
async def started(family: Family, tmp_path: Path) -> AsyncIterator[Clustered]:
    made = Clustered(family, tmp_path)
    for port in made.ports:
        made.node(port)
    await made.form()
    yield made
    made.down()


async def whole(store: Store) -> bool:
    """Whether every primary has all that a failover needs."""
    try:
        found = {check.name: check for check in await examine(store)}
        said = [await node.commands.info("replication") for node in store.connections.nodes]
    except Unavailable:
        return False
    followers = [each["connected_slaves"] for each in said]
    return followers == [1] * (SIZE // 2) and all(found[name].level == "ok" for name in FINE)


async def offset(primary: Redis) -> int:
    """How much it has sent to its replica."""
    return int((await primary.info("replication"))["master_repl_offset"])


async def has_all(primary: Redis, sent: int) -> bool:
    """Whether its replica has that much."""
    return int((await primary.info("replication"))["slave0"]["offset"]) >= sent


@pytest.mark.drill
async def test_a_pod_goes_on_when_a_primary_of_the_shipped_cluster_dies(started: Clustered, tmp_path: Path) -> None:
    store = await open_store(connect(started.url))
    await eventually(lambda: whole(store), "the doctor finds nothing")
    await declare(store, "log")
    (tmp_path / "pod").mkdir()
    pod = Process(tmp_path / "pod", "serve", "--roles", "worker", TIMERS_REDIS_URL=started.url)
    ids = [f"n{number}" for number in range(NUMBER)]
    try:
        async with client_over(store) as client:

            async def completed(number: int) -> bool:
                assert pod.alive, pod.err
                try:
                    return (await client.stats()).to_json()["by_status"]["completed"] == number
                except Unavailable:
                    return False

            await client.create("log", "first", delay=0)
            await eventually(partial(completed, 1), "the pod works")
            await asyncio.gather(*(client.create("log", each, delay="2s") for each in ids))
            primary = store.connections.node_of(keys.root(0)).commands
            killed = primary.connection_pool.connection_kwargs
            assert killed["host"] == NAME
            await eventually(partial(has_all, primary, await offset(primary)), "its replica has all")
            started.kill(killed["port"])
            await eventually(partial(completed, 1 + NUMBER), "all have run")
    finally:
        pod.kill()
    started.node(killed["port"])
    await eventually(lambda: whole(store), "the doctor finds nothing")
    before = await started.who_has_what()
    await started.form()
    assert await started.who_has_what() == before
    await store.connections.close()


@pytest.mark.drill
async def test_nodes_that_all_have_new_addresses_find_each_other(started: Clustered) -> None:
    store = await open_store(connect(started.url))
    await eventually(lambda: whole(store), "the doctor finds nothing")
    await declare(store, "log")
    async with client_over(store) as client:
        await client.create("log", "a", delay="1h")
    await store.connections.close()
    started.down()
    started.move()
    await started.form()
    again = await open_store(connect(started.url))
    await eventually(lambda: whole(again), "the doctor finds nothing")
    async with client_over(again) as client:
        assert (await client.get("log", "a")).status == "scheduled"
    await again.connections.close()


_DEAF: Final = """#!/bin/sh
case "$*" in *"-p 7001"*) one=myself, ;; *) other=myself, ;; esac
case "$*" in
*"cluster meet"*) touch met ;;
*"cluster info") touch asked; printf 'cluster_state:ok\ncluster_slots_assigned:16384\n' ;;
*"info replication") [ -e met ] && echo master_link_status:up ;;
*"cluster nodes")
    [ ! -e asked ] || [ -e met ] || lost=,fail?
    echo "a 10.0.0.1:7001@1 ${one}master$lost - 0 0 1 connected 0-16383"
    echo "b 10.0.0.2:7002@2 ${other}slave$lost a 0 0 1 connected" ;;
esac
"""


def test_nodes_that_notice_late_that_the_others_have_moved_are_led_to_them(tmp_path: Path) -> None:
    """At first they take the others at their old addresses for connected: in a network where those answer nothing."""
    for name, text in (("redis-cli", _DEAF), ("sleep", "#!/bin/sh\necho >>slept\n[ $(wc -l <slept) -lt 9 ]\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "replication").write_text("secret")
    words = [str(FOLDER / "redis" / "cluster"), "localhost:7001:1", "localhost:7002:2"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SECRETS": str(tmp_path)}
    assert subprocess.run(words, env=environment, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "met").exists()


def test_a_newcomer_sees_a_failover_without_a_container_engine(tmp_path: Path) -> None:
    """The commands of the README, with other ports."""
    stack(tmp_path, "usage")
    (commands,) = re.findall(r"```sh\n(docker/stack secrets\n.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    ports = {number: (free_port(), free_port()) for number in range(SIZE)}
    commands = commands.replace("PORT=700$n BUS_PORT=1700$n", "$(cat ports-$n)")
    for number, (port, bus) in ports.items():
        (tmp_path / f"ports-{number}").write_text(f"PORT={port} BUS_PORT={bus}")
        commands = commands.replace(f":1700{number}", f":{bus}").replace(f":700{number}", f":{port}")
    commands = commands.replace("SECRETS=docker/secrets ACL", "env SECRETS=docker/secrets ACL")
    path = f"{binary_for('redis').parent}:{os.environ['PATH']}"
    try:
        words = ["timeout", str(int(DEADLINE_SECONDS)), "sh", "-euc", commands]
        environment = {"PATH": path, "HOME": str(tmp_path)}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^status +completed$", done.stdout, re.MULTILINE)
    finally:
        for file in (*tmp_path.glob("node-*/pid"), *tmp_path.glob("pod.pid")):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


def test_compose_and_the_overlay_start_the_same_nodes() -> None:
    services = compose("compose.cluster.yaml")["services"]
    nodes = [name for name, each in services.items() if each.get("command", [""])[0] == "/start"]
    assert [services[name]["command"] for name in nodes] == [["/start", "node", name] for name in nodes]
    assert services["cluster"]["command"] == ["/cluster", *nodes]
    assert services["cluster"]["depends_on"].keys() == set(nodes)
    folder = FOLDER / "kubernetes" / "overlays" / "cluster"
    (patch,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    changed = {each["path"].split("/")[-1]: each["value"] for each in yaml.safe_load(patch["patch"])}
    assert changed == {"replicas": len(nodes), "args": ["node", "$(NAME).redis"]}
    form = yaml.safe_load((folder / "form.yaml").read_text())["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert form["containers"][0]["args"] == [f"redis-{number}.redis" for number in range(len(nodes))]
