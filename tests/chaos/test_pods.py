"""The pods of a run: which count as working, and what the error says about one that died."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.faults import kill
from tests.chaos.pods import PodDied
from tests.chaos.proxy import Proxy
from tests.chaos.stage import Needs, Stage, stage

LEASE_MS = 4_000


async def _first_sign_unanswered(on: Stage) -> None:
    """Replaces the only pod. The new pod's first sign of life is registered, but its answer is lost."""
    assert on.proxy is not None
    (pod,) = on.pods.live  # this pod has loaded the script: otherwise the first reply would only say that it is unknown
    await kill(on.witness, pod)
    async with asyncio.TaskGroup() as group:
        group.create_task(_lose_surely(on.proxy, "beat"))
        group.create_task(on.pods.replace(pod))


async def _lose_surely(proxy: Proxy, script: str) -> None:
    while not await proxy.lose_reply(script):
        """Nobody has called it yet."""


async def test_a_pod_that_gives_up_its_start_after_its_first_sign_of_life_never_counted_as_ready(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, family="redis", pods=1, lease_ms=LEASE_MS, needs=Needs(proxy=True)) as on:
        await _first_sign_unanswered(on)
        with pytest.raises(PodDied, match="pod-2 ended with 1"):
            await on.pods.ready()


async def test_no_sign_of_life_is_waited_for_from_a_pod_that_is_gone(tmp_path: Path) -> None:
    async with stage(tmp_path, family="redis", pods=1, lease_ms=LEASE_MS, needs=Needs(proxy=True)) as on:
        await _first_sign_unanswered(on)
        await on.pods.live[0].ended()
        with pytest.raises(PodDied, match="pod-2 ended with 1"):
            await on.pods.healed()
