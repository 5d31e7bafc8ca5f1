"""Owns the geometry of charts: it turns numbers into bars and lines of an SVG. It is pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 600
HEIGHT: Final = 90


class Bar(NamedTuple):
    """One bar. It stands on the base line; `said` is shown when the pointer is on it."""

    x: float
    y: float
    width: float
    height: float
    said: str


class Polyline(NamedTuple):
    """A piece of a line, from one hole to the next. `name` is its series."""

    name: str
    points: str


class Chart(NamedTuple):
    """A chart. `top` is the number at its upper edge, `labels` stand under it from left to right, and `said` is all of
    it in words."""

    marks: Sequence[Bar] | Sequence[Polyline]
    top: int
    labels: Sequence[str]
    said: str


def bars(values: Sequence[int], said: Sequence[str], labels: Sequence[str], summary: str) -> Chart:
    """A chart with a bar for each value."""
    top, step = nice(max(values, default=0)), WIDTH / max(1, len(values))
    heights = [max(1.0, round(HEIGHT * value / top, 1)) if value else 0.0 for value in values]
    made = [
        Bar(round((i + 0.1) * step, 1), HEIGHT - height, round(step * 0.8, 1), height, said[i])
        for i, height in enumerate(heights)
    ]
    return Chart(made, top, labels, summary)


def lines(series: Sequence[tuple[str, Sequence[int | None]]], labels: Sequence[str], summary: str) -> Chart:
    """A chart with a line for each series. None leaves a hole."""
    top = nice(max((value for _, values in series for value in values if value is not None), default=0))
    pieces = [Polyline(name, points) for name, values in series for points in _pieces(values, top)]
    return Chart(pieces, top, labels, summary)


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
