"""Owns `timers watch`: a live view on a terminal, otherwise a line for each change."""

import asyncio
import json
import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from timers.cli.shared import Format, cell, end_as_by_ctrl_c, prefix_option, run
from timers.client import TimerClient
from timers.client.feed import event_json
from timers.core.durations import in_units
from timers.core.fields import check_prefix
from timers.core.model import Status, Timer
from timers.dashboard.overview import Seen, health, read_seen
from timers.dashboard.render import clock
from timers.errors import Unavailable
from timers.store.filters import Filter
from timers.store.queries import Ending, endings
from timers.store.starts import next_timers, quantiles_ms, total
from timers.store.store import Store

POLL_SECONDS: Final = 1.0
ROWS: Final = 8
"""How many of the next due timers, and of the failures, are shown at most; fewer on a low terminal."""

HEADINGS: Final = 4
"""Lines of the two lists that are not rows."""

FAILING: Final = (Status.FAILED, Status.RETRYING)
FAILING_PREFIXES: Final = 20
"""How many prefixes are searched for their newest failures. Those with most failures come first."""

_HOUR: Final = "  the last hour"
_BARS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"ok": "green", "warn": "yellow", "bad": "bold red"}
_QUIT, _PAUSE = "q", "p"

app = typer.Typer()


@app.command()
def watch(
    prefix: Annotated[str | None, prefix_option("Only timers of this prefix.")] = None,
    output: Annotated[Format | None, typer.Option("-o", "--output", help="Print changes in this format.")] = None,
) -> None:
    """Show a live view on a terminal: q quits, p pauses. If the output is not a terminal, or with -o, print a line or a
    JSON object for each change until Ctrl-C."""
    console = Console()
    live = output is None and console.is_terminal and not console.is_dumb_terminal
    end_as_by_ctrl_c()  # or the terminal would stay as the view needs it

    async def follow(client: TimerClient, store: Store) -> None:
        if live:
            await _show(client, store, console, prefix if prefix is None else check_prefix(prefix))
            return
        async for event in client.events(prefix):
            name, data = event_json(event)
            in_words = output == "table" or console.is_terminal
            typer.echo(_line_of(name, data) if in_words else json.dumps({"event": name, **data}))
            sys.stdout.flush()

    try:
        run(follow)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python would complain about it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line_of(name: str, data: Mapping[str, Any]) -> str:
    if name != "change":
        return f"-- {name} {data.get('count', '')}".rstrip()
    key = f"{data['prefix']}:{data['id']}"
    return f"{data['at']}  {data['status']:<9}  {key}  {cell(data['note'])}"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    now_ms: int
    overview: Seen
    coming: Sequence[Timer]
    failures: Sequence[tuple[str, Ending]]


async def _show(client: TimerClient, store: Store, console: Console, prefix: str | None) -> None:
    """Poll every second until `q`. While Redis is down, the screen shows the last snapshot."""
    seen, trouble, paused = None, "", False
    with Live(console=console, screen=True, auto_refresh=False) as view, _keystrokes() as pressed:
        while True:
            if not paused:
                try:
                    seen, trouble = await _poll(client, store, prefix), ""
                except Unavailable as error:
                    trouble = str(error)
            view.update(_page(seen, prefix, trouble, console, paused=paused), refresh=True)
            key = None
            with suppress(TimeoutError):
                key = await asyncio.wait_for(pressed.get(), POLL_SECONDS)
            if key == _QUIT:
                return
            paused = paused != (key == _PAUSE)


@contextmanager
def _keystrokes() -> Iterator[asyncio.Queue[str]]:
    """The keys as they are typed, or none if the input is not a terminal."""
    pressed = asyncio.Queue[str]()
    if not sys.stdin.isatty():
        yield pressed
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def take() -> None:
        for key in os.read(descriptor, 64).decode(errors="replace") or _QUIT:
            pressed.put_nowait(key)

    tty.setcbreak(descriptor, termios.TCSANOW)  # keeps what was typed before
    loop.add_reader(descriptor, take)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _poll(client: TimerClient, store: Store, prefix: str | None) -> _Snapshot:
    stats = await client.stats(prefix)
    failing = {
        name: n for name, counts in stats.counts.items() if (n := sum(counts.get(status, 0) for status in FAILING))
    }
    failures = [
        (name, ending)
        for name in sorted(failing, key=lambda name: -failing[name])[:FAILING_PREFIXES]
        for status in FAILING
        for ending in await endings(store, name, status, ROWS)
    ]
    return _Snapshot(
        now_ms=await store.now_ms(),
        overview=await read_seen(store, stats),
        coming=await next_timers(store, ROWS, Filter(prefix=prefix)),
        failures=sorted(failures, key=lambda failure: -failure[1].at_ms)[:ROWS],
    )


def _page(
    seen: _Snapshot | None, prefix: str | None, trouble: str, console: Console, *, paused: bool
) -> RenderableType:
    of = "" if prefix is None else f" of {prefix}"
    keys = Text(f"timers{of}   q quits, p {'resumes' if paused else 'pauses'}", style="dim")
    parts: list[RenderableType] = [keys]
    if paused:
        parts.append(Text("paused", style="bold yellow"))
    if trouble:
        parts.append(Text(cell(trouble), style=_STYLES["bad"]))
    if seen is not None:
        parts += _health_lines(seen.overview, prefix, console.width)
        left = console.height - len(console.render_lines(Group(*parts)))
        rows = max(1, (left - HEADINGS) // 2)
        parts += [Text(), _due_next(seen, rows), Text(), _failed(seen, rows)]
    return Group(*parts)


def _health_lines(seen: Seen, prefix: str | None, width: int) -> Sequence[RenderableType]:
    found = health(seen, None if prefix is None else prefix.__eq__)
    rate = [sum(counts.values()) for counts in seen.fired["hour"].values()]
    late = quantiles_ms(total(seen.fired["hour"]))
    said = ", ".join(f"{name} {value} ms" for name, value in late.items() if value is not None) or "nothing fired"
    whole = "" if prefix is None else " (all prefixes)"
    return [
        Text(cell(found[0].said), style=_STYLES[found[0].level]),
        *(Text(f"  {cell(trouble.said)}") for trouble in found[1:]),
        Text(),
        Text("   ".join(f"{status} {n:,}" for status, n in seen.stats.by_status.items())),
        Text(),
        Text(f"fired a minute  {rate[-2]:,}; {rate[-1]:,} in this one{whole}   late in the last hour  {said}"),
        Text(f"{_sparks(rate)[-max(1, width - len(_HOUR)) :]}{_HOUR}", style="cyan"),
        Text(f"overdue  {in_units(seen.stats.overdue_ms)}   notifications  {seen.stats.notifications}"),
    ]


def _sparks(values: Sequence[int]) -> str:
    top = max(1, *values)
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // top)] for value in values)


def _due_next(seen: _Snapshot, rows: int) -> Table:
    table = Table("due next", "timer", box=None, padding=(0, 2, 0, 0))
    for timer in seen.coming[:rows]:
        left_ms = timer.due_ms - seen.now_ms
        when = f"in {in_units(left_ms)}" if left_ms >= 0 else f"due for {in_units(left_ms)}"
        table.add_row(Text(when, style="" if left_ms >= 0 else "yellow"), Text(f"{timer.prefix}:{timer.id}"))
    return table


def _failed(seen: _Snapshot, rows: int) -> Table:
    table = Table("failed", "timer", "why", box=None, padding=(0, 2, 0, 0))
    for prefix, ending in seen.failures[:rows]:
        why = cell(f"{ending.error.get('type', '')}: {ending.error.get('reason', '')}")
        table.add_row(clock(ending.at_ms), Text(f"{prefix}:{ending.id}"), Text(why, overflow="ellipsis", no_wrap=True))
    return table
