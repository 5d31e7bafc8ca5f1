"""The benchmarks' own arithmetic: percentiles, tallies, and what several runs become."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.report import Benchmark, Column, Measured, Row, worst
from tests.bench.stage import Stage
from tests.bench.starts import Lateness, Start, Tally, read_starts


async def _nothing(stage: Stage) -> Sequence[Row]:
    return []


def _measured(*runs: Sequence[Row]) -> Measured:
    columns = (Column("way"), Column("p50 ms", 1), worst("lost"))
    return Measured(Benchmark("named", "titled", columns, _nothing, "the rest"), "redis 7", "hz=10", runs)


def _start(pod: str, timer_id: str) -> Start:
    return Start(pod, "p", timer_id, 1, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("late_ms", "expected", "p50", "p99", "largest"),
    [
        (range(1, 101), 100, 50, 99, 100),
        ([7], 1, 7, 7, 7),
        ([3, 1, 2], 3, 2, 3, 3),
        (range(1, 99), 100, 50, math.inf, math.inf),
        ([], 2, math.inf, math.inf, math.inf),
    ],
)
def test_percentiles_are_nearest_rank_and_what_never_came_is_infinitely_late(
    late_ms: Sequence[float], expected: int, p50: float, p99: float, largest: float
) -> None:
    assert Lateness.of(late_ms, expected) == Lateness(p50, p99, largest)


def test_tally_counts_timers_and_not_starts() -> None:
    tally = Tally.of([_start("a", "1"), _start("b", "1"), _start("b", "2")], 5)
    assert (tally.lost, tally.again, tally.by_pod) == (3, 1, {"a": 1, "b": 2})


def test_starts_of_other_prefixes_and_half_written_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pod-1.starts").write_text("p 1 1 20.5 2 2.5\nlonger-p 2 1 21 3 3.5\np 3 1 22.")
    (tmp_path / "pod-2.starts").write_text("p 4 2 10.5 1 1.5\n")
    assert read_starts(tmp_path, "p") == [
        Start("pod-2", "p", "4", 2, 10.5, 1, 1.5),
        Start("pod-1", "p", "1", 1, 20.5, 2, 2.5),
    ]


def test_runs_become_medians_and_the_worst_of_what_should_be_zero() -> None:
    measured = _measured([("a", 1.0, 0), ("b", 9.0, 0)], [("a", 3.0, 2), ("b", 9.0, 0)], [("a", 2.0, 0), ("b", 8.0, 0)])
    assert measured.rows() == [("a", 2.0, 2), ("b", 9.0, 0)]


def test_a_missing_value_is_a_word_in_the_table_and_null_in_json() -> None:
    measured = _measured([("a", math.inf, 1234)])
    assert measured.table().splitlines()[2].split() == ["a", "never", "1,234"]
    assert measured.to_json()["rows"] == [["a", None, 1234]]
