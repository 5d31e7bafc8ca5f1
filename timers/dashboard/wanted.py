"""Owns what a page of timers is asked to show: the conditions in its address, the checks on them, and an address with
them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from timers.core.model import Status, Timer
from timers.store.filters import Filter, Visible

NAMES: Final = ("prefix", "tag", "due_after", "due_before", "q", "error")
"""Conditions that come once. `status` may come several times."""

NO_ERROR: Final = "no error recorded"
GROUP_LIMIT_CHARACTERS: Final = 160
LOOKED_AT_CHARACTERS: Final = 4 * GROUP_LIMIT_CHARACTERS

_VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b(?=[a-f]*\d)[0-9a-f]++\b", re.IGNORECASE)
"""A UUID, or a word of hex digits with a number in it. Callers choose the text, so it takes linear time (`++`)."""


def error_group(error: Mapping[str, Any] | None) -> str:
    """What errors of one kind have in common: their type and reason, with `#` for each number or hash."""
    if not error:
        return NO_ERROR
    said = f"{error.get('type', '')}: {error.get('reason', '')}"[:LOOKED_AT_CHARACTERS]
    return _VARYING.sub("#", " ".join(said.split()))[:GROUP_LIMIT_CHARACTERS]


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
