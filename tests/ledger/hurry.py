"""Lets the ledger fall behind by minutes in a moment."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from timers.engine import following

TIMES = 1000


@contextmanager
def hurried() -> Iterator[None]:
    """For those who follow, time passes so many times faster from now on."""
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "time", SimpleNamespace(monotonic=lambda: began + (time.monotonic() - began) * TIMES))
        yield
