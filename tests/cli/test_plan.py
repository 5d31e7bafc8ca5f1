"""`timers plan`: what it prints, what follows from what, and that its figures can be measured."""

import re

import pytest

from tests.bench import __main__ as bench
from tests.bench.scale import CAPACITY_COLUMNS, SCALE_COLUMNS
from tests.cli.commands import CommandLine
from tests.nursery import ROOT
from timers.cli.planning import BUSY, FIGURES, SERVER_GIB, Figure, plan

COLUMNS = {"capacity": CAPACITY_COLUMNS, "scale": SCALE_COLUMNS}


def test_it_says_what_a_load_needs_and_from_what(bare: CommandLine) -> None:
    ended = bare("plan", "--timers", "10M", "--rate", "5000", "--payload", "200")
    assert ended.code == 0, ended
    rows = {line[:21].strip(): line.split()[-1] for line in ended.out.splitlines()[1:10]}
    assert list(rows) == [
        *("services", "primaries of each", "shards", "data of each, GiB", "memory of each, GiB", "pods of each"),
        *("connections to each", "fork of each, ms", "restart of each, s"),
    ]
    assert "What breaks first: " in ended.out
    for figure in FIGURES:
        assert f"{figure.value:g} {figure.unit} ({figure.source})" in ended.out


def test_programs_get_numbers(bare: CommandLine) -> None:
    found = bare("plan", "--timers", "10M", "--rate", "5k", "-o", "json").json
    assert found["data_gib"] == pytest.approx(10e6 * 464 / 2**30, rel=0.01)
    assert found["services"] == 1
    assert list(found["uses"].values()) == sorted(found["uses"].values(), reverse=True)
    assert len(found["sources"]) == len(FIGURES)


def test_it_needs_no_redis(bare: CommandLine) -> None:
    assert bare("plan", "--timers", "1k", "--rate", "1", "--url", "redis://127.0.0.1:1").code == 0


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.unit)
def test_each_figure_comes_from_a_benchmark(figure: Figure) -> None:
    command, _, column = figure.source.partition(": ")
    *_, name = command.split(" --")[0].split()
    assert name in bench.NAMES
    assert column in {each.name for each in COLUMNS[name]}
    assert command.startswith("python -m tests.bench ")
    assert set(re.findall(r"--[\w-]+", command)) <= {"--per-s", "--pods"}


@pytest.mark.parametrize(
    ("option", "text"), [("--timers", "many"), ("--rate", "0"), ("--rate", "-1"), ("--timers", "5T")]
)
def test_what_is_no_number_is_named(bare: CommandLine, option: str, text: str) -> None:
    given = {"--timers": "1M", "--rate": "10"} | {option: text}
    ended = bare("plan", *(f"{name}={value}" for name, value in given.items()))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"timers: {option}: '{text}' is not accepted; expected a number above 0")


def test_a_small_load_takes_one_server_and_two_pods() -> None:
    small = plan(100_000, 100)
    assert (small.services, small.primaries, small.shards, small.pods) == (1, 1, 1, 2)


def test_more_of_anything_never_needs_less() -> None:
    before = plan(1_000, 1)
    for timers, rate in ((10**6, 100), (10**7, 5_000), (10**8, 20_000), (10**9, 10**6)):
        found = plan(timers, rate)
        assert found.services * found.primaries >= before.services * before.primaries
        assert found.services * found.pods >= before.services * before.pods
        before = found


@pytest.mark.parametrize(
    "load",
    [(10**6, 10), (10**9, 10), (10**4, 10**5), (10**9, 10**6), (10**7, 500, 60_000, 60), (10**7, 1000, 60, 600)],
)
def test_nothing_is_over_its_limit(load: tuple[int, ...]) -> None:
    """But the restart, which is as long as there are timers."""
    found = plan(*load)
    assert found.uses.pop("the time of a restart") >= 0
    assert max(found.uses.values()) <= 1
    assert found.uses["the core of a server"] <= BUSY + 0.01
    assert found.data_gib / found.primaries <= SERVER_GIB


@pytest.mark.parametrize(
    ("row", "load"),
    [
        ("100,000 | 100", (10**5, 100)),
        ("10 million | 5,000", (10**7, 5_000)),
        ("100 million | 20,000", (10**8, 20_000)),
        ("a billion | 10,000", (10**9, 10_000)),
        ("100 million | 100,000", (10**8, 100_000)),
        ("a billion | a million", (10**9, 10**6)),
    ],
)
def test_the_document_has_what_the_command_says(row: str, load: tuple[int, ...]) -> None:
    found = plan(*load)
    numbers = f"{found.services} | {found.primaries} | {found.shards} | {found.pods} | "
    document = (ROOT / "timers/ARCHITECTURE.md").read_text()
    (line,) = [line for line in document.splitlines() if line.startswith(f"| {row} | ")]
    assert line.startswith(f"| {row} | {numbers}")
    assert f" | {found.connections} | {found.fork_ms:,} | {found.restart_s} | " in line
