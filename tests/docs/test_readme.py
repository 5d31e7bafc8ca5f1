"""The documents' examples work: a new user's shell runs their code blocks as written, beside a pod of `make run`.

`sh` and `python` blocks are run, in one shell and one folder per document:

- A shell block that ends in `make run` starts the pod, or restarts it with the settings in front of it.
- A python block that begins with the comment `# name.py` is saved under that name; others are run.
- A `text` block is the expected output of the block before it.

Blocks of other languages (`ini`, `json`, `toml` …) are only read.
"""

import asyncio
import json
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.cli.commands import Process, clean_environment
from tests.nursery import nursery
from tests.orders import SOCKET, shell_function
from tests.waiting import eventually
from timers import Status, TimerClient
from timers.embedded import running_url
from timers.settings import SETTING_NAMES

ROOT: Final = Path(__file__).parents[2]
ADDRESS: Final = "127.0.0.1:8080"
END_OF_BLOCK: Final = "--- block has ended ---"

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_START: Final = re.compile(r"((?:\w+=\S+ )*)make run")
_SAVED: Final = re.compile(r"# (\w+\.py)\n")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document. `line` is the line where its text begins."""

    line: int
    language: str
    text: str


def blocks_of(document: Path) -> Iterator[Block]:
    """All blocks of a document, in order."""
    text = document.read_text("utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(text.count("\n", 0, found.start(2)) + 1, found[1], found[2])


PAGES: Final = [
    page for page in sorted((ROOT / "docs").glob("*.md")) if {"sh", "python"} & {b.language for b in blocks_of(page)}
]


class Reader:
    """A new user who follows one document, in an empty folder."""

    def __init__(self, folder: Path, shell: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self._shell = shell
        self._pod: Process | None = None
        self._port = "0"
        self._said = ""

    async def follow(self, block: Block) -> None:
        """Do what the block says, and compare the output with the one it shows."""
        start = _START.fullmatch(block.text.strip())
        saved = _SAVED.match(block.text)
        if start is not None:
            await self.start_pod(start[1])
        elif block.language == "python" and saved is not None:
            (self.folder / saved[1]).write_text(block.text)
        elif block.language == "python":
            program = self.folder / f"line_{block.line}.py"
            program.write_text(block.text)
            await self._type(f"python {program.name}\n", block)
        elif block.language == "sh":
            await self._type(block.text, block)
        elif block.language == "text":
            assert self._said.strip() == block.text.strip(), f"line {block.line}"

    async def start_pod(self, settings: str = "") -> None:
        """Start a pod as `make run` does. If one is running, stop it first; the new one has the same address."""
        if self._pod is not None:
            self._pod.signal(signal.SIGINT)
            assert (await asyncio.to_thread(self._pod.end)).code == 0, self._pod.err
        given = dict(pair.split("=", 1) for pair in settings.split())
        pod = self._pod = Process(self.folder, "dev", TIMERS_HTTP_PORT=self._port, **given)

        async def look() -> re.Match[str] | None:
            assert pod.alive, pod.err
            return re.search(r"^  API +http://127\.0\.0\.1:(\d+)$", pod.out, re.MULTILINE)

        self._port = (await eventually(look, "the pod is up"))[1]

    async def nothing_is_due(self) -> bool:
        """Whether no timer is due or runs."""
        async with TimerClient(await running_url(self.folder / ".timers")) as timers:
            stats = (await timers.stats()).to_json()
        return stats["overdue_ms"] == 0 and not stats["by_status"].get("running")

    async def _type(self, lines: str, block: Block) -> None:
        if self._pod is None:
            await self.start_pod()
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        typed = lines.replace(ADDRESS, f"127.0.0.1:{self._port}")
        self._shell.stdin.write(f"{typed}\necho '{END_OF_BLOCK}'\n".encode())
        try:
            said = await self._shell.stdout.readuntil(f"{END_OF_BLOCK}\n".encode())
        except asyncio.IncompleteReadError as ended:  # `set -e` ends the shell at the first command that fails
            raise AssertionError(f"the block at line {block.line} failed:\n{ended.partial.decode()}") from None
        self._said = said.decode().removesuffix(f"{END_OF_BLOCK}\n")
        await self._pause()

    async def _pause(self) -> None:
        """Wait until due timers have run, as a reader who looks at the answers does."""
        url = await running_url(self.folder / ".timers")
        async with TimerClient(url) as timers:

            async def look() -> bool:
                stats = await timers.stats()
                running = sum(counts.get(Status.RUNNING, 0) for counts in stats.counts.values())
                return stats.overdue_ms == 0 and running == 0

            await eventually(look, "what is due has run")

    def leave(self) -> None:
        """Stop the pod."""
        if self._pod is not None:
            self._pod.kill()


@asynccontextmanager
async def reader() -> AsyncIterator[Reader]:
    """A reader in a folder with a short path, because the path of the server's socket must be short."""
    with tempfile.TemporaryDirectory(prefix="timers-") as name:
        folder = Path(name)
        (folder / ".venv").symlink_to(sys.prefix)
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-eo", "pipefail"),
            cwd=folder,
            env=clean_environment({SOCKET: str(nursery().fileno())}),
            pass_fds=(nursery().fileno(),),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        assert shell.stdin is not None
        shell.stdin.write(f"{shell_function()}\n".encode())
        one = Reader(folder, shell)
        try:
            yield one
        finally:
            one.leave()
            if shell.returncode is None:
                shell.kill()
            await shell.wait()


async def test_the_readme_runs_as_written() -> None:
    async with reader() as user:
        for block in blocks_of(ROOT / "README.md"):
            await user.follow(block)
            if "timers fire" in block.text:  # a reader takes longer than a run to go on: what runs cannot be cancelled
                await eventually(user.nothing_is_due, "what was fired has run")
        sent = [json.loads(path.read_text()) for path in (user.folder / ".timers" / "outbox").iterdir()]
        assert [message["to"] for message in sent] == ["ada@example.org"]
        async with TimerClient(await running_url(user.folder / ".timers")) as timers:
            assert (await timers.get("welcome", "ada")).occurrence == 2, "its own processor re-armed it"


@pytest.mark.drill
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_a_page_runs_as_written(page: Path) -> None:
    async with reader() as user:
        for block in blocks_of(page):
            await user.follow(block)


async def test_a_failing_block_is_reported_with_its_line() -> None:
    async with reader() as user:
        with pytest.raises(AssertionError, match="line 7 failed:\nno such luck"):
            await user.follow(Block(7, "sh", "echo no such luck; false\n"))


def test_the_reference_has_every_setting() -> None:
    text = (ROOT / "docs" / "reference.md").read_text("utf-8")
    assert [name for name in SETTING_NAMES if f"`{name}`" not in text] == []


def anchors_of(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "document",
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "examples" / "README.md",
        ROOT / "processors" / "README.md",
        ROOT / "timers" / "ARCHITECTURE.md",
        ROOT / "timers" / "store" / "PROTOCOL.md",
        ROOT / "docker" / "README.md",
        *(ROOT / "tests").glob("**/README.md"),
    ],
    ids=lambda document: str(document.relative_to(ROOT)),
)
def test_every_link_leads_somewhere(document: Path) -> None:
    for found in _LINK.finditer(document.read_text("utf-8")):
        target, _, anchor = (found[1] or found[2]).partition("#")
        if target.startswith(("http://", "https://")):
            continue
        path = document.parent / target if target else document
        assert path.exists(), found[0]
        assert not anchor or anchor in anchors_of(path), found[0]


LINES: Final = re.findall(r"^pytest .+?(?=  )", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_the_lines_in_contributing_run_tests(line: str) -> None:
    """One chose tests by a word that none of them has."""
    paths = [ROOT / word for word in line.split() if word.startswith("tests/")]
    word = line.partition(" -k ")[2]
    assert paths
    assert all(path.is_dir() or re.search(rf"def test_\w*{word}", path.read_text("utf-8")) for path in paths)
