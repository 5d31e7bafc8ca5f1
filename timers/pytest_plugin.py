"""Owns the pytest plugin: the fixture `timer_lab`. Every run of pytest loads it, so it imports the lab late."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from timers.testing import TimerLab


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the runs of a lab while there is a loop on which they can: plugins may close it before any fixture ends."""
    lab = getattr(item, "funcargs", {}).get("timer_lab")
    if lab is not None:
        lab.leave()


@pytest.fixture
def timer_lab() -> Iterator["TimerLab"]:
    """A timer service for one test: no server, no waiting, a clock that the test moves."""
    from timers.testing import TimerLab  # noqa: PLC0415 (costs nothing where it is not used)

    with TimerLab() as lab:
        yield lab
