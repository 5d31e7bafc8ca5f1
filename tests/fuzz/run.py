"""A fuzz run: a server, an API with a worker, processors and a key, and schemathesis as a process."""

import asyncio
import json
import os
import string
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.api.harness import running_api
from tests.servers import start_server
from timers.access import RIGHTS, make_key
from timers.api.openapi import document
from timers.client.fleet import Declared
from timers.core.model import Timer
from timers.errors import NoProcessor
from timers.processor import Context, Processor, processor
from timers.store.filters import Visible

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Ran:
    """How schemathesis ended: its exit code (0 if it found nothing), and what it printed."""

    code: int
    output: str

    @property
    def summary(self) -> str:
        """The end of what it printed."""
        return self.output[self.output.rfind("= SUMMARY =") :]


class _Anything(Declared):
    """A registry that has a processor for every prefix."""

    async def refusals(self, prefixes: Collection[str], visible: Visible | None = None) -> dict[str, NoProcessor]:
        return {}


def _processors() -> Sequence[Processor]:
    """One processor for each first character, so that some timers run."""

    async def done(_timer: Timer, _context: Context) -> None:
        """Do nothing."""

    return [processor(character)(done) for character in string.ascii_lowercase + string.digits]


async def fuzz(folder: Path, options: Sequence[str]) -> Ran:
    """Run schemathesis with these options on all operations of the document."""
    server = await start_server("redis", folder)
    try:
        secret, key = make_key(["*"], RIGHTS)
        async with running_api(server.url, _processors(), works=True, keys=key.entry) as api:
            api.client._declared = _Anything(api.store)
            # Event streams end after their head; otherwise they would never end.
            await api.client.end_events()
            return await _run(api.server.url, folder, ("--header", f"Authorization: Bearer {secret}", *options))
    finally:
        await server.stop()


def _ruled(whole: dict[str, Any]) -> dict[str, Any]:
    """The document with the rules between fields applied. The items of a batch may be anything, because an invalid
    timer does not make the batch invalid."""
    schemas = {name: {**schema, **schema.get("x-rules", {})} for name, schema in whole["components"]["schemas"].items()}
    batch = schemas["Batch"]
    timers = {**batch["properties"]["timers"], "items": {"anyOf": [batch["properties"]["timers"]["items"], {}]}}
    schemas["Batch"] = {**batch, "properties": {"timers": timers}}
    return {**whole, "components": {**whole["components"], "schemas": schemas}}


async def _run(url: str, folder: Path, options: Sequence[str]) -> Ran:
    # As a file, because schemathesis does not test the call from which it gets the document.
    described = folder / "openapi.json"
    described.write_text(json.dumps(_ruled(document())))
    command = [str(Path(sys.executable).with_name("st")), "--config-file", str(_HERE / "schemathesis.toml"), "run"]
    process = await asyncio.create_subprocess_exec(
        *command,
        str(described),
        f"--url={url}",
        "--no-color",
        "--continue-on-failure",
        *options,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.values", "PYTHONPATH": str(_ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return Ran(process.returncode or 0, output.decode(errors="replace"))
