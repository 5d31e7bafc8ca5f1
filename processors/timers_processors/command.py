"""Owns the start of the `timers` command, outside `timers`, so that it can tell when another module has that name."""

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run the command line of this process and exit."""
    stranger = shadowing()
    if stranger is not None:
        sys.exit(
            f"timers: {stranger} hides the installed package `timers`; rename it, or take its folder out of PYTHONPATH"
        )
    if sys.argv[1:] == [
        "--version"
    ]:  # asked by scripts and prompts, which must not wait for all that is imported below
        sys.stdout.write(f"timers {version('redis-timers')}\n")
        return
    from timers.cli import main as command  # noqa: PLC0415 (what a stranger's module of that name would not have)

    command()


def shadowing() -> str | None:
    """Where the module is that Python finds as `timers` instead of the installed package; None if it finds that one."""
    found = find_spec("timers")
    if found is None or found.origin is None or Path(found.origin).with_name("processor.py").is_file():
        return None
    return found.origin
