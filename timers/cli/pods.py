"""Owns the commands that run a pod: `timers dev` and `timers serve`."""

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Final

import typer

from timers import logs
from timers.app import Announce, Started, dev, run, serve
from timers.cli.reloading import folders_of, reloading
from timers.logs import get_logger
from timers.processor import DISTRIBUTION
from timers.settings import Settings, load_settings, service_links

_EXAMPLE: Final = (
    '{"prefix": "send-message", "id": "hello", "delay": "5s", "if_exists": "replace", '
    '"payload": {"email": "ada@example.org", "name": "Ada", "text": "Hello {name}, your timer has fired."}}'
)


def _check_roles(given: str | None) -> str | None:
    if given is not None and not {"api", "worker"}.issuperset(given.split(",")):
        raise typer.BadParameter(f"{given!r} is not accepted; expected api, worker, or both with a comma")
    return given


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("dev")(run_dev)
    app.command("serve")(run_serve)


def run_dev(
    reload: Annotated[bool, typer.Option("--reload", help="Restart when processors' files change.")] = False,
) -> None:
    """Run everything in one process: API, worker and, where no Redis is configured, a server of its own."""
    settings = _settings(os.environ)
    if reload:
        raise typer.Exit(reloading(folders_of(settings.processors)))
    raise typer.Exit(run(dev(settings, _welcome(settings))))


def run_serve(
    roles: Annotated[
        str | None,
        typer.Option(metavar="api,worker", help="What this pod does; else TIMERS_ROLES.", callback=_check_roles),
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


def _log_ready(started: Started) -> None:
    get_logger("timers").info("ready", api=started.api_url, probes=started.probe_url, redis=started.redis)


def _welcome(settings: Settings) -> Announce:
    def say(started: Started) -> None:
        typer.echo("\n".join(_where(settings, started)))
        if started.api_url is not None:
            typer.echo("\n".join(_to_try(settings, started.api_url)))

    return say


def _where(settings: Settings, started: Started) -> list[str]:
    server = started.embedded
    redis = (
        started.redis
        if server is None
        else f"{server.family} {server.version}, embedded, data in {settings.data_dir.absolute()}"
    )
    return [
        f"timers {version(DISTRIBUTION)} is running; Ctrl-C stops it",
        *([] if started.api_url is None else [f"  Dashboard  {started.api_url}/"]),
        f"  API        {started.api_url or 'not on this pod (TIMERS_ROLES)'}",
        f"  Redis      {redis}",
    ]


def _to_try(settings: Settings, url: str) -> list[str]:
    return [
        "",
        "Try it: a message, due in 5 seconds",
        f"  curl -i {url}/v1/timers -H 'Content-Type: application/json' -d '{_EXAMPLE}'",
        f"Then look at it with `timers get send-message hello`; what was sent is in {settings.outbox.absolute()}",
    ]
