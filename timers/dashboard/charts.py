"""Owns the geometry of charts: numbers in, bars and lines of an SVG out. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 90


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, its foot on the base line, and what is said when the pointer is on it."""

    x: float
    y: float
    width: float
    height: float
    said: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart; `top` is the number at its upper edge, `labels` stand under it from left to right."""

    bars: Sequence[Bar]
    top: int
    labels: Sequence[str]
    said: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A line chart: the points of each line by name, pieces where there is nothing between."""

    pieces: Sequence[tuple[str, str]]
    top: int
    labels: Sequence[str]
    said: str


def bars(values: Sequence[int], said: Sequence[str], labels: Sequence[str], summary: str) -> Bars:
    """A bar for each value."""
    top = nice(max(values, default=0))
    step = WIDTH / max(1, len(values))
    made = []
    for i, value in enumerate(values):
        height = max(1.0, round(HEIGHT * value / top, 1)) if value else 0.0
        made.append(Bar(round(i * step + step * 0.1, 1), HEIGHT - height, round(step * 0.8, 1), height, said[i]))
    return Bars(made, top, labels, summary)


def lines(series: Sequence[tuple[str, Sequence[int | None]]], labels: Sequence[str], summary: str) -> Lines:
    """A line for each series; None leaves a hole."""
    top = nice(max((value for _, values in series for value in values if value is not None), default=0))
    return Lines([(name, piece) for name, values in series for piece in _pieces(values, top)], top, labels, summary)


def _pieces(values: Sequence[int | None], top: int) -> list[str]:
    step = WIDTH / max(1, len(values))
    pieces: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            pieces.append([])
            continue
        y = round(HEIGHT - HEIGHT * value / top, 1)
        pieces[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
    return [" ".join(points) for points in pieces if points]


def nice(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 … that is not below."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if factor * scale >= value:
                return factor * scale
        scale *= 10
