"""Client generators: each makes a client from the OpenAPI document, which is then used against a running API."""

import asyncio
import json
import os
import shutil
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.api.conftest import done
from tests.api.harness import running_api
from tests.cli.commands import clean_environment
from tests.servers import start_server
from timers.api.openapi import document
from timers.core.model import Timer
from timers.processor import Context, processor

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LOCK: Final = ROOT / "requirements-clients.lock"
TYPESCRIPT: Final = ROOT / ".cache" / "typescript" / "installed"

# The first test to run installs the generators.
pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]


@processor("log")
async def log(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


async def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a program and return what it printed. Raises AssertionError if it fails."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=cwd,
        env=clean_environment(variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode(errors="replace")
    assert process.returncode == 0, output
    return output


@pytest.fixture
async def tools() -> Path:
    """The programs of the locked generators, in an environment that is kept until the lock changes."""
    made = ROOT / ".cache" / f"clients-{sys.version_info.minor}-{zlib.crc32(LOCK.read_bytes()):08x}"
    if not (made / "complete").exists():
        shutil.rmtree(made, ignore_errors=True)
        await run(sys.executable, "-m", "venv", "--without-pip", made, cwd=ROOT)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made / "bin" / "python")
        await run(*pip, "install", "--quiet", "--require-hashes", "-r", LOCK, cwd=ROOT)
        (made / "complete").touch()
    return made / "bin"


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a running API, with the document as a file."""
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    server = await start_server("redis", tmp_path)
    async with running_api(server.url, [done, log], works=True) as api:
        yield api.server.url
    await server.stop()


async def test_openapi_python_client(tools: Path, url: str, tmp_path: Path) -> None:
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"  # it formats its output with ruff
    options = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "opc")
    told = await run(tools / "openapi-python-client", *options, cwd=tmp_path, PATH=path)
    warnings = [line for line in told.splitlines() if line.startswith(("WARNING", "ERROR", "Unsupported"))]
    assert warnings == [
        "WARNING parsing POST /v1/timers/batch within many_timers.",
        "Unsupported content type application/x-ndjson",
    ], told
    program = HERE / "use_openapi_python_client.py"
    assert "used" in await run(tools / "python", program, url, cwd=tmp_path, PYTHONPATH=str(tmp_path))


async def test_datamodel_code_generator(tools: Path, url: str, tmp_path: Path) -> None:
    options = ("--input", "openapi.json", "--input-file-type", "openapi", "--output", "models.py")
    kind = ("--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin")
    await run(tools / "datamodel-codegen", *options, *kind, cwd=tmp_path)
    program = HERE / "use_datamodel_code_generator.py"
    assert "used" in await run(tools / "python", program, url, cwd=tmp_path, PYTHONPATH=str(tmp_path))


@pytest.mark.skipif(
    not TYPESCRIPT.exists() or shutil.which("node") is None,
    reason="tests/generators/typescript/run has not installed its packages",
)
async def test_typescript(url: str) -> None:
    told = await run(HERE / "typescript" / "run", url, cwd=ROOT)
    assert "openapi-typescript: compiled and used" in told
    assert "@hey-api/openapi-ts: compiled and used" in told
