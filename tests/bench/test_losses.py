"""The failover that `losses` makes takes what is `fast`, and spares what is `replicated`."""

from pathlib import Path
from random import Random

from tests.bench.losses import Lost, failover
from timers.embedded import Family


async def test_neither_creates_nor_ends_that_were_replicated_are_lost(family: Family, tmp_path: Path) -> None:
    found = await failover(family, tmp_path, Random(1), 100, creates="replicated", ends="replicated")
    assert found == Lost(found.made, 0, found.ended, 0)
    assert min(found.made, found.ended) > 0


async def test_what_was_only_fast_is(family: Family, tmp_path: Path) -> None:
    found = await failover(family, tmp_path, Random(1), 100, creates="fast", ends="fast")
    assert found.lost > 0
