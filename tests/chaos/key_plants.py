"""Histories in which an idempotency key is not what it has to be."""

from tests.chaos.histories import Past
from tests.chaos.plants import TIMER
from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind


def another_key_after_a_loss(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", token=1, key="first")
    past.fault(FaultKind.LOSS, EVERY_POD, 1_100)
    past.run(TIMER, 1_500, pod="b", token=2, key="second")
    past.completed(TIMER, 1_506, token=2)


def key_of_the_occurrence_before(past: Past) -> None:
    past.create(TIMER, slots=2)
    past.run(TIMER, 1_002, pod="a", token=1, key="same")
    past.run(TIMER, 2_002, pod="a", token=2, occurrence=2, due=2_000, key="same")
    past.completed(TIMER, 2_010, token=2)
