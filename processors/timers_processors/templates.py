"""Owns templates from a folder: `NAME.txt`, and beside it `NAME.html` and `NAME.subject.txt` where there are any."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, select_autoescape
from jinja2.sandbox import ImmutableSandboxedEnvironment

from timers import Fail

RENDERED_LIMIT_CHARACTERS: Final = 256 * 1024
"""Beyond a hundred thousand or so mail programs cut a message off anyway."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9][A-Za-z0-9_-]*)*")


class Templates:
    """The templates of a folder, as jinja2 reads them. Values come in as they are, escaped in HTML, and never as
    templates; what a template names has to be there."""

    def __init__(self, folder: Path) -> None:
        self._environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            autoescape=select_autoescape(("html",)),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def has(self, name: str) -> bool:
        """Whether there is a text of that name."""
        return self._find(f"{name}.txt") is not None

    def text(self, name: object, values: Mapping[str, Any]) -> str:
        """The text. Raises Fail where there is none, or it cannot be filled in."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Fail(f"template: {str(name)[:100]!r} is not a name of letters, digits, '_', '-', '.' and '/'")
        found = self._rendered(f"{name}.txt", values)
        if found is None:
            raise Fail(f"template: there is no {name}.txt in TIMERS_TEMPLATES")
        return found

    def html(self, name: str, values: Mapping[str, Any]) -> str | None:
        """The HTML that belongs to the text, if there is one. Raises Fail where it cannot be filled in."""
        return self._rendered(f"{name}.html", values)

    def subject(self, name: str, values: Mapping[str, Any]) -> str | None:
        """As `html`, for the subject."""
        return self._rendered(f"{name}.subject.txt", values)

    def _find(self, file: str) -> Any:
        try:
            return self._environment.get_template(file)
        except TemplateNotFound:
            return None

    def _rendered(self, file: str, values: Mapping[str, Any]) -> str | None:
        try:
            template = self._find(file)
            return None if template is None else _bounded(file, template.generate(values))
        except Fail:
            raise
        except Exception as error:  # a template is a program of the operator's
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise Fail(f"template {file}: {kind}{error}") from error


def _bounded(file: str, pieces: Any) -> str:
    parts: list[str] = []
    left = RENDERED_LIMIT_CHARACTERS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise Fail(f"template {file}: longer than {RENDERED_LIMIT_CHARACTERS} characters once filled in")
        parts.append(piece)
    return "".join(parts)
