"""Owns how pages look: templates, words for times and numbers, the geometry of charts, and static files named by their
content."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from timers.core.durations import in_units

_ROOM: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
"""Nothing inline, nothing from other hosts, no page in a frame, nothing in a cache."""


def moment(ms: float) -> str:
    """A time to the second: `2026-11-22 06:30:00 UTC`."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"


def clock(ms: float) -> str:
    """A time of day to the millisecond, with the day unless it is today: `06:30:00.125`."""
    moment_then = datetime.fromtimestamp(ms / 1000, UTC)
    pattern = "%H:%M:%S" if moment_then.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S"
    return f"{moment_then.strftime(pattern)}.{int(ms) % 1000:03d}"


def clock_of(ms: int) -> str:
    """A time of day: `06:30 UTC`."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M UTC")


def pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@cache
def assets() -> Mapping[str, tuple[str, bytes, str]]:
    """Static files by the name in their address, which includes a hash of their content: path, content, media type."""
    found: dict[str, tuple[str, bytes, str]] = {}
    for path in sorted((*(_ROOM / "static").iterdir(), *(_ROOM / "vendor").iterdir())):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            found[f"{path.stem}.{digest}{path.suffix}"] = (path.name, content, _TYPES[path.suffix])
    return MappingProxyType(found)


def asset(name: str) -> str:
    return next(f"/ui/static/{hashed}" for hashed, (known, _, _) in assets().items() if known == name)


@cache
def environment() -> Environment:
    """The templates. Everything is escaped, and an undefined name is an error."""
    made = Environment(
        loader=PackageLoader("timers.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["asset"] = asset
    filters: dict[str, Callable[[Any], str]] = {
        "mebibytes": lambda size: f"{size / 2**20:.1f} MiB",
        "duration": in_units,
        "moment": moment,
        "number": lambda value: f"{value:,}".replace(",", "\u202f"),  # nobody takes thin spaces for a decimal point
        "clock": clock,
        "pretty": pretty,
    }
    made.filters.update(filters)
    return made


def prepare() -> None:
    """Compile the templates of the first page, which takes longer than filling them in. Runs in its own thread."""
    for name in ("base", "macros", "overview"):
        environment().get_template(f"{name}.html")


def redirect(where: str) -> web.Response:
    """Redirect to another page, with a GET."""
    return web.Response(status=303, headers={**HEADERS, "Location": where})


WIDTH: Final = 600
HEIGHT: Final = 90

Series = tuple[str, Sequence[int]]
"""A name, which is also its colour (a class of the style sheet), and its values."""


class Bar(NamedTuple):
    """One bar, or a part of it. `name` is its series. `said` is shown when the pointer is on it."""

    name: str
    x: float
    y: float
    width: float
    height: float
    said: str = ""


class Chart(NamedTuple):
    """A chart of `bars` or of `lines`. `hits` have the whole height of a place and what is said there. A line is its
    series and the points of a piece, from one hole to the next. `top` is the number at the upper edge, `labels` stand
    under it from left to right, `names` are its series, and `said` is all of it in words."""

    bars: Sequence[Bar]
    hits: Sequence[Bar]
    lines: Sequence[tuple[str, str]]
    top: int
    labels: Sequence[str]
    names: Sequence[str]
    said: str


def bars(series: Sequence[Series], said: Sequence[str], labels: Sequence[str], summary: str) -> Chart:
    """A chart with a bar for each place in the series, whose parts stand on each other, those of the first below."""
    columns = list(zip(*(values for _, values in series), strict=True))
    top, step = nice(max(map(sum, columns), default=0)), WIDTH / max(1, len(columns))
    made: list[Bar] = []
    for i, column in enumerate(columns):
        floor = float(HEIGHT)
        for (name, _), value in zip(series, column, strict=True):
            if height := value and min(floor, max(1.0, round(HEIGHT * value / top, 1))):
                floor = round(floor - height, 1)
                made.append(Bar(name, round((i + 0.1) * step, 1), floor, round(step * 0.8, 1), height))
    hits = [Bar("hit", round(i * step, 1), 0, round(step, 1), HEIGHT, text) for i, text in enumerate(said)]
    return Chart(made, hits, (), top, labels, [name for name, _ in series], summary)


def lines(series: Sequence[tuple[str, Sequence[int | None]]], labels: Sequence[str], summary: str) -> Chart:
    """A chart with a line for each series. None leaves a hole."""
    top = nice(max((value for _, values in series for value in values if value is not None), default=0))
    pieces = [(name, points) for name, values in series for points in _pieces(values, top)]
    return Chart((), (), pieces, top, labels, [name for name, _ in series], summary)


def _pieces(values: Sequence[int | None], top: int) -> list[str]:
    step, pieces = WIDTH / max(1, len(values)), [[""]]
    for i, value in enumerate(values):
        if value is None:
            pieces.append([""])
        else:
            y = round(HEIGHT - HEIGHT * value / top, 1)
            pieces[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
    return [" ".join(points[1:]) for points in pieces if len(points) > 1]


def nice(value: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 … that is not below the value."""
    scale = 1
    while 5 * scale < value:
        scale *= 10
    return next(factor * scale for factor in (1, 2, 5) if factor * scale >= value)
