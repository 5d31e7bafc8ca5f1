"""Owns where peers are installed: each in an environment of its own under `.peers/`, made once for its versions."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.bench.peers.catalogue import Peer

ROOT: Final = Path(__file__).parents[3]
ENVIRONMENTS: Final = ROOT / ".peers"
ADAPTERS: Final = "tests.bench.peers.adapters"
INSTALL_TIMEOUT_S: Final = 600.0


class CannotInstall(Exception):
    """A peer is not to be had here; the message says why."""


def command(peer: Peer, verb: str) -> tuple[str, ...]:
    """How its adapter is run."""
    if peer.node:
        return ("node", str(Path(__file__).parent / "adapters" / peer.program), verb)
    python = str(_folder(peer) / "bin" / "python") if peer.packages else sys.executable
    return (python, "-m", f"{ADAPTERS}.{peer.adapter or peer.name}", verb)


def environment(peer: Peer) -> Mapping[str, str]:
    """The variables with which its programs are found."""
    path = f"{_folder(peer) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NODE_PATH": str(_folder(peer) / "node_modules")}


async def install(peer: Peer) -> None:
    """Make its environment unless it is there already. Raises CannotInstall."""
    stamp = _folder(peer) / ".complete"
    wanted = f"{sys.version} {' '.join(peer.packages)}"
    if not peer.packages or (stamp.exists() and stamp.read_text() == wanted):
        return
    shutil.rmtree(_folder(peer), ignore_errors=True)
    _folder(peer).mkdir(parents=True)
    if peer.node:
        await _do("npm", "install", "--prefix", str(_folder(peer)), "--no-audit", "--no-fund", *peer.packages)
    else:
        await _do(sys.executable, "-m", "venv", str(_folder(peer)))
        await _do(str(_folder(peer) / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.packages)
    stamp.write_text(wanted)


def _folder(peer: Peer) -> Path:
    return ENVIRONMENTS / (peer.adapter or peer.name)


async def _do(*words: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise CannotInstall(f"{words[0]} cannot be run: {error}") from None
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise CannotInstall(f"`{Path(words[0]).name} {words[1]} …` took longer than {INSTALL_TIMEOUT_S:g} s") from None
    if process.returncode:
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        raise CannotInstall(f"`{Path(words[0]).name} {words[1]} …` ended with {process.returncode}: {' '.join(last)}")
