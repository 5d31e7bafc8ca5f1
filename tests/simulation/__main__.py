"""`python -m tests.simulation`: plays worlds, names those that fail, and says how fast it was. With `--seed` it tells
the story of one; with `--plants` it says in how many worlds each planted fault is found."""

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

from tests.simulation.plants import NO_PLANT, PLANTS
from tests.simulation.story import shrink, tell
from tests.simulation.world import play, simulated

CHUNK: Final = 100
"""Worlds that one process plays before it says how they went."""


class Played(NamedTuple):
    """What some worlds came to: the seeds that failed with the rules they broke, faults that happened by their kind,
    and the CPU seconds."""

    worlds: int
    failed: dict[int, list[str]]
    faults: Counter[str]
    cpu_seconds: float


def play_some(seeds: Iterable[int], plant: str = "", ledger: bool = False) -> Played:
    """Play the worlds of some seeds."""
    began, number, failed, faults = time.process_time(), 0, dict[int, list[str]](), Counter[str]()
    planted = PLANTS.get(plant, NO_PLANT)
    with simulated(), planted.planted():
        for seed in seeds:
            world = play(seed, texts=planted.scripts(), ledger=ledger or planted.ledger)
            number += 1
            faults.update(fault.kind for fault in world.faults)
            if world.findings:
                failed[seed] = sorted({finding.rule for finding in world.findings})
    return Played(number, failed, faults, time.process_time() - began)


def story_of(seed: int, plant: str = "", *, ledger: bool = False) -> Iterator[str]:
    """The story of a seed: shrunk if the world fails, else as it is."""
    planted = PLANTS.get(plant, NO_PLANT)
    with simulated(), planted.planted():
        world = play(seed, texts=planted.scripts(), ledger=ledger or planted.ledger)
        yield from tell(shrink(world, planted.scripts()) if world.findings else world)


def main(arguments: list[str]) -> int:
    """Exit code 1 if a world failed, or a planted fault was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (default 1000)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="play one world and tell its story")
    parser.add_argument("--plant", default="", choices=["", *PLANTS], metavar="NAME", help="with this planted fault")
    parser.add_argument("--plants", action="store_true", help="with each planted fault in turn")
    parser.add_argument("--ledger", action="store_true", help="the worlds of these seeds that have a ledger")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        for line in story_of(given.seed, given.plant, ledger=given.ledger):
            print(line)
        return 0
    seeds = range(given.first, given.first + given.seeds)
    if given.plants:
        return score(seeds, given.jobs)
    return report(seeds, given.jobs, given.plant, ledger=given.ledger)


def report(seeds: range, jobs: int, plant: str, *, ledger: bool) -> int:
    """Play all seeds and print what was found."""
    began, worlds, cpu_seconds, failed, faults = time.monotonic(), 0, 0.0, dict[int, list[str]](), Counter[str]()
    for played in _in_chunks(seeds, jobs, plant, ledger=ledger):
        worlds, cpu_seconds = worlds + played.worlds, cpu_seconds + played.cpu_seconds
        faults += played.faults
        for seed, rules in played.failed.items():
            print(f"seed {seed} breaks: {', '.join(rules)}; see --seed {seed}{' --ledger' * ledger}", flush=True)
        failed |= played.failed
        if sys.stderr.isatty():
            print(f"\r{worlds:,} of {len(seeds):,}", end="", file=sys.stderr)
    for kind, number in faults.most_common():
        print(f"{number:10,}  {kind}")
    seconds = time.monotonic() - began
    print(
        f"{worlds:,} worlds from seed {seeds.start}: {len(failed)} failed, {faults.total():,} faults; {seconds:.0f} s, "
        f"{worlds / seconds:.0f} worlds/s ({worlds / cpu_seconds:.0f} per CPU second, {jobs} processes)"
    )
    return int(bool(failed))


def score(seeds: range, jobs: int) -> int:
    """Play all seeds with each planted fault and print in how many worlds it was found, and by which rules."""
    missed = 0
    print("| planted fault | found in | first seed | by the rules |\n|---|---|---|---|")
    with ProcessPoolExecutor(jobs) as pool:
        for name, played in zip(PLANTS, pool.map(play_some, [seeds] * len(PLANTS), PLANTS), strict=True):
            rules = Counter(rule for rules in played.failed.values() for rule in rules)
            missed += not played.failed
            first = min(played.failed, default="—")
            by = ", ".join(rule for rule, _ in rules.most_common())
            print(f"| {name} | {len(played.failed)} of {played.worlds} | {first} | {by} |", flush=True)
    return int(bool(missed))


def _in_chunks(seeds: range, jobs: int, plant: str, *, ledger: bool) -> Iterator[Played]:
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from (play_some(chunk, plant, ledger) for chunk in chunks)
        return
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(jobs))
        yield from pool.map(play_some, chunks, [plant] * len(chunks), [ledger] * len(chunks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
