"""Orders a `timers` of the nursery, with this process's own files. As a program it is the `timers` command itself, in a
tenth of the time; so it imports little."""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

SOCKET = "NURSERY"
"""The environment variable with the number of the file that takes orders, where a shell has it open."""


def order(
    orders: socket.socket,
    arguments: Sequence[str],
    *,
    cwd: str,
    first: str,
    environ: Mapping[str, str],
    files: Sequence[int],
) -> tuple[int, socket.socket]:
    """Start `timers` in a folder, with these files for its standard input, output and errors, and `first` as the first
    place of modules. Returns its pid, and what will tell its exit code."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        text = json.dumps([list(arguments), cwd, first, dict(environ)])
        socket.send_fds(orders, [text.encode()], [*files, theirs.fileno()])
    return int(ours.recv(16)), ours


def shell_function() -> str:
    """Makes a shell whose SOCKET is set run `timers` so."""
    return f'timers() {{ {sys.executable} -IS {__file__} "$@"; }}'


def main() -> int:
    """Run it to its end. What this process is told to do, it is told."""
    environ = {name: value for name, value in os.environ.items() if name != SOCKET}
    orders = socket.socket(fileno=int(os.environ[SOCKET]))
    cwd, first = os.getcwd(), os.path.dirname(sys.executable)  # noqa: PTH109, PTH120 (pathlib takes longer than the rest)
    pid, news = order(orders, sys.argv[1:], cwd=cwd, first=first, environ=environ, files=(0, 1, 2))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(news.recv(16))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
