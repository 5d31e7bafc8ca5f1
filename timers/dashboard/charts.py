"""Owns the geometry of charts: it turns numbers into bars and lines of an SVG. It is pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

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
