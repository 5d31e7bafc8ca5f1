"""Owns `timers dev --reload`: it runs a pod as a child process, and restarts it when processors' files change."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

import typer

from timers.errors import ConfigurationError
from timers.processor import ENTRY_POINT_GROUP

LOOK_MS: Final = 100
"""How often this process looks at its child."""


def folders_of(modules: Iterable[str]) -> set[Path]:
    """The folders to watch: the working directory, and those of the processors' modules and plugins that are not in
    site-packages."""
    found = {Path.cwd()}
    for name in (*modules, *(point.value for point in entry_points(group=ENTRY_POINT_GROUP))):
        try:
            spec = find_spec(name.partition(":")[0])
        except Exception:  # noqa: BLE001, S112 (an error in a package's own code; the pod will report it)
            continue
        if spec is not None and spec.origin is not None and "site-packages" not in spec.origin:
            found.add(Path(spec.origin).parent)
    return found


def reloading(folders: Iterable[Path]) -> int:
    """Run this command without `--reload` until a signal ends it, and restart it after each change. Returns its exit
    code."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415 (the extra `reload`)
    except ImportError:
        raise ConfigurationError("--reload needs watchfiles: pip install 'redis-timers[reload]'") from None
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # watchfiles only counts changes; here they are named
    stop = threading.Event()
    pod = _Pod(stop)
    looks = watch(*folders, watch_filter=PythonFilter(), rust_timeout=LOOK_MS, yield_on_timeout=True, stop_event=stop)
    for changes in looks:  # the first look comes once the folders are watched
        pod.look({Path(path).name for _, path in changes})
    return pod.end()


class _Pod:
    """The child process. It has its own session, so Ctrl-C reaches it only through this process, and only once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)

    def look(self, changed: set[str]) -> None:
        """Start the child at the first look, and restart it when files have changed. If it has ended by itself, because
        its code is broken, wait for the next change."""
        if self._process is None:
            self._start()
        elif changed:
            typer.echo(f"timers: {', '.join(sorted(changed))} changed; restarting", err=True)
            if self._process.poll() is None:
                self._process.terminate()
            self._process.wait()
            if not self._stop.is_set():
                self._start()
        elif self._process.poll() is not None and not self._told:
            typer.echo("timers: the pod has ended; waiting for a change", err=True)
            self._told = True

    def end(self) -> int:
        """Wait for the child to end. Returns its exit code."""
        return 0 if self._process is None else self._process.wait()

    def _start(self) -> None:
        command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--reload")]
        self._process, self._told = subprocess.Popen(command, start_new_session=True), False

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        """Pass the signal on. The first ends the pod in order, the second faster."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
