"""Owns what a page of timers is asked to show: the conditions in its address, the checks on them, and an address with
them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from timers.core.model import Status, Timer
from timers.store.filters import Filter, Visible
from timers.store.queries import error_group

NAMES: Final = ("prefix", "tag", "due_after", "due_before", "q", "error")
"""Conditions that come once. `status` may come several times."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions as given, and the filter made from them."""

    given: Sequence[tuple[str, str]]
    filter: Filter

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]], visible: Visible | None) -> "Wanted":
        """Read the conditions from the parameters of an address or the fields of a form. Empty and unknown ones count
        as not given. Raises InvalidInput."""
        given = [(name, value.strip()) for name, value in pairs if value.strip() and name in (*NAMES, "status")]
        one = dict(given)
        fields: dict[str, Any] = {name: one[name] for name in Filter.model_fields if name in one}
        if statuses := [value for name, value in given if name == "status" and value in list(Status)]:
            fields["status"] = statuses
        else:
            fields.pop("status", None)
        found = Filter.parse(fields).seen_by(visible)
        return cls(given, _with_words(found, one.get("q"), one.get("error")))

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses asked for, or none if any will do."""
        return self.filter.status or ()

    @property
    def values(self) -> Mapping[str, str]:
        """The conditions that come once, by name."""
        return {name: dict(self.given).get(name, "") for name in NAMES}

    @property
    def is_everything(self) -> bool:
        """Whether no conditions were given."""
        return not self.given

    @property
    def counts_alone(self) -> bool:
        """Whether the counts by prefix and status are enough to say how many timers pass."""
        return not any(self.values[name] for name in ("tag", "due_after", "due_before", "q", "error"))

    def query(self, **more: str) -> str:
        """The conditions as the query of an address."""
        return urlencode([*self.given, *more.items()])


def _with_words(found: Filter, words: str | None, error: str | None) -> Filter:
    if words is None and error is None:
        return found

    def passes(timer: Timer) -> bool:
        return (words is None or words in timer.key) and (error is None or error_group(timer.last_error) == error)

    return found.where(passes)
