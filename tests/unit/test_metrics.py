"""Metrics alone: what was counted is rendered with its labels, and each value in all buckets that include it."""

import pytest

from timers.metrics import RUN_SECONDS, Metrics


def rendered(metrics: Metrics) -> dict[str, float]:
    text = metrics.render(None, None, ready=True, servers={}, losses=0, dropped=0).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


@pytest.mark.parametrize(("seconds", "first"), [(0.0, "0.001"), (0.005, "0.005"), (0.0051, "0.025"), (601.0, "+Inf")])
def test_a_value_is_in_every_bucket_up_to_whose_bound_it_goes(seconds: float, first: str) -> None:
    metrics = Metrics()
    metrics.ended("note", "done", seconds)
    found = rendered(metrics)
    bounds = [*map(str, map(float, RUN_SECONDS)), "+Inf"]
    included = [bound for bound in bounds if found[f'timers_run_seconds_bucket{{le="{bound}",prefix="note"}}']]
    assert included == bounds[bounds.index(first) :]
    assert (found['timers_run_seconds_count{prefix="note"}'], found['timers_run_seconds_sum{prefix="note"}']) == (
        1,
        seconds,
    )


def test_each_label_has_its_own_number_and_what_has_no_label_begins_at_0() -> None:
    metrics = Metrics()
    metrics.serves(["note"])
    for _ in range(2):
        metrics.ended("note", "failed", 1)
    metrics.called("arm", 0.25)
    found = rendered(metrics)
    outcomes = {
        outcome: found[f'timers_runs_total{{outcome="{outcome}",prefix="note"}}'] for outcome in ("done", "failed")
    }
    assert outcomes == {"done": 0, "failed": 2}
    assert found['timers_redis_call_seconds_sum{script="arm"}'] == 0.25
    assert (found["timers_subscriptions_total"], found["timers_claim_size_count"]) == (0, 0)


def test_dropped_changes_are_those_since_the_process_began() -> None:
    metrics = Metrics()
    metrics.render(None, None, ready=True, servers={}, losses=0, dropped=3)
    assert b"timers_events_dropped_total 5.0" in metrics.render(None, None, ready=True, servers={}, losses=0, dropped=5)
