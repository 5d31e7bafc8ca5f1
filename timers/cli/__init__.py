"""The command line, `timers`. It writes data to stdout and everything else to stderr. Exit codes: 0 success, 1 refused
or failed, 2 wrong usage."""

import sys
from importlib.metadata import version
from typing import Annotated, Final, NoReturn

import typer

from timers.cli import benching, config, creating, keys, operating, plugins, pods, timers, watching
from timers.cli.session import add_url
from timers.errors import FieldError, InvalidInput, TimersError
from timers.processor import DISTRIBUTION

_OPTIONS: Final = {
    "prefix": "PREFIX",
    "id": "ID",
    "delay": "--in",
    "due_at": "--at",
    "payload": "--payload",
    "repeat": "--repeat",
    "retry": "--retry",
    "missed": "--missed",
    "timeout": "--timeout",
    "tags": "--tag",
    "metadata": "--metadata",
    "batch": "--batch",
    "if_exists": "--if-exists",
    "prefixes": "--prefix",
    "rights": "--right",
    "rate": "--rate",
    "pending": "--pending",
    "most_prefixes": "--most-prefixes",
    "name": "--name",
    "status": "--status",
    "tag": "--tag",
    "due_after": "--due-after",
    "due_before": "--due-before",
    "limit": "--limit",
    "cursor": "--cursor",
    "from": "--from",
    "to": "--to",
    "remove": "--remove",
}
"""The names of a timer's fields on the command line."""

app = typer.Typer(
    name="timers",
    help="A durable timer service for Redis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (pods, creating, timers, watching, operating, keys, benching, config, plugins):
    commands.add_to(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"timers {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A durable timer service for Redis."""


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        add_url(typer.main.get_command(app))(prog_name="timers")
    except InvalidInput as error:
        _fail("; ".join(str(_as_option(field)) for field in error.errors), 2)
    except TimersError as error:
        _fail(str(error), 1)


def _as_option(error: FieldError) -> FieldError:
    field, dot, rest = error.field.removeprefix("filter.").partition(".")
    return FieldError(_OPTIONS.get(field, field) + dot + rest, error.value, error.accepted)


def _fail(reason: str, code: int) -> NoReturn:
    typer.echo(f"timers: {' '.join(reason.split())}", err=True)
    sys.exit(code)
