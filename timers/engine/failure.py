"""Owns the text of a failed run. A processor's exceptions and notes run their own code, which may raise anything or
return text of any length. Both are bounded here before anything else uses the text."""

import os
import sysconfig
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from timers.core.decide import DETAIL_LIMIT_CHARACTERS
from timers.core.outcome import Failed

FRAMES: Final = 20
"""Innermost frames shown for an exception."""

LEVELS: Final = 4
BRANCHES: Final = 3
"""How many levels of causes are shown behind an exception, and how many members of an exception group."""


_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED: Final = tuple(
    {
        f"{path}{os.sep}"
        for name, path in sysconfig.get_paths().items()
        if name in {"stdlib", "platstdlib", "purelib", "platlib"}
    }
)
"""Where this package, the standard library and installed packages keep their files."""


def plain(text: str) -> str:
    """The beginning of a text as a plain `str`, because a subclass may override methods."""
    return str.__getitem__(text, slice(DETAIL_LIMIT_CHARACTERS))


def text_of(error: BaseException) -> str:
    """What an exception says about itself."""
    return _said(lambda: str(error) or repr(error), "it has no text")


def failure(error: BaseException) -> Failed:
    """Make a failed attempt from an exception."""
    name = _said(lambda: type(error).__name__, "Exception")
    detail = _said(lambda: _traced(error, LEVELS)[-DETAIL_LIMIT_CHARACTERS:], "it has no traceback")
    return Failed(name, text_of(error), detail, where=where(error))


def conflicts(error: BaseException) -> bool:
    """Whether it is a serialization failure of an SQL database (40001), raised by SQLAlchemy or a driver: nothing was
    done, and nothing is wrong."""
    return any(getattr(each, "sqlstate", None) == "40001" for each in (error, getattr(error, "orig", None)))


def where(error: BaseException) -> str:
    """The innermost line of the processor's own code that an exception went through, as `file:line in function`; in an
    installed package, or in code without a file as dataclasses make it, the line in the processor. Empty where it went
    through none."""
    outermost = innermost = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            place = f"{code.co_filename}:{line} in {code.co_name}"
            outermost = outermost or place
            innermost = innermost if code.co_filename.startswith((*_INSTALLED, "<")) else place
    return plain(innermost or outermost)


def _said(say: Callable[[], str], otherwise: str) -> str:
    try:
        return plain(say())
    except BaseException:  # noqa: BLE001 (the exception's own code, which may raise SystemExit)
        return otherwise


def _traced(error: BaseException, levels: int) -> str:
    """As Python prints it, the cause first, but bounded."""
    cause = error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__
    behind = [] if cause is None else [cause]
    if isinstance(error, BaseExceptionGroup):
        behind += islice(error.exceptions, BRANCHES)
    causes = [_traced(each, levels - 1) for each in behind if levels > 1]
    frames = "".join(traceback.format_tb(error.__traceback__, -FRAMES))
    return "\n".join((*causes, f"{frames}{type(error).__name__}: {text_of(error)}"))
