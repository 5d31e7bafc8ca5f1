"""Processors: the decorator, limits, and who serves a prefix."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest

from tests.unit.samples import a_timer, run
from timers.core.model import Timer
from timers.core.outcome import Done, Rearm
from timers.core.policies import Limits, Rate, RetryPolicy
from timers.errors import ConfigurationError, InvalidInput, NoProcessor
from timers.processor import Context, Processor, Registry, processor


def serving(prefix: str) -> Processor:
    @processor(prefix)
    async def serve(timer: Timer, context: Context) -> None:
        return None

    return serve


class Takes:
    """A callable object."""

    async def __call__(self, timer: Timer, context: Context) -> None:
        pass


async def yields_async(timer: Timer, context: Context) -> AsyncIterator[None]:
    yield


def yields(timer: Timer, context: Context) -> Iterator[None]:
    yield


class Yields:
    """A callable object whose call makes a generator."""

    async def __call__(self, timer: Timer, context: Context) -> AsyncIterator[None]:
        yield


class TestDecorator:
    def test_keeps_the_function_and_what_was_declared(self) -> None:
        async def serve(timer: Timer, context: Context) -> None:
            return None

        made = processor("send-sms", retry={"max_attempts": 3, "backoff": "fixed"}, timeout="30s")(serve)
        assert made.prefix == "send-sms"
        assert made.function is serve
        assert made.retry == RetryPolicy(max_attempts=3, backoff="fixed")
        assert made.timeout_ms == 30_000

    def test_takes_a_ready_retry_policy(self) -> None:
        policy = RetryPolicy(backoff=("5s", "30s"))

        @processor("send-sms", retry=policy)
        def serve(timer: Timer, context: Context) -> None:
            return None

        assert serve.retry is policy

    @pytest.mark.parametrize(
        ("function", "signature"),
        [
            (lambda: None, "()"),
            (lambda timer: None, "(timer)"),
            (lambda timer, context, more: None, "(timer, context, more)"),
            (lambda timer, *, context: None, "(timer, *, context)"),
        ],
    )
    def test_refuses_a_function_that_cannot_be_called_with_timer_and_context(
        self, function: Callable[..., None], signature: str
    ) -> None:
        """Otherwise every run would fail."""
        with pytest.raises(InvalidInput) as caught:
            processor("a")(function)
        named = f"function: {__name__}:TestDecorator.<lambda>{signature} is not accepted; expected "
        assert str(caught.value).startswith(f"{named}a function that takes (timer, context): ")

    def test_refuses_an_object_that_is_not_a_function(self) -> None:
        with pytest.raises(InvalidInput, match=r"function: 5 is not accepted; expected a function that takes"):
            processor("a")(5)  # type: ignore[arg-type]  # what we test

    def test_refuses_a_function_that_is_a_processor_already(self) -> None:
        with pytest.raises(
            InvalidInput, match=r"serve is not accepted; expected a function that is not already the processor of 'a'"
        ):
            processor("b")(serving("a"))

    @pytest.mark.parametrize("function", [yields_async, yields, partial(yields_async), Yields()])
    def test_refuses_a_function_that_yields(self, function: Callable[..., Any]) -> None:
        """Calling it runs nothing, so every run would fail."""
        with pytest.raises(InvalidInput, match=r"^function: .* is not accepted; expected a function that returns its"):
            processor("a")(function)

    @pytest.mark.parametrize(
        "function",
        [
            lambda timer, context: None,
            lambda *both: None,
            lambda timer, context, more=1: None,
            lambda t, c, /: None,
            partial(lambda more, timer, context: None, 1),
        ],
    )
    def test_takes_whatever_can_be_called_with_timer_and_context(self, function: Callable[..., None]) -> None:
        assert processor("a")(function).function is function

    def test_a_callable_object_is_named_by_its_class_and_may_be_a_coroutine_function(self) -> None:
        made = processor("a")(Takes())
        assert made.is_async
        assert made.origin == f"{__name__}:Takes"

    def test_its_timeout_may_be_a_timedelta(self) -> None:
        assert processor("a", timeout=timedelta(minutes=1))(Takes()).timeout_ms == 60_000

    def test_without_options_has_the_default_retry_and_no_timeout(self) -> None:
        assert serving("a").retry == RetryPolicy()
        assert serving("a").timeout_ms is None

    async def test_calling_it_calls_the_function(self) -> None:
        @processor("again")
        async def again(timer: Timer, context: Context) -> Rearm:
            return Rearm(after="24h", payload=[timer.id, context.token])

        assert await run(again, a_timer()) == Rearm(after="24h", payload=["user-42", 7])

    async def test_a_plain_function_is_called_and_told_apart(self) -> None:
        @processor("plain")
        def plain(timer: Timer, context: Context) -> Done:
            return Done("plain")

        assert not plain.is_async
        assert serving("a").is_async
        assert await run(plain, a_timer()) == Done("plain")

    def test_says_where_the_function_comes_from(self) -> None:
        assert serving("a").origin == f"{__name__}:serving.<locals>.serve"

    @pytest.mark.parametrize("prefix", ["", "timers", "Send", "a b", "-a", "a:b", "a" * 65, "a\n"])
    def test_refuses_a_prefix_outside_the_grammar(self, prefix: str) -> None:
        with pytest.raises(InvalidInput, match=r"^prefix: .* is not accepted; expected a prefix like"):
            processor(prefix)

    @pytest.mark.parametrize("timeout", [0, "0s", "soon", True, -1])
    def test_refuses_a_timeout_that_no_run_can_have(self, timeout: str | int) -> None:
        with pytest.raises(InvalidInput, match=r"^timeout: "):
            processor("a", timeout=timeout)

    def test_refuses_a_bad_retry_policy_and_names_its_field(self) -> None:
        with pytest.raises(InvalidInput, match=r"^retry\.backoff\.1: 'soon'"):
            processor("a", retry={"backoff": ["5s", "soon"]})

    @pytest.mark.parametrize("retry", [["5s", "1m"], ["1s"], "fixed", 5, False])
    def test_refuses_a_retry_policy_that_is_no_object(self, retry: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^retry: .* expected an object"):
            processor("a", retry=retry)


class TestLimits:
    def test_there_are_none_unless_declared(self) -> None:
        assert serving("a").limits == Limits(concurrency=None, pod_concurrency=None, rate=None)
        assert not serving("a").limits.bounds_concurrency

    def test_are_kept_as_declared(self) -> None:
        @processor("a", concurrency=3, pod_concurrency=2, rate="50/s")
        async def serve(timer: Timer, context: Context) -> None:
            return None

        assert serve.limits == Limits(concurrency=3, pod_concurrency=2, rate=Rate.parse("50/s"))
        assert serve.limits.bounds_concurrency

    @pytest.mark.parametrize(
        ("rate", "interval_us"),
        [("1/s", 1_000_000), ("50/s", 20_000), ("1000000/s", 1), ("100/m", 600_000), ("7/h", 514_285_714)],
    )
    def test_a_rate_is_the_time_between_two_starts(self, rate: str, interval_us: int) -> None:
        assert Rate.parse(rate).interval_us == interval_us
        assert Rate.parse(rate).burst >= 1

    @pytest.mark.parametrize(
        "rate", ["", "0/s", "50", "50/x", "-1/s", "1.5/s", "50/s ", "1000001/s", "9" * 5000 + "/s", 50]
    )
    def test_refuses_a_rate_that_is_none(self, rate: object) -> None:
        with pytest.raises(InvalidInput, match=r"^rate: "):
            Rate.parse(rate)

    @pytest.mark.parametrize("name", ["concurrency", "pod_concurrency"])
    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "5"])
    def test_refuses_a_concurrency_that_is_no_number_of_runs(self, name: str, value: object) -> None:
        limits: Any = {name: value}
        with pytest.raises(InvalidInput, match=rf"^{name}: .* expected a whole number of at least 1$"):
            processor("a", **limits)


class Name(str):
    """A prefix that can be weakly referenced, to see if anything keeps it."""

    __slots__ = ("__weakref__",)


class TestMatch:
    def test_serves_its_prefix_and_what_continues_it(self) -> None:
        send = serving("send-message")
        registry = Registry([send])
        assert registry.match("send-message") is send
        assert registry.match("send-message-24h-after-signup") is send
        assert registry.match("send-messag") is None
        assert registry.match("resend-message") is None

    def test_log_does_not_run_login_check(self) -> None:
        log = serving("log")
        registry = Registry([log])
        assert [registry.match(f"log{mark}in") for mark in "-_."] == [log] * 3
        assert [registry.match(prefix) for prefix in ("login-check", "log2", "logs.x", "lo", "l")] == [None] * 5

    @pytest.mark.parametrize("reverse", [False, True])
    def test_the_longest_of_several_nested_prefixes_wins_in_any_order(self, reverse: bool) -> None:
        found = [serving("send"), serving("send-message"), serving("send-message-24h")]
        registry = Registry(reversed(found) if reverse else found)
        assert registry.match("send-message-24h-after-signup") is found[2]
        assert registry.match("send-message-1h") is found[1]
        assert registry.match("send.r") is found[0]

    def test_a_hyphen_in_a_prefix_splits_nothing(self) -> None:
        """The published design split keys at `-`, so a prefix or id containing one reached no processor."""
        found = serving("a-b"), serving("a")
        registry = Registry(found)
        assert registry.match("a-b-c") is found[0]
        assert registry.match("a-c") is found[1]

    async def test_an_id_with_hyphens_arrives_whole(self) -> None:
        @processor("plain")
        def plain(timer: Timer, context: Context) -> Done:
            return Done(f"{timer.id} {context.idempotency_key}")

        timer = a_timer(prefix="plain-x", id="user-42-a:b")
        assert await run(plain, timer) == Done(f"user-42-a:b plain-x:user-42-a:b:{timer.created_ms}:1")

    def test_answers_the_same_the_second_time(self) -> None:
        registry = Registry([serving("a")])
        assert registry.match("a-b") is registry.match("a-b") is not None
        assert registry.match("b") is registry.match("b") is None

    def test_remembers_a_bounded_number_of_prefixes(self) -> None:
        registry, remembered = Registry([serving("a")]), WeakSet[Name]()
        for number in range(100_001):
            name = Name(f"b{number}")
            remembered.add(name)
            registry.match(name)
        assert len(remembered) <= 100_000
        assert registry.match("a-1") is not None

    def test_two_processors_for_one_prefix_are_an_error_that_names_both(self) -> None:
        with pytest.raises(ConfigurationError, match=r"two processors for the prefix 'a': .*serve and .*serve; remove"):
            Registry([serving("a"), serving("a")])

    def test_the_same_processor_twice_is_one(self) -> None:
        found = serving("a")
        assert Registry([found, found]).processors == (found,)

    def test_require_names_what_there_is(self) -> None:
        with pytest.raises(NoProcessor, match=r"no processor serves the prefix 'x'; the processors are: a, b"):
            Registry([serving("b"), serving("a")]).require("x")
        with pytest.raises(NoProcessor, match="the processors are: none"):
            Registry([]).require("x")

    def test_require_gives_the_processor(self) -> None:
        found = serving("a")
        assert Registry([found]).require("a-b") is found

    def test_lists_prefixes_and_processors_sorted(self) -> None:
        found = [serving("b"), serving("a")]
        registry = Registry(found)
        assert registry.declared == ("a", "b")
        assert registry.processors == (found[1], found[0])


class TestOnly:
    def test_limits_the_pod_to_prefixes_that_start_with_one_of_them(self) -> None:
        found = serving("send")
        registry = Registry([found], only=["send-mail", "send-sms"])
        assert registry.match("send-mail-welcome") is found
        assert registry.match("send-sms") is found
        assert registry.match("send") is None
        assert registry.match("send-push") is None

    def test_does_not_change_which_processor_is_the_longest(self) -> None:
        found = [serving("send"), serving("send-mail-welcome")]
        registry = Registry(found, only=["send-mail"])
        assert registry.match("send-mail") is found[0]
        assert registry.match("send-mail-welcome") is found[1]

    def test_a_limit_matches_at_the_same_boundaries_as_a_processor(self) -> None:
        registry = Registry([serving("log"), serving("login")], only=["log"])
        assert registry.match("log-x") is not None
        assert registry.match("login") is None

    def test_declares_the_processors_that_the_limit_leaves_something_of(self) -> None:
        found = [serving("send"), serving("log"), serving("log-twice")]
        registry = Registry(found, only=["send-mail", "log"])
        assert registry.declared == ("log", "log-twice", "send")
        with pytest.raises(NoProcessor, match=r"the processors are: log, log-twice, send$"):
            registry.require("send-push")
        assert Registry(found, only=["log-twice-a"]).declared == ("log", "log-twice")
        assert Registry(found, only=["nope"]).declared == ()

    def test_a_part_that_no_processor_can_serve_is_named_with_those_there_are(self) -> None:
        found = [serving("send"), serving("log")]
        Registry(found, only=["send-mail", "log"]).check_only()
        Registry([serving("log-twice")], only=["log"]).check_only()
        Registry(found).check_only()
        for part in ("nope", "lo", "login"):
            with pytest.raises(ConfigurationError) as caught:
                Registry(found, only=["log", part]).check_only()
            assert str(caught.value) == (
                f"TIMERS_PREFIXES: {part!r} is not accepted; "
                "expected prefixes that a processor of this pod serves; it has processors for: log, send"
            )
