"""The promise of `once`: one effect for each occurrence that was seen to succeed, and never two."""

from tests.chaos.effects import judged
from tests.chaos.histories import Past
from tests.chaos.witness import Outcome

TIMER = "chaos-once/t"


def found(made: dict[str, int], outcome: Outcome = Outcome.DONE) -> list[str]:
    past = Past()
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", key="the key", outcome=outcome)
    return [finding.explanation for finding in judged(made, past.events)]


def test_one_effect_of_a_run_that_succeeded_is_what_is_meant() -> None:
    assert found({"the key": 1}) == []


def test_a_second_effect_is_found() -> None:
    assert found({"the key": 2}) == ["it had its effect 2 times"]


def test_a_missing_effect_is_found() -> None:
    assert found({}) == ["it was seen to succeed, but has no effect"]


def test_a_run_that_failed_may_have_had_its_effect_or_not() -> None:
    assert found({}, Outcome.FAILED) == []
    assert found({"the key": 1}, Outcome.FAILED) == []
