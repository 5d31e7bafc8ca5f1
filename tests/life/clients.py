"""Clients that know nothing of the service: `redis-cli`, and a program in another language."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

RESP_MJS: Final = Path(__file__).with_name("resp.mjs")
CLIENTS: Final = ("redis-cli", "node")


class Client:
    """One of these clients, for the server at a socket."""

    def __init__(self, name: str, url: str) -> None:
        socket = unquote(urlsplit(url).path)
        options = {"redis-cli": ["-s", socket, "-e"], "node": [str(RESP_MJS), socket]}
        self._command = [_program(name), *options[name]]

    async def __call__(self, *words: str) -> str:
        """Send one command and return what the client prints."""
        process = await asyncio.create_subprocess_exec(*self._command, *words, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0, out
        return out.decode().strip()


def _program(name: str) -> str:
    """The program's path. Without it the test is skipped, or fails if CI is set."""
    path = shutil.which(name)
    if path is None:
        reason = f"no {name} on this machine"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
