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

FOUND = (1001033, 1001651, 1006058, 1010254, 1014330)
"""Worlds that showed a mistake among twenty thousand: of bare keys (1006058, 1010254), of the oracle (the others)."""

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
def test_no_world_breaks_a_promise() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(WORLDS)]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    said = played.stdout.splitlines()
    assert played.returncode == 0, "\n".join([*said, *_first_story(said), played.stderr])
    assert said[-1].startswith(f"{WORLDS:,} worlds from seed 0: 0 failed")
    assert {line.split(maxsplit=1)[1] for line in said[:-1]} == faults.KINDS
    print(said[-1])


@pytest.mark.parametrize("seed", FOUND)
def test_a_world_that_once_broke_a_promise_breaks_none(seed: int) -> None:
    world = play(seed)
    assert world.findings == [], list(tell(world))


def _first_story(said: Iterable[str]) -> Iterator[str]:
    for line in said:
        if line.startswith("seed "):
            yield from story_of(int(line.split()[1]))
            return


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    with plant.planted():
        texts = plant.scripts()
        first = play(plant.seen_by, texts=texts)
        alone = (world for seed in (plant.seen_alone, *range(ALONE)) for world in each_alone(seed, "claim", texts))
        cut = (world for seed in range(CUT) for world in each_cut(seed, texts))
        others = (play(seed, texts=texts) for seed in range(WORLDS))
        worlds = chain([first], islice(cut, FEW), islice(alone, FEW), islice(others, USUAL), alone, cut, others)
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
    digests = [play(seed).digest for seed in seeds]
    assert digests == [play(seed).digest for seed in seeds]
    code = (
        "from tests.simulation.world import each_alone, play, simulated\n"
        f"with simulated(): print([play(seed).digest for seed in range({len(seeds)})])"
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
        world = play(seed)
        assert play(seed, chosen=world.faults).digest == world.digest


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
