"""Owns the command that writes a starter plugin: `timers new-processor`."""

import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from timers.core.fields import check_prefix
from timers.errors import InvalidInput, Refused

_FILES: Final = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "src/{module}/__init__.py": "processor.py",
    "src/{module}/py.typed": None,
    "tests/test_{module}.py": "test_processor.py",
}
"""The files that the command writes, each with its template in `plugin/`."""


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("new-processor")(new_processor)


def new_processor(
    name: Annotated[str, typer.Argument(help="The prefix that the processor serves, and the new folder's name.")],
) -> None:
    """Write a starter plugin package: a processor, its entry point, a test and a README."""
    module, folder = _module(name), Path(name)
    if folder.exists():
        raise Refused(f"{folder} already exists; give another name, or remove it")
    values = {"name": name, "prefix": name, "module": module, "function": module}
    for path, template in _FILES.items():
        file = folder / path.format(module=module)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if template is None else Template(_read(template)).substitute(values))
        typer.echo(file)
    typer.echo(f"timers: next: cd {folder} && pip install -e '.[test]' && pytest", err=True)


def _read(template: str) -> str:
    return (files("timers.cli") / "plugin" / f"{template}.txt").read_text()


def _module(name: str) -> str:
    """The module's name. Raises InvalidInput for a name that cannot serve as a prefix, a package and a module."""
    check_prefix(name)
    module = re.sub(r"[-.]", "_", name)
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or module.split("_")[0] == "timers"
    if taken or not re.fullmatch(r"[a-z]\w*[a-z0-9]", module):
        rule = "a prefix that can also name a module: it starts with a letter, does not end in '_', and is not taken"
        raise InvalidInput.of("NAME", name, rule)
    return module
