"""Processors: the decorator, who serves a prefix, and how the functions of an operator are found and loaded."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from tests.unit.samples import a_timer, run
from timers.core.model import Timer
from timers.core.outcome import Done, Rearm
from timers.core.policies import RetryPolicy
from timers.errors import ConfigurationError, InvalidInput, NoProcessor
from timers.processor import Context, Limits, Processor, Rate, Registry, load, processor

WriteModule = Callable[..., str]

ONE_PROCESSOR = """
from timers.processor import processor

@processor({prefix!r})
async def serve(timer, context):
    return None
"""


def serving(prefix: str) -> Processor:
    @processor(prefix)
    async def serve(timer: Timer, context: Context) -> None:
        return None

    return serve


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """Writes an importable module and gives its name; forgotten again after the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> str:
        assert name not in sys.modules
        (tmp_path / f"{name}.py").write_text(source)
        # So that the undoing of the fixture removes what the import adds.
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
        return name

    return write


class Takes:
    """A callable object."""

    async def __call__(self, timer: Timer, context: Context) -> None:
        pass


def complaint(*paths: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(paths)
    return str(caught.value)


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
        """At each run it would fail."""
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
    """A prefix of which one can tell whether anybody remembers it."""

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
        """The published design cut keys at `-`, so that a prefix or id containing one reached no processor."""
        found = serving("a-b"), serving("a")
        registry = Registry(found)
        assert registry.match("a-b-c") is found[0]
        assert registry.match("a-c") is found[1]

    async def test_an_id_with_hyphens_arrives_whole(self) -> None:
        @processor("plain")
        def plain(timer: Timer, context: Context) -> Done:
            return Done(f"{timer.id} {context.idempotency_key}")

        timer = a_timer(prefix="plain-x", id="user-42-a:b")
        assert await run(plain, timer) == Done("user-42-a:b plain-x:user-42-a:b:1")

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


class TestLoad:
    def test_the_built_in_ones_are_always_there(self) -> None:
        assert load().declared == ("log", "send-message", "webhook")

    @pytest.mark.parametrize("names", [(), ("log",)])
    def test_only_the_built_in_ones_that_are_named_are_there(self, names: tuple[str, ...]) -> None:
        assert load(builtin=names).declared == names

    def test_an_unknown_built_in_is_named_with_the_known_ones(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load(builtin=["log", "mail"])
        assert str(caught.value) == (
            "TIMERS_BUILTIN: 'mail' is not accepted; "
            "expected all, none, or a comma-separated list of log, send-message, timers.hook, webhook"
        )

    def test_passes_the_limit_on(self) -> None:
        registry = load(only=["log"])
        assert registry.match("send-message") is None
        assert registry.match("log") is not None

    def test_a_module_brings_all_its_processors(self, module: WriteModule) -> None:
        name = module(
            "plugin_of_two",
            ONE_PROCESSOR.format(prefix="one") + ONE_PROCESSOR.format(prefix="two").replace("serve", "other"),
        )
        assert {"one", "two"} <= set(load([name]).declared)

    def test_a_colon_names_one_object(self, module: WriteModule) -> None:
        name = module(
            "plugin_of_one",
            ONE_PROCESSOR.format(prefix="one") + ONE_PROCESSOR.format(prefix="two").replace("serve", "other"),
        )
        prefixes = load([f"{name}:other"]).declared
        assert "two" in prefixes
        assert "one" not in prefixes

    def test_the_same_processor_by_two_ways_is_one(self, module: WriteModule) -> None:
        name = module("plugin_named_twice", ONE_PROCESSOR.format(prefix="one"))
        assert "one" in load([name, f"{name}:serve", name]).declared

    def test_two_modules_with_the_same_prefix_are_an_error(self, module: WriteModule) -> None:
        names = [module(name, ONE_PROCESSOR.format(prefix="one")) for name in ("plugin_left", "plugin_right")]
        text = complaint(*names)
        assert "two processors for the prefix 'one': plugin_left:serve and plugin_right:serve" in text

    def test_a_missing_module_is_named(self) -> None:
        text = complaint("no_such_module_here")
        assert text.startswith(
            "TIMERS_PROCESSORS names 'no_such_module_here', which cannot be imported: ModuleNotFound"
        )

    def test_a_module_that_breaks_is_named_with_its_error(self, module: WriteModule) -> None:
        name = module("plugin_that_breaks", "1 / 0")
        assert complaint(name).endswith("which cannot be imported: ZeroDivisionError: division by zero")

    @pytest.mark.parametrize("path", ["", ":serve", ".relative"])
    def test_a_path_that_is_none_is_named(self, path: str) -> None:
        assert f"TIMERS_PROCESSORS names {path!r}, which cannot be imported" in complaint(path)

    def test_a_module_without_processors_is_named(self, module: WriteModule) -> None:
        name = module("plugin_without_any", "def serve(timer, context): ...")
        assert complaint(name) == (
            "TIMERS_PROCESSORS names 'plugin_without_any', which has no function with the decorator @processor"
        )

    @pytest.mark.parametrize("attribute", ["serve", "absent"])
    def test_an_object_that_is_no_processor_is_named(self, module: WriteModule, attribute: str) -> None:
        name = module(f"plugin_plain_{attribute}", "def serve(timer, context): ...")
        assert complaint(f"{name}:{attribute}") == (
            f"TIMERS_PROCESSORS names '{name}:{attribute}', which is not a function with the decorator @processor"
        )

    def test_a_function_without_parameters_brings_what_it_returns(self, module: WriteModule) -> None:
        name = module(
            "plugin_that_makes_them",
            "from timers.processor import processor\n"
            "def make():\n    return [processor(prefix)(lambda timer, context: None) for prefix in ('one', 'two')]\n",
        )
        assert {"one", "two"} <= set(load([f"{name}:make"]).declared)

    @pytest.mark.parametrize("path", ["timers", "timers.mine", "timers:serve"])
    def test_a_module_with_the_services_name_is_refused(self, path: str) -> None:
        text = complaint(path)
        assert text.startswith(
            f"TIMERS_PROCESSORS names {path!r}, but `timers` is the service's own package; give your"
        )

    def test_an_installation_without_its_entry_points_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["timers.processor"], "entry_points", lambda **_: ())
        assert complaint() == "the built-in processors are missing; reinstall redis-timers (`make setup`)"

    async def test_the_example_in_the_documentation_works(self, module: WriteModule) -> None:
        readme = Path(__file__).parents[2] / "processors" / "README.md"
        (example,) = [part for part in readme.read_text("utf-8").split("```") if '@processor("invoice-' in part]
        name = module("plugin_of_the_readme", example.removeprefix("python\n"))
        remind = load([name]).require("invoice-reminder-2026")
        timer = a_timer(spec={"payload": {"mail": "ann@example.org"}})
        assert await run(remind, timer) == Rearm(after="1d", payload={"mail": "ann@example.org", "sent": 1})

    def test_the_example_of_a_lifespan_in_the_documentation_loads(self, module: WriteModule) -> None:
        readme = Path(__file__).parents[2] / "processors" / "README.md"
        (example,) = [part for part in readme.read_text("utf-8").split("```") if "lifespan=session" in part]
        name = module("plugin_of_the_readme_with_a_session", example.removeprefix("python\n"))
        assert load([name]).require("sync-account").lifespan is sys.modules[name].session

    def test_an_installed_entry_point_is_found(self, module: WriteModule, tmp_path: Path) -> None:
        module("plugin_installed", ONE_PROCESSOR.format(prefix="installed"))
        install(tmp_path, "mine = plugin_installed:serve")
        assert "installed" in load().declared

    def test_an_entry_point_that_cannot_be_loaded_is_named(self, module: WriteModule, tmp_path: Path) -> None:
        module("plugin_unused", "")
        install(tmp_path, "mine = no_such_module_here:serve")
        text = complaint()
        assert text.startswith("the entry point 'mine' is 'no_such_module_here:serve', which cannot be imported")


def install(folder: Path, entry_point: str) -> None:
    """What an installer leaves behind for a distribution with one entry point."""
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[timers.processors]\n{entry_point}\n")
