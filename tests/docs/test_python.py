"""`docs/python.md` lists the methods of the client as they are: `python -m tests.docs.test_python` writes it."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from timers import BlockingTimerClient, TimerClient

PAGE: Final = Path(__file__).parents[2] / "docs" / "python.md"

HEAD: Final = """# The Python client

`timers.TimerClient` is async, `timers.BlockingTimerClient` blocks; both, and the methods they share, take the same
parameters. Every method raises `Unavailable` while Redis is down, `InvalidInput` for bad values, and a `Refused` if the
timer's state forbids the call. `timers` exports every type and error in these signatures. [reference.md](reference.md)
has the fields of a timer.

A `TimerClient` belongs to the event loop of its first call until it is closed there; on another loop it raises
`RuntimeError` and sends nothing. Where each call has its own loop, as with Django's `async_to_sync` or `asyncio.run` in
a Celery task, use a `BlockingTimerClient` outside of the loop.

| method | does |
|---|---|
"""


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods, in the order of their definition; those that are inherited first."""
    found: dict[str, Any] = {}
    for kind in reversed(TimerClient.__mro__):
        found |= {name: each for name, each in vars(kind).items() if not name.startswith("_") and callable(each)}
    for name in found:
        yield name, getattr(TimerClient, name)


def row(name: str, method: Callable[..., Any]) -> str:
    parameters = [
        f"**{each.name}"
        if each.kind is each.VAR_KEYWORD
        else each.name + ("=" if each.default is not each.empty else "")
        for each in list(inspect.signature(method).parameters.values())[1:]
    ]
    said = " ".join((inspect.getdoc(method) or "").split()).replace("|", "\\|")
    only = "" if hasattr(BlockingTimerClient, name) else " Awaited only."
    return f"| `{name}({', '.join(parameters)})` | {said}{only} |\n"


def page() -> str:
    return HEAD + "".join(row(name, method) for name, method in methods())


def test_the_page_lists_the_methods_as_they_are() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_each_method_says_what_it_does() -> None:
    for name, method in methods():
        assert re.match(r"[A-Z`].*\.", inspect.getdoc(method) or "", re.DOTALL), name


def test_the_blocking_client_has_no_method_of_its_own() -> None:
    public = {name for name in dir(BlockingTimerClient) if not name.startswith("_")}
    assert public <= {name for name, _ in methods()}


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
