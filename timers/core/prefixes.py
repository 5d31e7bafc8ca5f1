"""Owns which prefix serves which. All code that asks who serves a timer uses `owner`."""

from collections.abc import Container
from typing import Final

_SEPARATORS: Final = "-_."


def owner(prefix: str, declared: Container[str]) -> str | None:
    """The longest declared prefix that serves `prefix`; None if none does.

    A declared prefix serves itself and every prefix that continues it after `-`, `_` or `.`: `log` serves `log-x` and
    not `login`. Takes at most as many lookups as the prefix has characters, however many prefixes are declared.
    """
    if prefix in declared:
        return prefix
    ends = (n for n in range(len(prefix) - 1, 0, -1) if prefix[n] in _SEPARATORS)
    return next((prefix[:n] for n in ends if prefix[:n] in declared), None)
