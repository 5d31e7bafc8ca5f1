"""Loading processors: by name, by entry point, and errors in modules."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.samples import a_timer, run
from timers.core.outcome import Rearm
from timers.errors import ConfigurationError
from timers.processor import load

WriteModule = Callable[..., str]

ONE_PROCESSOR = """
from timers.processor import processor

@processor({prefix!r})
async def serve(timer, context):
    return None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """Writes an importable module and returns its name. After the test the module is unloaded."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> str:
        assert name not in sys.modules
        (tmp_path / f"{name}.py").write_text(source)
        # So that the fixture's undo removes what the import adds.
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
        return name

    return write


def complaint(*paths: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(paths)
    return str(caught.value)


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
            "expected all, none, or a comma-separated list of log, send-message, webhook"
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

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("import sys\nsys.exit(0)", "SystemExit: 0"),
            ("import argparse\nargparse.ArgumentParser().parse_args(['x'])", "SystemExit: 2"),
            ("import asyncio\nraise asyncio.CancelledError('3')", "CancelledError: 3"),
            ("raise RuntimeError('two\\nlines 4')", "RuntimeError: two lines 4"),
            ("class E5(Exception):\n    def __str__(self): return 5\nraise E5", "E5"),
        ],
    )
    def test_a_module_that_ends_the_process_is_named(self, module: WriteModule, source: str, said: str) -> None:
        """In one line, also where it raises no Exception, or one that cannot say what it is."""
        name = module(f"plugin_that_ends_{said[-1]}", source)
        assert complaint(name) == f"TIMERS_PROCESSORS names {name!r}, which cannot be imported: {said}"

    def test_an_object_that_cannot_be_read_is_named(self, module: WriteModule) -> None:
        name = module("plugin_that_is_lazy", "def __getattr__(name): 1 / 0")
        text = "cannot be read: ZeroDivisionError: division by zero"
        assert complaint(f"{name}:serve") == f"TIMERS_PROCESSORS names '{name}:serve', which {text}"

    def test_a_module_can_be_interrupted(self, module: WriteModule) -> None:
        name = module("plugin_that_waits", "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            load([name])

    @pytest.mark.parametrize("path", ["", ":serve", ".relative"])
    def test_an_impossible_path_is_named(self, path: str) -> None:
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

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("return 1 / 0", "raised ZeroDivisionError: division by zero"),
            ("yield 1 / 0", "raised ZeroDivisionError: division by zero"),
            ("raise OSError('two\\nlines')", "raised OSError: two lines"),
            ("raise SystemExit(0)", "raised SystemExit: 0"),
            ("return None", "returned nothing"),
            ("return 7", "returned 7"),
            ("return [7]", "returned [7]"),
        ],
    )
    def test_a_function_that_makes_no_processors_is_named(self, module: WriteModule, body: str, reason: str) -> None:
        name = module(f"plugin_that_makes_none_{sum(map(ord, body))}", f"def make():\n    {body}\n")
        accepted = "expected a function that returns a list of processors"
        assert complaint(f"{name}:make") == f"TIMERS_PROCESSORS names '{name}:make', which {reason}; {accepted}"

    @pytest.mark.parametrize("path", ["timers", "timers.mine", "timers:serve"])
    def test_a_module_with_the_services_name_is_refused(self, path: str) -> None:
        text = complaint(path)
        assert text.startswith(
            f"TIMERS_PROCESSORS names {path!r}, but `timers` is the service's own package; give your"
        )

    def test_a_prefix_of_the_services_own_timers_is_refused(self, module: WriteModule) -> None:
        """Nobody could arm such a timer, or the processor would run the service's own."""
        name = module("plugin_for_hooks", ONE_PROCESSOR.format(prefix="timers.mine"))
        assert complaint(name) == (
            "plugin_for_hooks:serve: 'timers.mine' is not accepted; "
            "expected a prefix that does not begin with 'timers.', which is reserved for the service"
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
    """Write the metadata that an installer writes for a distribution with one entry point."""
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[timers.processors]\n{entry_point}\n")
