"""Servers that the script of the containers starts, with the secrets that the stack makes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.docker.dockerfile import FOLDER
from tests.docker.test_compose import stack
from tests.servers import binary_for
from timers.embedded import Family
from timers.settings import load_settings

HOST: Final = "127.0.0.1"

_AGAIN_SECONDS: Final = 5.0


class Started:
    """Each server has a folder of its own, named like its port."""

    def __init__(self, family: Family, folder: Path) -> None:
        assert stack(folder, "secrets").returncode == 0
        self.folder, self.secrets = folder, folder / "docker" / "secrets"
        self._family, self._running = family, dict[int, subprocess.Popen[bytes]]()

    def make_secrets_anew(self) -> None:
        """As after somebody has removed them."""
        shutil.rmtree(self.secrets)
        assert stack(self.folder, "secrets").returncode == 0

    def url_of_pods(self, name: str) -> str:
        """What the pods are given."""
        url = load_settings({}, self.secrets / name).redis_url
        assert url is not None
        return url

    @property
    def password(self) -> str:
        """Of the users that are no pods."""
        return (self.secrets / "replication").read_text().strip()

    def start(self, what: str, name: str, port: int, **variables: object) -> None:
        """Start one that others know as `name`, on the data of before."""
        data = self.folder / str(port)
        data.mkdir(exist_ok=True)
        given = {"DATA": data, "SECRETS": self.secrets, "PORT": port, "SERVER": binary_for(self._family), **variables}
        with (data / "log").open("ab") as log:
            self._running[port] = subprocess.Popen(
                [str(FOLDER / "redis" / "start"), what, name],
                env=os.environ | {each: str(value) for each, value in given.items()},
                stdout=log,
                stderr=log,
            )

    def kill(self, port: int) -> None:
        """Kill one."""
        ended = self._running.pop(port)
        ended.kill()
        ended.wait()

    def down(self) -> None:
        """Stop all: what they have answered is on the disk then. A replica that has just synchronized refuses to stop
        while it writes its first append-only file, so each is asked again."""
        for each in self._running.values():
            each.terminate()
        for each in self._running.values():
            while True:
                try:
                    each.wait(_AGAIN_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    each.terminate()
        self._running.clear()
