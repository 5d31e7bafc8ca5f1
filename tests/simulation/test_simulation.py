"""Small worlds in which anything may go wrong at any await, and the proof that they would notice."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import pytest

from tests.simulation import faults
from tests.simulation.__main__ import story_of
from tests.simulation.plants import PLANTS
from tests.simulation.story import shrink, tell
from tests.simulation.world import each_alone, each_cut, play, simulated

WORLDS = 1000
"""About 25 seconds of CPU, on as many cores as there are."""

FOUND = (1001033, 1001651, 1003177, 1004827, 1006058, 1010254, 1014330)
"""Worlds that showed a mistake among twenty thousand: of bare keys (1003177, 1004827, 1006058, 1010254), of the oracle
(the others)."""

WITH_LEDGER = 80
"""Each takes five times as long."""

FOUND_WITH_LEDGER = (5, 10, 321, 512, 689, 102456, 102723, 105024, 402829)
"""Worlds with a ledger that showed a mistake among the first twenty thousand: what a caller who keeps a timer is told
while the server is away (5), prefixes that only the ledger knows after a loss (10, 321, 402829), a create that nobody
was answered (512), a bare key whose pod dies (689), removals before a shard is followed (102456, 102723), a create that
another one overtakes (105024)."""

USUAL = 100
"""Worlds that notice most mistakes."""

ALONE = 8
"""Worlds of which each is played twice for each of its claims."""

CUT = 5
"""Worlds of which each is played once for each message that pods hear."""

FEW = 15
"""Those of the first world, or of the one that a planted fault names."""


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.timeout(1200)  # on a machine whose cores are taken the seconds are many
@pytest.mark.parametrize(("worlds", "ledger"), [(WORLDS, False), (WITH_LEDGER, True)], ids=["", "ledger"])
def test_no_world_breaks_a_promise(worlds: int, *, ledger: bool) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(worlds), *["--ledger"] * ledger]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    said = played.stdout.splitlines()
    assert played.returncode == 0, "\n".join([*said, *_first_story(said, ledger=ledger), played.stderr])
    assert said[-1].startswith(f"{worlds:,} worlds from seed 0: 0 failed")
    assert {line.split(maxsplit=1)[1] for line in said[:-1]} == faults.KINDS
    print(said[-1])


@pytest.mark.parametrize(
    ("seed", "ledger"), [*((seed, False) for seed in FOUND), *((seed, True) for seed in FOUND_WITH_LEDGER)]
)
def test_a_world_that_once_broke_a_promise_breaks_none(seed: int, *, ledger: bool) -> None:
    world = play(seed, ledger=ledger)
    assert world.findings == [], list(tell(world))


def _first_story(said: Iterable[str], *, ledger: bool) -> Iterator[str]:
    for line in said:
        if line.startswith("seed "):
            yield from story_of(int(line.split()[1]), ledger=ledger)
            return


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    with plant.planted():
        texts = plant.scripts()
        first = play(plant.seen_by, texts=texts, ledger=plant.ledger)
        cut = (world for seed in range(CUT) for world in each_cut(seed, texts))
        others = (play(seed, texts=texts, ledger=plant.ledger) for seed in range(WORLDS))
        worlds = chain([first], () if plant.ledger else islice(cut, FEW), islice(others, USUAL), cut, others)
        assert any(world.findings for world in worlds), f"no world notices: {name}"


def test_a_claim_that_fails_alone_loses_nothing() -> None:
    for seed in range(ALONE):
        for world in each_alone(seed, "claim"):
            assert (seed, world.faults, world.findings) == (seed, world.faults, [])


def test_messages_that_no_pod_hears_lose_nothing() -> None:
    for seed in range(CUT):
        for world in each_cut(seed):
            assert (seed, world.faults, world.findings) == (seed, world.faults, [])


def test_a_seed_always_plays_the_same_world() -> None:
    seeds = range(6)
    digests = [play(seed, ledger=seed % 2 == 0).digest for seed in seeds]
    assert digests == [play(seed, ledger=seed % 2 == 0).digest for seed in seeds]
    code = (
        "from tests.simulation.world import play, simulated\n"
        f"with simulated(): print([play(seed, ledger=seed % 2 == 0).digest for seed in range({len(seeds)})])"
    )
    for hash_seed in ("1", "2"):
        elsewhere = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert elsewhere.stdout.strip() == str(digests)


def test_the_faults_of_a_world_can_be_played_again() -> None:
    for seed in range(10):
        world = play(seed, ledger=seed % 2 == 0)
        assert play(seed, chosen=world.faults, ledger=seed % 2 == 0).digest == world.digest


def test_a_failure_is_shrunk_to_its_story() -> None:
    plant = PLANTS["claim 1 ms early"]
    with plant.planted():
        worlds = (play(seed, texts=plant.scripts()) for seed in range(WORLDS))
        world = next(world for world in worlds if "never early" in {finding.rule for finding in world.findings})
        small = shrink(world, plant.scripts())
    assert {"never early"} <= {finding.rule for finding in small.findings}
    assert len(small.plan.acts) < len(world.plan.acts)
    assert len(small.faults) <= len(world.faults)
    story = list(tell(small))
    assert "never early" in story[-1]
    assert any("create" in line for line in story)
    assert any("claim" in line for line in story)
