"""A terminal, for commands that print something else on one."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, Final

from tests.cli.commands import END_SECONDS, clean_environment
from tests.waiting import eventually

ROWS, COLUMNS = 40, 110
_ESCAPES: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
HOME: Final = b"\x1b[H"


class Terminal:
    """The `timers` command in a terminal of its own: its output, and a keyboard."""

    def __init__(self, *arguments: str, rows: int = ROWS, columns: int = COLUMNS, **settings: str) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.set_blocking(self._ours, False)
        self.before = termios.tcgetattr(self._theirs)
        self._shown = b""
        size_of_the_tests = dict.fromkeys(("COLUMNS", "LINES"), "")
        environment = {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TERM": "xterm-256color",
            **size_of_the_tests,
            **settings,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "timers", *arguments],
            env=clean_environment(environment),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )

    @property
    def shown(self) -> bytes:
        """Everything that was written, with the codes that move the cursor."""
        while True:
            try:
                self._shown += os.read(self._ours, 65536)
            except BlockingIOError:
                return self._shown

    @property
    def page(self) -> str:
        """The newest complete page."""
        looks = self.shown.split(HOME)
        return _ESCAPES.sub(b"", looks[-2] if len(looks) > 2 else looks[-1]).decode(errors="replace")

    async def until(self, *words: str) -> str:
        async def look() -> str | None:
            page = self.page
            return page if all(word in page for word in words) else None

        try:
            return await eventually(look, f"{words} are shown")
        except AssertionError:
            raise AssertionError(self.page) from None

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def send(self, sent: signal.Signals) -> None:
        self._process.send_signal(sent)

    def end(self) -> int:
        """The exit code, once it has ended. A process whose terminal nobody reads waits for ever with its last page."""
        until = time.monotonic() + END_SECONDS
        while (code := self._process.poll()) is None and time.monotonic() < until:
            select.select([self._ours], [], [], 0.1)
            assert self.shown is not None
        assert code is not None, f"it has not ended: {self.page}"
        return code

    @property
    def settings(self) -> list[Any]:
        """The terminal's input settings."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)
