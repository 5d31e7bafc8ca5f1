"""Charts: from numbers to shapes that stay within the picture."""

import pytest

from timers.dashboard import render
from timers.dashboard.render import HEIGHT, WIDTH


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (2, 2), (3, 5), (6, 10), (10, 10), (11, 20), (21, 50), (51, 100), (999, 1000)]
)
def test_the_upper_edge_is_the_next_round_number(value: int, top: int) -> None:
    assert render.nice(value) == top


@pytest.mark.parametrize("values", [[], [0, 0], [1], [3, 0, 100_000, 7]])
def test_bars_stay_within_the_picture(values: list[int]) -> None:
    chart = render.bars([("fired", values)], [str(value) for value in values], ["now"], "all")
    assert [hit.said for hit in chart.hits] == [str(value) for value in values]
    assert len(chart.bars) == sum(value > 0 for value in values)
    for bar in chart.bars:
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH
        assert bar.y + bar.height == HEIGHT
        assert bar.height > 0


def test_the_parts_of_a_bar_stand_on_each_other_and_within_the_picture() -> None:
    chart = render.bars([("failed", [2, 1]), ("fired", [8, 99_999])], ["a", "b"], ["now"], "all")
    (failed, fired), last = chart.bars[:2], chart.bars[2:]
    assert (failed.name, fired.name) == ("failed", "fired")
    assert failed.y + failed.height == HEIGHT
    assert fired.y + fired.height == failed.y
    assert [bar.name for bar in last] == ["failed", "fired"]
    assert all(bar.y >= 0 for bar in chart.bars)


def test_a_line_is_interrupted_where_values_are_missing() -> None:
    chart = render.lines([("p50", [1, None, 2, 2]), ("p99", [None, None, 10, None])], ["now"], "all")
    assert [(name, len(points.split())) for name, points in chart.lines] == [
        ("p50", 2),
        ("p50", 4),
        ("p99", 2),
    ]
