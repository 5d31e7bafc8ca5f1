"""`docs/reference.md` names the limits, defaults and words of a timer's fields as they are in the code, and
`processors/README.md` the options of a processor and the parts of its context."""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from timers import Context, processor
from timers.cli import COMMANDS
from timers.client.actions import REPLAY_LIMIT
from timers.core import shapes
from timers.core.cron import CRON_FORMS
from timers.core.durations import NAMED_INTERVALS
from timers.core.policies import RetryPolicy
from timers.core.spec import NewTimer
from timers.setting_values import HOOKS_LIMIT, MAX_SHARDS
from timers.testing import LabRun, TimerLab, call

DOCS: Final = Path(__file__).parents[2] / "docs"
TABLE: Final = r"\| (option|`context\.`) \| \w+ \|\n((?:\|.*\n)+)"
NAMES, VALUES = shapes.METADATA["propertyNames"], shapes.METADATA["additionalProperties"]


def page(name: str = "reference") -> str:
    return " ".join((DOCS / f"{name}.md").read_text("utf-8").split())


def section(name: str) -> str:
    return page().partition(f"## {name} ")[2].partition(" ## ")[0]


@pytest.mark.parametrize(
    "said",
    [
        f"up to {shapes.TAGS['maxItems']} strings of at most {shapes.TAG['maxLength']} characters",
        f"up to {shapes.METADATA['maxProperties']} pairs of strings, names of at most {NAMES['maxLength']}",
        f"and values of at most {VALUES['maxLength']} characters",
        f"a ladder of up to {shapes.LADDER_LIMIT} steps",
        f"the number of shards, at most {MAX_SHARDS:,}",
        f"comma-separated, at most {HOOKS_LIMIT}: [calls when timers change](hooks.md)",
        f"comma-separated, at most {HOOKS_LIMIT}: [whom to tell](hooks.md#alarms)",
    ],
)
def test_the_reference_has_the_limit(said: str) -> None:
    assert said in page()


def test_operations_has_the_limit_of_a_replay() -> None:
    assert f"at most {REPLAY_LIMIT:,} in one window" in page("operations")


@pytest.mark.parametrize("name", [*NAMED_INTERVALS, *re.findall(r"@(?!midnight|annually)\w+", CRON_FORMS)])
def test_the_section_on_repeats_has_the_name(name: str) -> None:
    assert f"`{name}`" in section("Repeat")


def test_the_section_on_retries_shows_the_defaults() -> None:
    shown: Any = json.loads(re.findall(r"`({.+?})`", section("Retry"))[0])
    assert RetryPolicy.parse(shown) == RetryPolicy()
    assert "(at most 1,000)" in section("Retry")
    with pytest.raises(ValueError, match="1000"):
        RetryPolicy.parse({"max_attempts": 1001})


@pytest.mark.parametrize("day", ["L", "MON#2", "5L"])
def test_a_day_that_the_section_on_repeats_names_is_accepted(day: str) -> None:
    cron = f"0 9 {day} * *" if day == "L" else f"0 9 * * {day}"
    assert NewTimer.parse({"prefix": "log", "repeat": {"cron": cron}}).repeat
    assert f"`{day}`" in section("Repeat")


def test_the_page_of_the_processors_has_every_option_and_every_part_of_the_context() -> None:
    text = (DOCS.parent / "processors" / "README.md").read_text("utf-8")
    tables = {head: re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) for head, rows in re.findall(TABLE, text)}
    assert tables["option"] == list(inspect.signature(processor).parameters)[1:]
    assert tables["`context.`"] == list(Context._fields)


def test_the_reference_lists_the_commands_as_the_help_does() -> None:
    text = (DOCS / "reference.md").read_text("utf-8").partition("## Command line")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `timers ([\w-]+)` \| (.+) \|$", text, re.MULTILINE)
    assert listed == [row for commands in COMMANDS.values() for row in commands.items()]


def test_the_page_of_the_processors_has_what_a_test_sees_in_the_lab(timer_lab: TimerLab) -> None:
    text = (DOCS.parent / "processors" / "README.md").read_text("utf-8").partition("### Test it")[2]
    named = re.findall(r"^\| `(\w+)(?!\w|\.)", text, re.MULTILINE)
    assert named == ["add", "timers", "advance", "now", "runs"]
    assert all(hasattr(timer_lab, name) for name in named)
    assert [each.name for each in fields(LabRun) if f"`{each.name}`" not in text] == []
    used = re.findall(r"(\w+)=", text.partition("`call(")[2].partition(")`")[0])
    assert used
    assert set(used) < set(inspect.signature(call).parameters)
