"""Owns the names that /metrics has, for what asks for them."""

import re

from timers.metrics import Metrics


def metric_names() -> set[str]:
    """The names of all samples that /metrics can have."""
    metrics = Metrics()
    metrics.started("a", 1)
    metrics.ended("a", "done", 1.0)
    text = metrics.render({}, {}, (), 0.0, None, losses=0).decode()
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found
