"""The names and labels of the metrics, in the code and in the reference."""

import re
from collections.abc import Mapping
from typing import Any

from tests.install.environment import ROOT
from timers.metrics import Metrics


def labels_of_samples() -> Mapping[str, frozenset[str]]:
    """The labels of each sample that `/metrics` can have."""
    text = Metrics().render(None, None, ready=True, servers={}, losses=0, dropped=0).decode()
    found = dict[str, frozenset[str]]()
    for name, kind in kinds(text).items():
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(kind, ("",))
        own = frozenset(labels_of(name))
        found |= {f"{name}{part}": own | ({"le"} if part == "_bucket" else set()) for part in parts}
    return found


def labels_of(name: str) -> list[str]:
    """The labels of a metric."""
    collectors: Mapping[Any, Any] = Metrics()._registry._collector_to_names
    for each in collectors:
        for family in each.describe():
            if family.name == name.removesuffix("_total"):
                return list(getattr(family, "_labelnames", ()))
    raise KeyError(name)


def kinds(text: str) -> Mapping[str, str]:
    """The type of each metric in an exposition, without those that the client library adds."""
    found = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


def documented_metrics() -> Mapping[str, str]:
    """Each metric's row in the reference."""
    text = (ROOT / "docs" / "reference.md").read_text()
    return {row.split("`")[1]: row for row in re.findall(r"^\| `timers_.*$", text, re.MULTILINE)}
