"""The help of the command line: every command and every option says what it does."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

from timers.cli import COMMANDS


def texts(command: Any, path: str) -> Iterator[tuple[str, str | None]]:
    """The help of a command, of its options and arguments, and of the commands below it."""
    yield path, command.help
    yield from ((f"{path} {each.opts[-1]}", getattr(each, "help", None)) for each in command.params)
    for name, below in getattr(command, "commands", {}).items():
        yield from texts(below, f"{path} {name}")


def test_every_command_and_option_has_a_help() -> None:
    """`timers watch -o` had none."""
    groups = [typer.main.get_group(import_module(f"timers.cli.{module}").app) for module in COMMANDS]
    found = dict(said for group in groups for name, command in group.commands.items() for said in texts(command, name))
    assert "watch --output" in found
    assert [name for name, said in found.items() if not said] == []
