"""Owns processors: the decorator, what a processor is given, and the registry that finds one by the longest prefix."""

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

from typing_extensions import TypeVar

from timers.core.calls import BlockingTimers, Delay, Timers
from timers.core.durations import parse_ms
from timers.core.fields import check_callers_prefix, check_prefix, is_own, owner
from timers.core.model import Timer
from timers.core.outcome import Done, Rearm
from timers.core.policies import NO_LIMITS, Limits, Rate, RetryPolicy
from timers.errors import ConfigurationError, FieldError, InvalidInput, NoProcessor, shown

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ENTRY_POINT_GROUP: Final = "timers.processors"
DISTRIBUTION: Final = "redis-timers"
"""The name, on the package index, of the package with `timers` and the built-in processors."""

Result = Rearm | Done | None
"""What a processor returns: None or Done for done, Rearm to arm its own key again."""

S = TypeVar("S", default=None)
S_co = TypeVar("S_co", default=None, covariant=True)
T_co = TypeVar("T_co", default=Timers, covariant=True)

Lifespan = Callable[[], AbstractAsyncContextManager[S]]
"""Opens what a processor needs while its pod lives, and closes it again."""


class Context(NamedTuple, Generic[S_co, T_co]):
    """What a processor is given besides its timer, with `timers`, a client for other timers.

    `token` is the fencing token: hand it to a receiver that remembers the highest it has seen, and a late pod cannot
    act twice. `idempotency_key` (`prefix:id:created:occurrence`) is the same on every try and never used again.
    `deadline` is when the run times out, None if never. `state` is what the processor's `lifespan` yielded, None
    without one: annotate the context as `Context[Pool]`. `traceparent` is the W3C trace in which the timer was armed,
    to link the run to it. (A tuple, which takes a fifth of the time of a frozen dataclass to make.)
    """

    token: int
    idempotency_key: str
    deadline: datetime | None
    log: "FilteringBoundLogger"
    state: S_co
    timers: T_co
    traceparent: str | None = None


BlockingContext = Context[S, BlockingTimers]
"""What a plain function is given: the methods of its `timers` block."""


Function = Callable[[Timer, Context[S]], Awaitable[Result] | Result] | Callable[[Timer, BlockingContext[S]], Result]
"""A coroutine function, or a plain one, which gets a BlockingContext. If it does not use `context.timers`, it may be
annotated with either."""


@dataclass(frozen=True, eq=False)
class Processor:
    """A function that serves the timers of `prefix` and of prefixes that continue it with `-`, `_` or `.`. Calling it
    calls the function."""

    prefix: str
    function: Callable[[Timer, Any], Awaitable[Result] | Result]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_ms: int | None = None
    limits: Limits = NO_LIMITS
    lifespan: Lifespan[Any] | None = None

    def __call__(self, timer: Timer, context: Context[Any, Any]) -> Awaitable[Result] | Result:
        return self.function(timer, context)

    @cached_property
    def is_async(self) -> bool:
        """False for a plain `def`, which runs in a thread."""
        return any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__)))

    @property
    def origin(self) -> str:
        """Where it comes from, for errors and listings."""
        return _origin(self.function)


def processor(
    prefix: str,
    *,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: Delay | None = None,
    concurrency: int | None = None,
    pod_concurrency: int | None = None,
    rate: str | None = None,
    lifespan: Lifespan[S] | None = None,
) -> Callable[[Function[S]], Processor]:
    """Make the function below a processor of `prefix` and of every prefix that continues it with `-`, `_` or `.`.

    Limits hold for each prefix separately: `concurrency` is the most that runs at once over all pods (1 also means
    strict order: by due time, then by arming in their shard), `pod_concurrency` the most on one pod, `rate` (`"50/s"`)
    the starts over all pods. `lifespan` is called once per pod and returns an async context manager, which is entered
    before the first run and left after the last one; what it yields is `context.state` of every run. Processors that
    are given the same function share it. Raises InvalidInput for a bad prefix, retry policy, timeout or limit, and for
    a function that yields or cannot be called with a timer and a context. The function is not registered anywhere: a
    registry finds it in its module (`TIMERS_PROCESSORS`) or through an entry point in the group `timers.processors`.
    """
    policy = _policy(retry)
    timeout_ms = None if timeout is None else parse_ms(timeout, "timeout", minimum=1)
    checked = check_prefix(prefix)
    limits = Limits(concurrency, pod_concurrency, None if rate is None else Rate.parse(rate))

    def wrap(function: Function[S]) -> Processor:
        _check_function(function)
        return Processor(checked, function, policy, timeout_ms, limits, lifespan)

    return wrap


def _policy(given: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy:
    try:
        return RetryPolicy.parse({} if given is None else given)
    except InvalidInput as error:
        raise error.under("retry") from None


def _check_function(function: object) -> None:
    if isinstance(function, Processor):
        accepted = f"a function that is not already the processor of {function.prefix!r}"
        raise InvalidInput([FieldError("function", function.origin, accepted)])
    if not callable(function):
        raise InvalidInput.of("function", function, "a function that takes (timer, context)")
    if any(map(_yields, (function, type(function).__call__))):
        accepted = "a function that returns its result; calling one that yields runs nothing"
        raise InvalidInput([FieldError("function", _origin(function), accepted)])
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C may have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        accepted = f"a function that takes (timer, context): {error}"
        raise InvalidInput([FieldError("function", f"{_origin(function)}{signature}", accepted)]) from None


def _yields(function: object) -> bool:
    """Whether calling it makes a generator of either kind."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _origin(function: Callable[..., object]) -> str:
    """Module and name; a callable object has the name of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


class Registry:
    """One pod's processors. `only` limits the pod to these prefixes and what continues them (`TIMERS_PREFIXES`)."""

    def __init__(self, processors: Iterable[Processor], only: Iterable[str] = ()) -> None:
        self._by_prefix: dict[str, Processor] = {}
        self.only = tuple(only)
        """What the pod is limited to; empty for no limit."""
        # Callers can invent any number of prefixes.
        self.match = lru_cache(100_000)(self._search)
        """The processor of this pod with the longest prefix that serves a prefix; None if this pod has none, or is
        limited to other prefixes. Another pod may have a longer one."""
        for added in processors:
            present = self._by_prefix.setdefault(added.prefix, added)
            if present is not added:
                origins = f"{present.origin} and {added.origin}"
                raise ConfigurationError(f"two processors for the prefix {added.prefix!r}: {origins}; remove one")

    def _search(self, prefix: str) -> Processor | None:
        if self.only and owner(prefix, self.only) is None:
            return None
        found = owner(prefix, self._by_prefix)
        return None if found is None else self._by_prefix[found]

    def limits_fleet(self, prefix: str) -> bool:
        """Whether starts of the prefix count over all pods."""
        found = self.match(prefix)
        return found is not None and found.limits.over_fleet

    def require(self, prefix: str) -> Processor:
        """As `match`, but raises NoProcessor instead of returning None."""
        found = self.match(prefix)
        if found is None:
            known = ", ".join(self.declared) or "none"
            raise NoProcessor(f"no processor serves the prefix {prefix!r}; the processors are: {known}")
        return found

    @property
    def declared(self) -> tuple[str, ...]:
        """The prefixes of the processors that this pod can run, sorted. If the pod is limited, only those that overlap
        with the limit."""
        return tuple(p for p in sorted(self._by_prefix) if not self.only or any(_overlap(p, o) for o in self.only))

    def check_only(self) -> None:
        """Raises ConfigurationError if the pod is limited to a prefix that none of its processors can serve."""
        for part in self.only:
            if not any(_overlap(declared, part) for declared in self._by_prefix):
                known = ", ".join(sorted(self._by_prefix)) or "none"
                rule = f"prefixes that a processor of this pod serves; it has processors for: {known}"
                raise ConfigurationError.of("TIMERS_PREFIXES", part, rule)

    @property
    def processors(self) -> tuple[Processor, ...]:
        return tuple(self._by_prefix[prefix] for prefix in self.declared)


def _overlap(one: str, other: str) -> bool:
    """Whether some prefix is served by both."""
    return owner(one, (other,)) is not None or owner(other, (one,)) is not None


def load(
    paths: Iterable[str] = (),
    *,
    only: Iterable[str] = (),
    builtin: Collection[str] | None = None,
    targets: Iterable[str] = (),
) -> Registry:
    """The processors that `find` finds. Two of your own with the same prefix raise ConfigurationError too."""
    return Registry([found for found, _ in find(paths, builtin, targets)], only)


def find(
    paths: Iterable[str] = (), builtin: Collection[str] | None = None, targets: Iterable[str] = ()
) -> list[tuple[Processor, str]]:
    """The processors of the installed entry points and those at `paths` (`package.module` or `package.module:object`;
    the working directory is searched too), each with where it was found. Of the built-in ones, only those that
    `builtin` names (None: all). The object is a processor, or a function without parameters that returns several. Your
    own processor replaces a built-in one with the same prefix; a prefix of `targets` must have neither. Raises
    ConfigurationError, which names what cannot be loaded."""
    here = _working_directory()
    if here not in sys.path:
        sys.path.append(here)
    own: dict[Processor, str] = {}
    for path in paths:
        own |= dict.fromkeys(_at(path, f"TIMERS_PROCESSORS names {path!r}"), f"TIMERS_PROCESSORS={path}")
    built_in: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.dist is not None and point.dist.name == DISTRIBUTION:
            built_in[point.name] = point
        else:
            source = f"entry point of {point.dist.name} {point.dist.version}" if point.dist else "entry point"
            own |= dict.fromkeys(_of_point(point), source)
    for found in own:
        _check_own(found)
    replaced = {found.prefix: found.origin for found in own}
    points = _chosen(built_in, builtin)
    _check_targets(targets, {**{point.name: point.value for point in points}, **replaced})
    chosen = [p for point in points for p in _of_point(point) if p.prefix not in replaced]
    return [*own.items(), *((p, "built in") for p in chosen)]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:  # it was deleted, or this user may not look
        raise ConfigurationError(
            f"the working directory cannot be used: {error.strerror}; start in a folder that exists"
        ) from None


def _check_own(found: Processor) -> None:
    """Raises ConfigurationError for a processor of the service's own timers."""
    try:
        check_callers_prefix(found.prefix, found.origin)
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from None


def _check_targets(targets: Iterable[str], origins: Mapping[str, str]) -> None:
    """Raises ConfigurationError if timers of a prefix would be called and also run by a processor."""
    for prefix in targets:
        if prefix in origins:
            rule = f"a prefix that has no processor; this one has {origins[prefix]}"
            raise ConfigurationError.of("TIMERS_WEBHOOK_TARGETS", prefix, rule)


def _chosen(built_in: Mapping[str, EntryPoint], names: Collection[str] | None) -> list[EntryPoint]:
    """The built-in processors that a pod should load. Raises ConfigurationError if they are not there."""
    if not built_in:
        raise ConfigurationError(f"the built-in processors are missing; reinstall {DISTRIBUTION} (`make setup`)")
    for name in names or ():
        if name not in built_in:
            known = ", ".join(sorted(name for name in built_in if not is_own(name)))  # the service's own always go out
            rule = f"all, none, or a comma-separated list of {known}"
            raise ConfigurationError.of("TIMERS_BUILTIN", name, rule)
    return [point for name, point in built_in.items() if names is None or name in names]


def _of_point(point: EntryPoint) -> list[Processor]:
    return _at(point.value, f"the entry point {point.name!r} is {point.value!r}")


def _at(path: str, named: str) -> list[Processor]:
    module_name, _, attribute = path.partition(":")
    if module_name.partition(".")[0] == "timers":
        raise ConfigurationError(f"{named}, but `timers` is the service's own package; give your module another name")
    with _loading(f"{named}, which cannot be imported:"):
        module = importlib.import_module(module_name)  # noqa: TID251 (the operator names it)
    if not attribute:
        return in_module(module, named)
    with _loading(f"{named}, which cannot be read:"):
        found = getattr(module, attribute, None)
    if isinstance(found, Processor):
        return [found]
    if inspect.isfunction(found) and all(
        p.default is not p.empty for p in inspect.signature(found).parameters.values()
    ):
        return _made_by(found, named)
    raise ConfigurationError(f"{named}, which is not a function with the decorator @processor")


@contextmanager
def _loading(
    how: str, expected: str = "", *, passes: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
) -> Iterator[None]:
    """Raises ConfigurationError for whatever an operator's code raises meanwhile, unless it `passes`: a script may end
    the process, and what pytest skips with is no Exception."""
    try:
        yield
    except passes:
        raise
    except BaseException as error:
        raise ConfigurationError(f"{how} {_said(error)}{expected}") from error


def _said(error: BaseException) -> str:
    """Its kind and text in one line. The text comes from code of its own, which may raise anything."""
    name = type(error).__name__
    try:
        return " ".join(f"{name}: {error}".split())
    except Exception:  # noqa: BLE001
        return name


_MADE: Final = "expected a function that returns a list of processors"


def _made_by(factory: Callable[[], Any], named: str) -> list[Processor]:
    """The processors that a function without parameters returns."""
    with _loading(f"{named}, which raised", f"; {_MADE}", passes=(KeyboardInterrupt, ConfigurationError)):
        made = factory()
        found = list(made) if isinstance(made, Iterable) else [made]
    for each in found:
        if not isinstance(each, Processor):
            raise ConfigurationError(f"{named}, which returned {shown(made)}; {_MADE}")
    return found


def in_module(module: object, named: str) -> list[Processor]:
    found = [value for value in vars(module).values() if isinstance(value, Processor)]
    if not found:
        raise ConfigurationError(f"{named}, which has no function with the decorator @processor")
    return found
