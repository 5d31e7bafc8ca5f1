"""Owns the names that /metrics has, for what asks for them."""

import re
from collections.abc import Mapping

from timers.metrics import Metrics


def metric_names() -> set[str]:
    """The names of all samples that /metrics can have."""
    text = Metrics().render({}, {}, (), 0.0, None, losses=0, dropped=0).decode()
    found = set[str]()
    for name, kind in kinds(text).items():
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(kind, ("",))
        found |= {f"{name}{part}" for part in parts}
    return found


def kinds(text: str) -> Mapping[str, str]:
    """The kind of each metric of an exposition, without those that the client library adds by itself."""
    found = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}
