"""The command line, `timers`. It writes data to stdout and everything else to stderr. Exit codes: 0 success, 1 refused
or failed, 2 wrong usage.

A command's module is imported when the command is called: the help, a misspelt word and the completion of a command's
name need none of the service, and `timers get` none of what runs a pod.
"""

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module  # noqa: TID251 (the names are ours)
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from timers.errors import FieldError, InvalidInput, TimersError

URL_NAME: Final = "TIMERS_REDIS_URL"

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "pods": {
        "dev": "Run everything in one process: API, worker and, if no Redis is configured, an embedded server.",
        "serve": "Run one pod against the configured Redis.",
        "new-processor": "Write a starter plugin package: a processor, its entry point, a test and a README.",
    },
    "timers": {
        "create": "Arm a timer, or many with --batch.",
        "change": "Change fields of a scheduled timer, or of all that match a filter.",
        "get": "Show a timer.",
        "fire": "Make a scheduled timer due now.",
        "cancel": "Cancel a scheduled timer, or all that match a filter.",
        "reschedule": "Change the due time of a scheduled timer, or of all that match a filter.",
        "retry": "Arm a failed, unhandled or cancelled timer again, due now; or all that match a filter.",
        "purge": "Remove the record of a timer, or of all that match a filter.",
        "ls": "List timers page by page: by status (running first), prefix, and due or end time.",
        "stats": "Show counts, lateness, the age of the oldest overdue timer, and whether notifications arrive.",
    },
    "watching": {"watch": "Show a live view on a terminal: q quits, p pauses."},
    "operating": {
        "replay": "Run timers again that failed, became unhandled or were skipped, and were due in a window of time.",
        "init": "Claim an empty db for the service.",
        "prefixes": "List the prefixes and who runs them, or forget one.",
        "pause": "Start no more timers of a prefix.",
        "resume": "Start the timers of a paused prefix again.",
        "pods": "List the live pods.",
        "doctor": "Check the server, the data and the pods, and say what to do.",
        "config": "Show the settings in effect, where each comes from, and the processors found.",
        "keys": "Manage API keys.",
    },
    "ledger": {
        "db": "The ledger's database: bring its tables up to date, show their state, fill them again, or detach Redis.",
        "rebuild": "Restore to Redis the timers that are missing or older there than in the ledger.",
    },
    "planning": {"plan": "Say how much a load needs: servers, memory, pods, connections; and what breaks first."},
    "moving": {
        "export": "Write all timers to stdout, one JSON object per line, with declarations, pauses and keys.",
        "import": "Put the timers of an export into this db.",
        "copy": "Move the service to another server, to a cluster, or to another number of shards.",
    },
    "benching": {"bench": "Measure this server: round trips, arming, lateness, a burst."},
}
"""By module: the commands in its `app`, each with the first sentence of its help."""

_OPTIONS: Final = {
    "prefix": "PREFIX",
    "id": "ID",
    "delay": "--in",
    "due_at": "--at",
    "due_after": "--from",
    "due_before": "--to",
    "tags": "--tag",
    "prefixes": "--prefix",
    "rights": "--right",
}
"""The names of fields on the command line. Any other field `like_this` is the option `--like-this`, and so is one that
was typed so."""

_TRACING: Final = "opentelemetry"
"""What redis-py imports if it is installed, for metrics that it keeps only if a program asks: an eighth of the time of
a command. A module that is None is not found."""

app = typer.Typer(
    name="timers",
    help="A durable timer service for Redis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 (a fifth of the time that the help takes)

        typer.echo(f"timers {version('redis-timers')}")
        raise typer.Exit


def _use_url(context: typer.Context, url: str | None) -> None:
    """Set the URL in the environment, where everything that reads settings finds it, in this process and in those it
    starts."""
    if url == "":  # the settings take an empty value for none, so another server would be used
        raise typer.BadParameter("it is empty; expected a URL such as redis://127.0.0.1:6379/5")
    if url is not None:
        from timers.setting_values import check_given_url  # noqa: PLC0415 (the help needs none of this)

        check_given_url("--url", url)
        os.environ[URL_NAME] = url
        os.environ.pop(f"{URL_NAME}_FILE", None)
        context.meta[URL_NAME] = "--url"


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    _url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help=f"The Redis to use; default {URL_NAME}.", callback=_use_url, expose_value=False
        ),
    ] = None,
) -> None:
    """A durable timer service for Redis."""


class _Later(TyperCommand):
    """A command as the list of commands shows it; another takes its place when it is called."""

    def __init__(self, name: str, said: str, module: str, option: Any) -> None:
        super().__init__(name, help=said)
        self._module, self._option = module, option

    def make_context(self, *given: Any, **more: Any) -> Any:
        if self._module != "pods" and _TRACING not in sys.modules:
            sys.modules[_TRACING] = None  # type: ignore[assignment]
        group = typer.main.get_group(import_module(f"timers.cli.{self._module}").app)
        return _with(self._option, group.commands[self.name or ""]).make_context(*given, **more)


def _with(option: Any, command: Any) -> Any:
    """Add an option to a command and to its subcommands."""
    command.params.append(option)
    for below in command.commands.values() if isinstance(command, TyperGroup) else ():
        _with(option, below)
    return command


def main() -> None:
    """Run the command line of this process and exit."""
    # What the imports make stays until the end. Looking through it for garbage, meanwhile and at the end, took a
    # quarter of a short command's time. (A pod looks after itself: `collect_garbage_rarely`.)
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    command: Any = typer.main.get_command(app)
    (url,) = [option for option in command.params if "--url" in option.opts]  # every command takes it
    for module, commands in COMMANDS.items():
        command.commands |= {name: _Later(name, said, module, url) for name, said in commands.items()}
    try:
        command(prog_name="timers")
    except InvalidInput as error:
        _fail("; ".join(str(_as_option(field)) for field in error.errors), 2)
    except (TimersError, OSError) as error:  # such as a full disk that takes no more of an export
        _fail(str(error) or repr(error), 1)


def _as_option(error: FieldError) -> FieldError:
    field, dot, rest = error.field.removeprefix("filter.").partition(".")
    option = f"--{field.replace('_', '-')}" if field.isidentifier() and field.islower() else field
    is_typed = option in (word.partition("=")[0] for word in sys.argv)
    return FieldError((option if is_typed else _OPTIONS.get(field, option)) + dot + rest, error.value, error.accepted)


def _fail(reason: str, code: int) -> NoReturn:
    typer.echo(f"timers: {' '.join(reason.split())}", err=True)
    _drop_what_stdout_refuses()
    sys.exit(code)


def _drop_what_stdout_refuses() -> None:
    """Python would try once more at the end, complain, and exit with 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
