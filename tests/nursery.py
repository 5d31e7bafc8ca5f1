"""Starts `timers` as a process of its own without its imports: a process that has made them forks for each start.

The imports take most of a pod's start, and the tests start over a hundred pods. What is forked has run nothing of the
service yet. How the command itself starts is what tests/install, tests/docker and tests/cli/test_version.py try.
"""

import array
import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final

from tests.certificates import trust_no_strangers
from tests.orders import order
from timers_processors.command import main

ROOT: Final = Path(__file__).parents[1]

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_MOST_BYTES: Final = 150_000
"""Of an order: below what a datagram takes."""


class Child:
    """A forked process, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, news: socket.socket) -> None:
        self.pid, self._news = pid, news
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._news], [], [], 0)[0]:
            self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["timers"], timeout or 0)
            self._hear()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self) -> None:
        self.returncode = int(self._news.recv(16))
        self._news.close()


def start_timers(
    arguments: Sequence[str], cwd: Path, environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Child | subprocess.Popen[bytes]:
    """Start `timers`, with nothing to read. On Linux it dies with this process, however that ends."""
    if sys.platform != "linux" or environ["PYTHONPATH"].split(os.pathsep)[0] != str(ROOT):
        command = [sys.executable, "-m", "timers", *arguments]
        return subprocess.Popen(command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    with Path(os.devnull).open() as nothing:
        files = nothing.fileno(), out.fileno(), err.fileno()
        return Child(*order(nursery(), arguments, cwd=str(cwd), first=str(cwd), environ=environ, files=files))


@cache
def nursery() -> socket.socket:
    """What takes orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", str(number)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")},
            pass_fds=(number,),
            stdin=subprocess.DEVNULL,
        )
    atexit.register(_close, ours, process)
    return ours


def _close(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with orders:
        orders.send(b"")
    process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _serve(orders: socket.socket) -> None:
    """Fork for each order, and tell each exit code. Returns in a child, which has become what was ordered."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parents: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([orders.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _tell_ends(parents)
        if orders.fileno() in ready:
            said, ancillary, _, _ = orders.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(4 * array.array("i").itemsize))
            if not said:
                sys.exit()
            if b"ledger" in said.lower():
                import_ledger()
            *files, told = array.array("i", b"".join(data for _, _, data in ancillary))
            parent = socket.socket(fileno=told)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                _die_with_parent()
                for each in (orders, parent, *parents.values()):
                    each.close()
                os.close(wake)
                os.close(woken)
                arguments, cwd, first, environ = json.loads(said)
                _become(arguments, cwd, first, environ, files)
                return
            parents[pid] = parent
            parent.send(str(pid).encode())
            for file in files:
                os.close(file)


def _tell_ends(parents: dict[int, socket.socket]) -> None:
    while parents:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with parents.pop(pid) as parent:
            try:
                parent.send(str(os.waitstatus_to_exitcode(status)).encode())
            except OSError:
                continue  # whoever started it is no longer interested


def _become(arguments: list[str], cwd: str, first: str, environ: dict[str, str], files: Sequence[int]) -> None:
    for number, given in enumerate(files):
        os.dup2(given, number)
    os.closerange(3, max(files) + 1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.argv[1:] = arguments
    sys.path[0] = first
    wanted = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in wanted if path and path not in sys.path]


@cache
def import_ledger() -> None:
    """Make the imports of who has a ledger, for all that are started from now on."""
    for name in ("timers.ledger.database", "timers.cli.ledger", "aiosqlite", "asyncpg"):
        import_module(name)
    gc.freeze()


if __name__ == "__main__":
    for name in ("moving", "operating", "planning", "pods", "timers", "watching"):
        import_module(f"timers.cli.{name}")
    import_module("timers.dashboard")
    for name in ("hooks", "log", "send_message", "webhook"):
        import_module(f"timers_processors.{name}")
    trust_no_strangers()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
