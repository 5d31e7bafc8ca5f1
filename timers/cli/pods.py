"""Owns the commands that run a pod, `timers dev` and `timers serve`, and restart it when processors' files change; and
`timers new-processor`, which writes a starter plugin."""

import keyword
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.metadata import entry_points, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import FrameType
from typing import Annotated, Final

import typer

from timers import logs
from timers.app import dev, run, serve
from timers.cli.shared import note
from timers.core.fields import check_prefix
from timers.errors import ConfigurationError, InvalidInput, Refused
from timers.logs import get_logger
from timers.processor import DISTRIBUTION, ENTRY_POINT_GROUP
from timers.settings import Settings, load_settings, service_links

app = typer.Typer()

_EXAMPLE: Final = (
    '{"prefix": "send-message", "id": "hello", "delay": "5s", "if_exists": "replace", '
    '"payload": {"email": "ada@example.org", "name": "Ada", "text": "Hello {name}, your timer has fired."}}'
)


def _check_roles(given: str | None) -> str | None:
    if given is not None and not {"api", "worker"}.issuperset(given.split(",")):
        raise typer.BadParameter(f"{given!r} is not accepted; expected api, worker, or api,worker")
    return given


@app.command("dev")
def run_dev(
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file here or of a processor changes.")
    ] = False,
) -> None:
    """Run everything in one process: API, worker and, if no Redis is configured, an embedded server."""
    settings = _settings(os.environ)
    if settings.outbox is None:  # in the environment, where the processors find it, too
        os.environ["TIMERS_OUTBOX"] = str(settings.data_dir / "outbox")
        settings = load_settings()
    if reload:
        raise typer.Exit(reloading(folders_of(settings.processors)))
    raise typer.Exit(run(dev(settings, partial(_announce, settings))))


@app.command("serve")
def run_serve(
    roles: Annotated[
        str | None,
        typer.Option(metavar="api,worker", help="What this pod does; default TIMERS_ROLES.", callback=_check_roles),
    ] = None,
) -> None:
    """Run one pod against the configured Redis."""
    settings = _settings({**os.environ, **({} if roles is None else {"TIMERS_ROLES": roles})})
    raise typer.Exit(run(serve(settings, _log_ready)))


def _settings(environ: Mapping[str, str]) -> Settings:
    settings = load_settings(environ)
    logs.configure(settings.log_format, settings.log_level)
    if links := service_links(environ):
        get_logger("timers").info("Kubernetes' service links are not settings and are ignored", names=links)
    return settings


def _log_ready(api: str | None, redis: str, probes: str | None) -> None:
    get_logger("timers").info("ready", api=api, probes=probes, redis=redis)


def _announce(settings: Settings, api: str | None, redis: str, _probes: str | None) -> None:
    lines = [
        f"timers {version(DISTRIBUTION)} is running; Ctrl-C stops it",
        *([] if api is None else [f"  Dashboard  {api}/"]),
        f"  API        {api or 'not on this pod (TIMERS_ROLES)'}",
        f"  Redis      {redis}",
    ]
    if api is not None:
        written = f"written to {(settings.outbox or Path()).absolute()}"
        lines += [
            "",
            "Try it with a message that is due in 5 seconds:",
            f"  curl -i {api}/v1/timers -H 'Content-Type: application/json' -d '{_EXAMPLE}'",
            "Then run `timers get send-message hello`. The message is "
            + (written if settings.smtp_url is None else "sent with TIMERS_SMTP_URL: put your address in"),
        ]
    typer.echo("\n".join(lines))


POLL_MS: Final = 100
"""How often this process polls its child."""


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
    """Run this command without `--reload` until a signal ends it, and restart it after each change; if it has ended by
    itself, because its code is broken, only then. Returns its exit code."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415 (the extra `reload`)
    except ImportError:
        raise ConfigurationError("--reload needs watchfiles: pip install 'redis-timers[reload]'") from None
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # watchfiles only counts changes; here they are named
    command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--reload")]
    stop, is_reported = threading.Event(), False
    pod: subprocess.Popen[bytes] | None = None

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        """The first signal ends the pod in order, the second faster."""
        stop.set()
        if pod is not None:
            pod.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    polls = watch(*folders, watch_filter=PythonFilter(), rust_timeout=POLL_MS, yield_on_timeout=True, stop_event=stop)
    for changes in polls:  # the first comes once the folders are watched
        if pod is not None and changes:
            note(f"{', '.join(sorted({Path(path).name for _, path in changes}))} changed; restarting")
            pod.terminate()
            pod.wait()
        if pod is None or (changes and not stop.is_set()):
            # In its own session, so that Ctrl-C reaches it only once, through this process.
            pod, is_reported = subprocess.Popen(command, start_new_session=True), False
        elif pod.poll() is not None and not is_reported:
            note("the pod has ended; waiting for a change")
            is_reported = True
    return 0 if pod is None else pod.wait()


_FILES: Final = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "src/{module}/__init__.py": "processor.py",
    "src/{module}/py.typed": None,
    "tests/test_{module}.py": "test_processor.py",
}
"""The files that the command writes, each with its template in `plugin/`."""


@app.command("new-processor")
def new_processor(
    name: Annotated[str, typer.Argument(help="The prefix that the processor serves, and the new folder's name.")],
) -> None:
    """Write a starter plugin package: a processor, its entry point, a test and a README."""
    check_prefix(name, "NAME")
    folder = Path(name)
    if folder.exists():
        raise Refused(f"{folder} already exists; give another name, or remove it")
    module = _module(name)
    values = {"name": name, "prefix": name, "module": module, "function": module}
    for path, template in _FILES.items():
        file = folder / path.format(module=module)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "" if template is None else (files("timers.cli") / "plugin" / f"{template}.txt").read_text()
        file.write_text(Template(text).substitute(values))
        typer.echo(file)
    note(f"next: cd {folder} && pip install -e '.[test]' && pytest")


def _module(name: str) -> str:
    """The module's name. Raises InvalidInput for a prefix that cannot name a package and a module."""
    module = re.sub(r"[-.]", "_", name)
    taken = keyword.iskeyword(module) or module.split("_")[0] == "timers" or find_spec(module) is not None
    if taken or not re.fullmatch(r"[a-z](\w*[a-z0-9])?", module):
        rule = "a prefix that can also name a module: it starts with a letter, does not end in '_', and is not taken"
        raise InvalidInput.of("NAME", name, rule)
    return module
