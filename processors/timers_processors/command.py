"""Owns the start of the `timers` command. It is outside `timers`, so it can tell when another module hides that
name."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    open_closed_streams()
    shadow = shadowing()
    if shadow is not None:
        sys.exit(
            f"timers: {shadow} hides the installed package `timers`; rename it, or take its folder out of PYTHONPATH"
        )
    if sys.argv[1:] == ["--version"]:  # scripts and prompts ask this, and must not wait for the imports below
        from importlib.metadata import version  # noqa: PLC0415 (with all that reads mail, which the help does not need)

        with suppress(OSError):  # the command says it
            sys.stdout.write(f"timers {version('redis-timers')}\n")
            sys.stdout.flush()
            return
    from timers.cli import main as command  # noqa: PLC0415 (a shadowing module of that name would not have it)

    command()


def open_closed_streams() -> None:
    """Send what goes to an output that the caller has closed (`2>&-`) nowhere. Python has None in its place, and the
    next connection would get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the process ends)


def shadowing() -> str | None:
    """The path of a module that hides the installed package `timers`; None if Python finds the package itself."""
    found = find_spec("timers")
    if found is None or found.origin is None or Path(found.origin).with_name("processor.py").is_file():
        return None
    return found.origin
