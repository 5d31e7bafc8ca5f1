"""Histories in which a timer starts later than it may."""

from tests.chaos.histories import LEASE_MS, Past
from tests.chaos.plants import TIMER, done
from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind


def late_for_no_reason(past: Past) -> None:
    past.create(TIMER)
    done(past, at=2_600)


def late_after_an_outage(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.PARTITION, EVERY_POD, 900, took=500)
    done(past, at=3_500)


def late_after_a_kill(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", outcome=None)
    past.fault(FaultKind.KILL, "a", 1_003)
    done(past, at=1_003 + LEASE_MS + 1_600, pod="b", attempt=2)


def late_though_its_pod_had_a_core(past: Past) -> None:
    past.create(TIMER)
    past.waited("b", 1_500, 500)
    done(past, at=2_600)


def late_by_more_than_its_pod_waited(past: Past) -> None:
    past.create(TIMER)
    past.waited("a", 1_500, 90)
    done(past, at=2_600)


def late_though_made_by_a_bare_key_whose_pods_lived(past: Past) -> None:
    past.fault(FaultKind.KILL, "c", 1_000)
    past.create(TIMER, due=11_500, slots=1)
    done(past, at=13_200)
