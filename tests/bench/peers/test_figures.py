"""The peers' own arithmetic: rates, medians and ranges, ratios within a round, jobs that are ordered, names."""

import math
from collections.abc import Sequence

import pytest

from tests.bench.peers.adapters.orders import Order
from tests.bench.peers.catalogue import MEASURES, OURS, PEERS, chosen
from tests.bench.peers.faults import Verdict
from tests.bench.peers.figures import Figure, Round, combined, drained_per_s, ratios, table

PAIR = [PEERS[OURS], PEERS["bullmq"]]


def _round(ours: Figure, theirs: Figure) -> Round:
    return {("a", OURS): {"drain": ours}, ("a", "bullmq"): {"drain": theirs}}


def _cells(text: str, name: str) -> list[str]:
    """The cells after the name in its row, in the order of MEASURES."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return next(row[1:] for row in rows if row[0] == name)


def test_a_drain_that_was_watched_to_a_limit_counts_what_had_ended_by_then() -> None:
    assert drained_per_s(20_000, 0, 2.5) == 8_000
    assert drained_per_s(20_000, 17_000, 60.0) == 50


@pytest.mark.parametrize(
    ("figures", "digits", "text"),
    [
        ([3.0, 1.0, 2.0], 0, "2 (1–3)"),
        ([1234.56], 1, "1,234.6"),
        ([2.0, "it failed", 4.0], 1, "3.0 (2.0–4.0)"),
        ([5.0, math.inf, math.inf], 0, "never (5–never)"),
        (["no such call", "no such call"], 0, "no such call"),
        ([], 0, ""),
    ],
)
def test_rounds_become_their_median_and_range_or_why_there_is_none(
    figures: Sequence[Figure], digits: int, text: str
) -> None:
    assert combined(figures, digits) == text


def test_ratios_are_of_one_round_each_and_leave_out_what_is_missing() -> None:
    rounds = [_round(20.0, 10.0), _round(9.0, 3.0), _round(8.0, "it failed"), _round(8.0, 0.0)]
    drain = MEASURES["a"].index("drain")
    assert _cells(ratios("a", PAIR, rounds), "bullmq")[drain] == "2.50 (2.00–3.00)"


def test_a_missing_figure_has_its_reason_below_the_table() -> None:
    text = table("a", PAIR, [_round(20.0, "no such call")])
    drain = MEASURES["a"].index("drain")
    assert (_cells(text, OURS)[drain], _cells(text, "bullmq")[drain]) == ("20", "– [1]")
    assert text.endswith("\n- [1] no such call")


def test_ordered_jobs_have_distinct_ids_of_22_characters_and_are_due_within_the_span() -> None:
    order = Order("bulk", "timed", "peers-0001-", 2_500, 1_000.0, 500.0)
    jobs = list(order.jobs())
    assert {len(job.id) for job in jobs} == {22}
    assert len({job.id for job in jobs}) == 2_500
    assert {1_000 <= job.due_ms < 1_500 and job.args == (job.due_ms,) for job in jobs} == {True}
    assert [len(chunk) for chunk in order.chunks()] == [1_000, 1_000, 500]


def test_ours_is_measured_beside_whatever_is_chosen() -> None:
    names = [peer.name for peer in chosen(["bullmq"])]
    assert OURS in names
    assert "bullmq" in names
    assert "arq" not in names
    with pytest.raises(ValueError, match=r"'bull' is not a peer; there are: ours,.*bullmq"):
        chosen(["bull"])


def test_of_jobs_under_a_fault_the_lost_the_early_and_those_with_two_effects_are_counted() -> None:
    lines = [
        *("begun fine 1000.0 1010", "ended fine 1000.0 1310"),
        *("begun early 1000.0 999", "ended early 1000.0 1299"),
        *("begun again 1000.0 1020", "begun again 1000.0 9000", "ended again 1000.0 9300"),
        *("begun twice 1000.0 1030", "ended twice 1000.0 1330", "begun twice 1000.0 5000", "ended twice 1000.0 5300"),
        "begun lost 1000.0 1040",
    ]
    found = Verdict.of(lines, 6)
    assert (found.lost, found.early, found.twice) == (2, 1, 1)
    assert (found.late_p50_ms, found.worst_ms) == (20.0, 8000.0)
