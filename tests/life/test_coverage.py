"""Prefixes and shards that no live pod covers are named in `/readyz`, in `/metrics`, and by `timers doctor`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.api.harness import Api, running_api
from tests.engine.fleet import Calls, Fleet, Held, until
from tests.members import declare, sign_off
from timers.doctor.examining import examine

HOUR = "1h"


@dataclass(frozen=True, slots=True)
class Told:
    """What is reported of shards and prefixes: warnings, samples, and the doctor's (level, sentence)."""

    readyz: list[str]
    metrics: set[str]
    shards: tuple[str, str]
    prefixes: tuple[str, str]


@pytest.fixture
async def bystander(fleet: Fleet) -> AsyncIterator[Api]:
    """A pod that runs no timers."""
    async with running_api(fleet.url, []) as api:
        yield api


async def told(api: Api) -> Told:
    ready = (await api.call("GET", "/readyz")).body
    assert ready["ready"]
    samples = {line for line in (await api.text("/metrics")).splitlines() if line.startswith("timers_uncovered_")}
    checks = {check.name: (check.level, check.said) for check in await examine(api.store)}
    return Told(ready["warnings"], samples, checks["shards"], checks["prefixes"])


async def test_full_coverage_is_reported(fleet: Fleet, bystander: Api) -> None:
    await fleet.pod(Calls())
    await fleet.client.create("note", "x", delay=HOUR)
    fine = Told([], set(), ("ok", "every shard has a live worker"), ("ok", "every waiting timer has a live pod"))
    assert await told(bystander) == fine


async def test_without_any_worker_everything_is_unserved(fleet: Fleet, bystander: Api) -> None:
    await fleet.client.create("note", "x", delay=0)
    now = await told(bystander)
    assert now.readyz == [
        "shards without a live pod: 0",
        "timers are due, but no live pod serves note",
    ]
    assert now.metrics == {
        'timers_uncovered_shards{shard="0"} 1.0',
        'timers_uncovered_prefixes{prefix="note"} 1.0',
    }
    assert now.shards == ("fail", "no worker is alive, so nothing runs")
    assert now.prefixes == ("fail", "timers wait, but no live pod serves these prefixes: note")


async def test_a_prefix_that_no_pod_serves(fleet: Fleet, bystander: Api) -> None:
    """One pod has the processor but is limited to another prefix. The doctor also checks what is due later."""
    await fleet.pod(Calls("mail"), Calls("push"), only=["mail"], name="a")
    await declare(fleet.store, "push")
    await fleet.client.create("push-later", "x", delay=HOUR)
    await fleet.client.create("push-now", "x", delay=0)
    now = await told(bystander)
    assert now.readyz == ["timers are due, but no live pod serves push-now"]
    assert now.metrics == {'timers_uncovered_prefixes{prefix="push"} 1.0'}
    assert now.prefixes == ("fail", "timers wait, but no live pod serves these prefixes: push-later, push-now")
    await fleet.pod(Calls("push"), name="b")
    await fleet.completed("x", "push-now")
    assert (await told(bystander)).metrics == set()


async def test_a_prefix_whose_only_pod_died_in_a_run(fleet: Fleet, bystander: Api) -> None:
    """Nothing is due in its queue, but a run must be rescued."""
    held, calls = Held(), Calls()
    await fleet.pod(Calls("mail"), name="mails")
    dying = await fleet.pod(held, name="notes")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(dying)
    await sign_off(fleet.store, "notes")
    await fleet.expire_lease("x")
    now = await told(bystander)
    assert now.readyz == ["timers are due, but no live pod serves note"]
    assert now.metrics == {'timers_uncovered_prefixes{prefix="note"} 1.0'}
    assert now.prefixes == ("fail", "timers wait, but no live pod serves these prefixes: note")
    await fleet.pod(calls, name="again")
    await fleet.completed("x")
    assert (await told(bystander)).readyz == []


@pytest.fixture
async def sharded_bystander(sharded: Fleet) -> AsyncIterator[Api]:
    async with running_api(sharded.url, []) as api:
        yield api


async def test_shards_that_no_pod_takes(sharded: Fleet, sharded_bystander: Api) -> None:
    """A prefix that a pod serves is not named as well: only the shards are unserved."""
    await sharded.pod(Calls(), name="a", shard_subset=(0, 1))
    await sharded.client.create("note", in_shard(sharded, "note", 2), delay=0)
    now = await told(sharded_bystander)
    assert now.readyz == ["shards without a live pod: 2, 3"]
    assert now.metrics == {f'timers_uncovered_shards{{shard="{shard}"}} 1.0' for shard in (2, 3)}
    assert now.shards == ("fail", "shards without a live pod: 2, 3")
    assert now.prefixes[0] == "ok"
    await sharded.pod(Calls(), name="b", shard_subset=(2, 3))
    assert (await told(sharded_bystander)).readyz == []


async def test_a_prefix_that_is_served_only_on_other_shards(sharded: Fleet, sharded_bystander: Api) -> None:
    await sharded.pod(Calls("mail"), name="low", shard_subset=(0, 1))
    await sharded.pod(Calls("push"), name="high", shard_subset=(2, 3))
    await sharded.client.create("push", in_shard(sharded, "push", 0), delay=0)
    now = await told(sharded_bystander)
    assert now.readyz == ["timers are due, but no live pod serves push"]
    assert now.metrics == {'timers_uncovered_prefixes{prefix="push"} 1.0'}
    assert (now.shards[0], now.prefixes[0]) == ("ok", "fail")


def in_shard(fleet: Fleet, prefix: str, shard: int) -> str:
    """An id whose timer belongs to this shard."""
    return next(f"n{n}" for n in range(1_000) if fleet.store.shard_of(prefix, f"n{n}") == shard)
