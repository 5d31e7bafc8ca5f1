"""A create with durability `fsync` is answered once the disk has it, and refused where the server cannot say so."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.members import declare
from tests.servers import start_server
from tests.waiting import eventually
from timers.client import TimerClient, client_over, open_store
from timers.client.opening import check_setting
from timers.embedded import Family
from timers.errors import ConfigurationError, InvalidInput
from timers.store.servers import connect
from timers.store.servers.durability import FSYNC, Command, DiskProof, DurableWriter, Verdict

SHIM: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    int told = open(getenv("SYNCS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(told, "x", 1) != 1) _exit(1);
    close(told);
    while (access(getenv("HOLD"), F_OK) == 0) usleep(1000);
    return real(fd);
}
"""
"""Counts the server's calls of fdatasync, and lets none end while the file HOLD is there."""


class Disk:
    """The disk of a server, which a test may hold up."""

    def __init__(self, folder: Path) -> None:
        self.hold, self._syncs = folder / "hold", folder / "syncs"
        self.environment = {
            "HOLD": str(self.hold),
            "SYNCS": str(self._syncs),
            "LD_PRELOAD": str(self._build(folder)),
        }

    @property
    def syncs(self) -> int:
        """How often the server has begun to flush a file to it."""
        return self._syncs.stat().st_size if self._syncs.exists() else 0

    def _build(self, folder: Path) -> Path:
        source, library = folder / "shim.c", folder / "shim.so"
        source.write_text(SHIM)
        compiler = shutil.which("cc") or ""
        if not compiler and os.environ.get("CI"):
            pytest.fail("no C compiler")
        if not compiler:
            pytest.skip("no C compiler on this machine")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return library


@asynccontextmanager
async def served(
    family: Family, folder: Path, fsync: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TimerClient, Disk]]:
    """A client of a server with this `appendfsync`, and its disk."""
    disk = Disk(folder)
    with monkeypatch.context() as patch:
        for name, value in disk.environment.items():
            patch.setenv(name, value)
        server = await start_server(family, folder, "--appendfsync", fsync)
    try:
        async with client_over(await open_store(connect(server.url))) as client:
            assert client._store is not None
            await declare(client._store, "note")
            yield client, disk
    finally:
        disk.hold.unlink(missing_ok=True)
        await server.stop()


@pytest.mark.every_server
async def test_the_answer_waits_for_the_disk(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(family, tmp_path, "always", monkeypatch) as (client, disk):
        await client.create("note", "first", delay="1h", durability="fsync")
        before = disk.syncs
        disk.hold.touch()
        asked = asyncio.create_task(client.create("note", "a", delay="1h", durability="fsync"))

        async def flushes() -> bool:
            return disk.syncs > before

        await eventually(flushes, "the server flushes what it has written")
        for _ in range(20):  # what has been answered would arrive in these turns of the loop
            await asyncio.sleep(0.001)
        assert not asked.done()
        disk.hold.unlink()
        assert (await asked).durability == "fsync"


@pytest.mark.every_server
async def test_a_server_that_answers_before_is_refused(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(family, tmp_path, "everysec", monkeypatch) as (client, disk):
        assert client._store is not None
        redis: Any = client._store.connections.commands

        async def says_so_without_a_flush() -> bool:
            before = disk.syncs
            await client.create("note", delay="1h")
            answer = await redis.execute_command("WAITAOF", 1, 0, 100) if family == "valkey" else [1, 0]
            return answer == [1, 0] and disk.syncs == before

        await eventually(says_so_without_a_flush, "the server says that the disk has what nobody has flushed")
        why = "durability: 'fsync' is not accepted; expected fast; this server: appendfsync is everysec, and WAITAOF of"
        with pytest.raises(InvalidInput, match=f"{why} {family}.* does not prove that the disk has it"):
            await client.create("note", "a", delay="1h", durability="fsync")
        with pytest.raises(InvalidInput, match=why):
            await client_over(client._store, durability="fsync").create("note", "a", delay="1h")
        with pytest.raises(ConfigurationError, match=r"^TIMERS_DURABILITY: 'fsync' is not accepted; expected fast"):
            await check_setting(client._store, "fsync")


async def test_what_changes_on_the_server_is_seen_in_the_next_answer(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(family, tmp_path, "always", monkeypatch) as (client, _):
        assert client._store is not None
        redis: Any = client._store.connections.commands
        assert (await client.create("note", "a", delay="1h", durability="fsync")).durability == "fsync"
        await redis.config_set("no-appendfsync-on-rewrite", "yes")
        assert (await client.create("note", "b", delay="1h", durability="fsync")).durability == "fast"
        with pytest.raises(InvalidInput, match="no-appendfsync-on-rewrite is yes"):
            await client.create("note", "c", delay="1h", durability="fsync")
        await redis.config_set("no-appendfsync-on-rewrite", "no")
        assert (await client.create("note", "d", delay="1h", durability="fsync")).durability == "fsync"


EVERYSEC: Final = [b"appendonly", b"yes", b"appendfsync", b"everysec", b"no-appendfsync-on-rewrite", b"no"]


def told(version: bytes, config: object = EVERYSEC) -> tuple[DiskProof, Verdict]:
    """What is found of a server of this version."""
    proof = DiskProof()
    assert [command[0] for command in proof.asked()] == ["CONFIG", "INFO"]
    return proof, proof.judged([config, version])


def test_redis_8_is_asked_when_its_disk_has_it() -> None:
    proof, first = told(b"# Server\r\nredis_version:8.2.3\r\n")
    assert not first.lacks
    assert [command[0] for command in proof.asked()] == ["CONFIG", "WAITAOF"]
    assert proof.judged([EVERYSEC, [1, 0]]).reached
    assert not proof.judged([EVERYSEC, [0, 0]]).reached
    _, other = told(b"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n")
    assert other.lacks.endswith("WAITAOF of valkey 9.1.2 does not prove that the disk has it")


class _Wire:
    """A connection to a server whose disk has what WAITAOF is asked for."""

    def __init__(self) -> None:
        self.version = b"redis_version:8.2.3\r\n"
        self.trouble: Exception | None = None

    async def together(self, commands: Sequence[Command]) -> list[Any]:
        if self.trouble is not None:
            raise self.trouble
        answers = {"SET": b"OK", "CONFIG": EVERYSEC, "INFO": self.version, "WAITAOF": [1, 0]}
        return [answers[str(command[0])] for command in commands]

    async def aclose(self) -> None: ...


async def test_a_connection_that_opens_again_may_lead_to_a_server_that_proves_less() -> None:
    wire: Any = _Wire()
    writer = DurableWriter(FSYNC, wire)
    assert await writer.write([("SET", "a", 1)]) == [(b"OK", True)]
    wire.trouble = ConnectionError("cut")
    with pytest.raises(ConnectionError):
        await writer.write([("SET", "a", 2)])
    wire.trouble, wire.version = None, b"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n"
    assert await writer.write([("SET", "a", 3)]) == [(b"OK", False)]


def test_without_an_append_only_file_there_is_no_disk_to_wait_for() -> None:
    assert told(b"redis_version:8.2.3\r\n", [b"appendonly", b"no"])[1].lacks == "appendonly is no"


def test_a_server_that_denies_config_says_nothing() -> None:
    denied = Exception("NOPERM")
    assert told(b"redis_version:7.0.15\r\n", denied)[1].lacks.startswith("CONFIG is denied")
    assert not told(b"redis_version:8.0.0\r\n", denied)[1].lacks
