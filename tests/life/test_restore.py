"""The restore procedure of docs/operations.md, line by line, on real servers."""

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.cli.commands import clean_environment
from tests.engine.fleet import Calls, Fleet, until
from tests.install.environment import ROOT
from tests.life.test_losses import socket_of
from tests.members import declare
from tests.nursery import nursery
from tests.orders import SOCKET, shell_function
from tests.servers import ServerHandle, start_server
from tests.waiting import patient
from timers.client import TimerClient
from timers.embedded import Family

pytestmark = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli (Debian: redis-tools)")

IDS = [f"n{n:02}" for n in range(20)]


def steps() -> tuple[Sequence[str], Sequence[str]]:
    """The lines of the two blocks: how to restore, and what a copy needs besides."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Back up and restore")[2].partition("\n## ")[0]
    restore, copy = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return restore.splitlines(), copy.splitlines()


class Machine:
    """A server that the document's lines reach."""

    def __init__(self, family: Family, folder: Path, backup: Path) -> None:
        self._family, self._folder, self._backup = family, folder, backup
        self.server: ServerHandle | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.url

    async def start(self, *options: str) -> None:
        self.server = await start_server(self._family, self._folder, *options)

    async def stop(self) -> None:
        assert self.server is not None
        await self.server.stop()

    async def type(self, line: str) -> str:
        """Run a line; returns what it prints."""
        if line.startswith("sudo systemctl"):
            await (self.stop() if " stop " in line else self.start())
        elif line.startswith("redis-server"):
            await self.start("--appendonly", "no")
        elif line == "redis-cli SHUTDOWN":
            await self.stop()
        elif not line.startswith("cd "):
            return await self._shell(line.replace("/backup/timers.rdb", str(self._backup)))
        return ""

    async def _shell(self, line: str) -> str:
        socket = "" if self.server is None else socket_of(self.server)
        names = f'redis-cli() {{ command redis-cli -s {socket} "$@"; }}; {shell_function()}'
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -eo pipefail; {names}; {line}"),
            cwd=self._folder / "server",
            env=clean_environment({SOCKET: str(nursery().fileno()), "TIMERS_REDIS_URL": f"unix://{socket}?db=0"}),
            pass_fds=(nursery().fileno(),),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await shell.communicate()
        assert shell.returncode == 0, line
        return out.decode()


async def listed(url: str) -> list[str]:
    async with TimerClient(url) as client:
        return sorted(timer.id for timer in (await client.list()).items)


@pytest.mark.every_server
async def test_a_backup_is_restored_as_documented(family: Family, tmp_path: Path) -> None:
    backup, restore = tmp_path / "timers.rdb", steps()[0]
    machine = Machine(family, tmp_path / "original", backup)
    await machine.start()
    fleet = await Fleet.over(machine.url)
    for each in IDS:
        await fleet.client.create("note", each, delay="1h")
    await machine.type("redis-cli --rdb /backup/timers.rdb")
    await fleet.client.create("note", "later", delay="1h")
    await fleet.redis.flushall()
    await fleet.store.connections.close()

    await machine.stop()
    shutil.copy(backup, tmp_path / "original" / "server" / "dump.rdb")
    await machine.start()
    assert await listed(machine.url) == []  # the obvious way

    for line in restore:
        await machine.type(line)
    assert await listed(machine.url) == IDS
    fleet = await Fleet.over(machine.url)
    await fleet.pod(Calls())
    await fleet.client.fire("note", IDS[0])
    await fleet.completed(IDS[0])
    assert await fleet.redis.config_get("appendonly") == {"appendonly": "yes"}
    await fleet.close()
    await machine.stop()


@pytest.mark.every_server
async def test_a_copy_beside_its_original_runs_nothing_and_is_another_db(family: Family, tmp_path: Path) -> None:
    backup, (restore, copied) = tmp_path / "timers.rdb", steps()
    original = Machine(family, tmp_path / "original", backup)
    await original.start()
    fleet = await Fleet.over(original.url)
    await declare(fleet.store, "note", "push")
    for each in IDS:
        await fleet.client.create("push-now", each, delay=0)
        await fleet.client.create("note", each, delay="1h")
    await original.type("redis-cli --rdb /backup/timers.rdb")

    copy = Machine(family, tmp_path / "copy", backup)
    await copy.start()
    await copy.stop()
    for line in [*restore, *copied]:
        await copy.type(line)
    calls, push = Calls(), Calls("push")
    beside = await Fleet.over(copy.url)
    pod = await beside.pod(calls, push)
    assert beside.store.identity.epoch != fleet.store.identity.epoch
    async with Redis.from_url(patient(copy.url)) as redis:
        assert await redis.hget("timers:meta", "shards") == b"1"
    await beside.client.create("note-new", "mine", delay=0)
    await beside.completed("mine", "note-new")
    assert len(await listed(copy.url)) == 2 * len(IDS) + 1
    assert (calls.ids, push.ids) == (["mine"], [])
    assert pod.store.identity.losses == {}
    await beside.client.resume("push-now")
    await until(lambda: len(push) == len(IDS), "what is resumed runs")
    await fleet.close()
    await beside.close()
    await original.stop()
    await copy.stop()
