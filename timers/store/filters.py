"""Owns which timers are wanted: the conditions of a list or an action, checked, and whether a timer meets them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Final, Self

from pydantic import PlainValidator, PrivateAttr, WithJsonSchema

from timers.core import shapes
from timers.core.durations import FromNow, parse_bound
from timers.core.fields import PrefixPattern, StrictModel, is_own
from timers.core.model import Status, Timer
from timers.core.spec import TAG_LIMIT_CHARACTERS, TAGS_LIMIT, is_tag
from timers.errors import InvalidInput

Visible = Callable[[str], bool]
"""Whether a prefix may be seen."""

_STATUSES: Final = frozenset(map(str, Status))


def _checked_statuses(value: object) -> tuple[Status, ...]:
    names = [name for given in _listed(value) for name in (given.split(",") if isinstance(given, str) else [given])]
    if names and all(isinstance(name, str) and name in _STATUSES for name in names):
        return tuple(map(Status, dict.fromkeys(names)))
    raise InvalidInput.of("", value, f"one or more of {', '.join(Status)}")


def _checked_tags(value: object) -> tuple[str, ...]:
    tags = _listed(value)
    if 1 <= len(tags) <= TAGS_LIMIT and all(isinstance(tag, str) and is_tag(tag) for tag in tags):
        return tuple(dict.fromkeys(tags))
    rule = f"1 to {TAG_LIMIT_CHARACTERS} printable characters, or up to {TAGS_LIMIT} such tags"
    raise InvalidInput.of("", value, rule)


def _listed(value: object) -> Sequence[Any]:
    """One or several, as several."""
    return value if isinstance(value, list | tuple) else [value]


Statuses = Annotated[tuple[Status, ...], PlainValidator(_checked_statuses), WithJsonSchema(shapes.STATUSES)]
AllOfTags = Annotated[tuple[str, ...], PlainValidator(_checked_tags), WithJsonSchema(shapes.ALL_OF_TAGS)]
Bound = Annotated[int, PlainValidator(parse_bound), WithJsonSchema(shapes.BOUND)]


class Filter(StrictModel):
    """Which timers. All that is given must hold; what is left out or null means any, but the service's own timers pass
    only if `prefix` begins with `timers.`. A timer passes with one of the statuses and all of the tags. `due_after` is
    inclusive, `due_before` exclusive; each is a time, or a duration from now, with `-` into the past."""

    prefix: PrefixPattern | None = None
    status: Statuses | None = None
    tag: AllOfTags | None = None
    due_after: Bound | None = None
    due_before: Bound | None = None

    _visible: Visible | None = PrivateAttr(default=None)
    _passes: Callable[[Timer], bool] | None = PrivateAttr(default=None)

    def seen_by(self, visible: Visible | None) -> Self:
        """The same without the prefixes that the asker may not see."""
        copy = self.model_copy()
        copy._visible = visible
        return copy

    def where(self, passes: Callable[[Timer], bool]) -> Self:
        """The same with a condition that no index knows; a page looks at a bounded number of timers for it."""
        copy = self.model_copy()
        copy._passes = passes
        return copy

    def at(self, now_ms: float) -> Self:
        """The same with its times fixed: what is relative counts from now."""
        bounds = {"due_after": self.due_after, "due_before": self.due_before}
        fixed = {name: bound + round(now_ms) for name, bound in bounds.items() if isinstance(bound, FromNow)}
        return self.model_copy(update=fixed) if fixed else self

    @property
    def is_empty(self) -> bool:
        """Whether every timer that the asker may see passes."""
        return not self.model_dump(exclude_none=True)

    @property
    def is_of_all(self) -> bool:
        """Whether timers of all prefixes but the service's own may pass."""
        return self.prefix is None and self._visible is None

    @property
    def only_prefix(self) -> str | None:
        """The one prefix whose timers may pass; None where there may be several."""
        return None if self.prefix is None or self.prefix.endswith("*") else self.prefix

    def covers(self, prefix: str, status: Status | None = None) -> bool:
        """Whether timers of a prefix, and of a status if one is given, may pass."""
        return self.covering()(prefix) and (status is None or status in self.statuses)

    def covering(self) -> Callable[[str], bool]:
        """The function that says whether timers of a prefix may pass, which is quicker where there are many."""
        named, visible = _named(self.prefix), self._visible
        return named if visible is None else lambda prefix: named(prefix) and visible(prefix)

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses of which timers may pass. Retrying ones are among the scheduled, so they do not count twice."""
        found = self.status or tuple(Status)
        return [s for s in found if s is not Status.RETRYING or Status.SCHEDULED not in found]

    def test(self) -> Callable[[Timer], bool]:
        """The function that says whether a timer passes. It knows the conditions, because reading them from the model
        again for each timer takes longer than checking them. Ask a filter whose times are fixed."""
        covers, tags, passes = cache(self.covers), set(self.tag or ()), self._passes
        after_ms, before_ms = self.due_after, self.due_before
        return lambda timer: (
            (covers(timer.prefix, timer.status) or (timer.is_retrying and covers(timer.prefix, Status.RETRYING)))
            and (not tags or tags.issubset(timer.tags))
            and (after_ms is None or timer.due_ms >= after_ms)
            and (before_ms is None or timer.due_ms < before_ms)
            and (passes is None or passes(timer))
        )


def _named(wanted: str | None) -> Callable[[str], bool]:
    """Whether a prefix is meant."""
    if wanted is None:
        return lambda prefix: not is_own(prefix)
    if not wanted.endswith("*"):
        return lambda prefix: prefix == wanted
    beginning, own = wanted[:-1], is_own(wanted)
    return lambda prefix: prefix.startswith(beginning) and is_own(prefix) == own


ALL: Final = Filter()
"""All timers but the service's own."""
