"""Owns templates from a folder: `NAME.txt`, and `NAME.html` and `NAME.subject.txt` beside it if they exist."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, select_autoescape
from jinja2.sandbox import ImmutableSandboxedEnvironment

from timers import Fail

RENDERED_LIMIT_CHARACTERS: Final = 256 * 1024
"""Mail programs cut a message off beyond about a hundred thousand characters anyway."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9][A-Za-z0-9_-]*)*")


class Templates:
    """The jinja2 templates of a folder. Values are inserted as text, escaped in HTML, and are never read as templates.
    Every name that a template uses must have a value."""

    def __init__(self, folder: Path) -> None:
        self._environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            autoescape=select_autoescape(("html",)),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def has(self, name: str) -> bool:
        return self._find(f"{name}.txt") is not None

    def text(self, name: object, values: Mapping[str, Any]) -> str:
        """The filled-in text. Raises Fail if there is no such template, or if it cannot be filled in."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Fail(f"template: {str(name)[:100]!r} is not a name of letters, digits, '_', '-', '.' and '/'")
        found = self.beside(f"{name}.txt", values)
        if found is None:
            raise Fail(f"template: there is no {name}.txt in TIMERS_TEMPLATES")
        return found

    def _find(self, file: str) -> Any:
        try:
            return self._environment.get_template(file)
        except TemplateNotFound:
            return None

    def beside(self, file: str, values: Mapping[str, Any]) -> str | None:
        """The filled-in file that belongs to a text, such as its HTML, if there is any. Raises Fail if it cannot be
        filled in."""
        try:
            template = self._find(file)
            if template is None:
                return None
            return bounded(f"template {file}", template.generate(values), RENDERED_LIMIT_CHARACTERS)
        except Fail:
            raise
        except Exception as error:  # a template is the operator's code and may raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise Fail(f"template {file}: {kind}{error}") from error


def bounded(what: str, pieces: Iterable[str], limit: int) -> str:
    """The pieces together. Raises Fail if they are too long."""
    parts: list[str] = []
    left = limit
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise Fail(f"{what}: longer than {limit} characters once filled in")
        parts.append(piece)
    return "".join(parts)
