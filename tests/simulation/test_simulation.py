"""Small worlds in which anything may go wrong at any await, and the proof that they would notice."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation import faults
from tests.simulation.__main__ import story_of
from tests.simulation.plants import PLANTS
from tests.simulation.story import shrink, tell
from tests.simulation.world import play, simulated

WORLDS = 250
"""Ten to twenty seconds of CPU, by how busy the machine is."""


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


def test_no_world_breaks_a_promise() -> None:
    happened = set[str]()
    for seed in range(WORLDS):
        world = play(seed)
        assert not world.findings, "\n".join(story_of(seed))
        happened.update(fault.kind for fault in world.faults)
    assert happened == faults.KINDS


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    with plant.planted():
        texts = plant.scripts()
        seeds = [plant.seen_by, *range(WORLDS)]
        assert any(play(seed, texts=texts).findings for seed in seeds), f"no world notices: {name}"


def test_a_seed_always_plays_the_same_world() -> None:
    seeds = range(6)
    digests = [play(seed).digest for seed in seeds]
    assert digests == [play(seed).digest for seed in seeds]
    code = (
        "from tests.simulation.world import play, simulated\n"
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
        world = play(plant.seen_by, texts=plant.scripts())
        small = shrink(world, plant.scripts())
    assert {"never early"} <= {finding.rule for finding in small.findings}
    assert len(small.plan.acts) < len(world.plan.acts)
    assert len(small.faults) <= len(world.faults)
    story = list(tell(small))
    assert "never early" in story[-1]
    assert any("create" in line for line in story)
    assert any("claim" in line for line in story)
