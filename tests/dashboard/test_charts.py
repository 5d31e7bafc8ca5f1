"""Charts: from numbers to shapes that stay within the picture."""

import pytest

from timers.dashboard import charts
from timers.dashboard.charts import HEIGHT, WIDTH, Bar, Polyline


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (2, 2), (3, 5), (6, 10), (10, 10), (11, 20), (21, 50), (51, 100), (999, 1000)]
)
def test_the_upper_edge_is_the_next_round_number(value: int, top: int) -> None:
    assert charts.nice(value) == top


@pytest.mark.parametrize("values", [[], [0, 0], [1], [3, 0, 100_000, 7]])
def test_bars_stay_within_the_picture(values: list[int]) -> None:
    chart = charts.bars(values, [str(value) for value in values], ["now"], "all")
    assert len(chart.marks) == len(values)
    for bar, value in zip(chart.marks, values, strict=True):
        assert isinstance(bar, Bar)
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH
        assert bar.y + bar.height == HEIGHT
        assert (bar.height > 0) is (value > 0)


def test_a_line_is_interrupted_where_values_are_missing() -> None:
    chart = charts.lines([("p50", [1, None, 2, 2]), ("p99", [None, None, 10, None])], ["now"], "all")
    assert [(line.name, len(line.points.split())) for line in chart.marks if isinstance(line, Polyline)] == [
        ("p50", 2),
        ("p50", 4),
        ("p99", 2),
    ]
