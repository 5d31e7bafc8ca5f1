"""Pods of the version at 9b6d3bc beside pods of this one, on one db: what one made, the other reads, changes and runs.

A pod of one version is there first. One of the other joins, both work together, then the first leaves, in order or by a
crash. No timer is lost, none ends twice, and no record is put aside.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from tests.conservation import conserved
from tests.servers import ServerHandle
from tests.upgrade.pods import Json, Pod, Site, Version, leave
from tests.waiting import eventually
from tests.webhooks.receivers import Receiver, receiving
from timers.client import open_store
from timers.client.client import TimerClient
from timers.core.model import Timer
from timers.store.identity import READS
from timers.store.servers import connect
from timers.store.upkeep import audit

TICKS, SOON = 12, 15
HOLDS = 4
LATER = {"max_attempts": 3, "backoff": "fixed", "base": "1h", "jitter": False}


async def until_status(pod: Pod, name: str, status: str) -> Json:
    async def look() -> Json | None:
        timer = await pod.call("GET", f"/timers/{name}")
        return timer if timer["status"] == status else None

    return await eventually(look, f"{name} is {status}")


async def make(pod: Pod, site: Site, redis: Redis, mark: str) -> None:
    """Make one timer of each kind, marked, through this pod."""

    async def create(name: str, **given: object) -> None:
        prefix, timer_id = name.split("/")
        await pod.call("POST", "/timers", {"prefix": prefix, "id": timer_id, **given})

    fails, runs = ({key: str(site.folder / f"{key}-{mark}")} for key in ("fails_until", "runs_until"))
    for name in ("moved", "cancelled", "replaced", "kept", "purged", "again"):
        await create(f"plain/{mark}-{name}", delay="1h", payload={"made": mark}, tags=[mark])
    await pod.call("DELETE", f"/timers/plain/{mark}-again")
    await create(f"mended/{mark}-failed", delay=0, payload=fails)
    await create(f"mended/{mark}-retrying", delay=0, payload=fails, retry=LATER)
    for n in range(HOLDS):
        await create(f"held/{mark}-{n}", delay=0, payload=runs)
    await create(f"plain/{mark}-tick", delay="100ms", repeat={"every": "150ms", "count": TICKS}, missed="all")
    for name in ("bare", "bare-later"):
        await redis.set(f"plain:{mark}-{name}", json.dumps({"bare": mark}), px=3_600_000)
    await until_status(pod, f"mended/{mark}-failed", "failed")
    for n in range(HOLDS):
        await until_status(pod, f"held/{mark}-{n}", "running")

    async def made() -> bool:
        retrying = await pod.call("GET", f"/timers/mended/{mark}-retrying")
        bare = {(await pod.ask("GET", f"/timers/plain/{mark}-{name}"))[0] for name in ("bare", "bare-later")}
        return (retrying["status"], retrying["failures"], bare) == ("scheduled", 1, {200})

    await eventually(made, "one try has failed, and the bare keys are adopted")
    await redis.set(f"plain:{mark}-bare", json.dumps({"bare": mark}), px=1500)
    for n in range(SOON):
        await create(f"plain/{mark}-soon-{n}", delay=f"{100 * n}ms", payload=n)


async def both_say_the_same(one: Pod, other: Pod, mark: str) -> None:
    """What lies still looks the same through both pods."""
    ids = ["moved", "cancelled", "replaced", "kept", "purged", "again", "bare-later"]
    names = [*(f"plain/{mark}-{name}" for name in ids), f"mended/{mark}-failed", f"mended/{mark}-retrying"]
    for name in names:
        here, there = [await pod.call("GET", f"/timers/{name}") for pod in (one, other)]
        histories = [[(e["at"], e["status"], e["note"]) for e in each.pop("history")] for each in (here, there)]
        assert sorted(histories[0]) == sorted(histories[1])
        assert {key: here[key] for key in here.keys() & there.keys()} == {
            key: there[key] for key in here.keys() & there.keys()
        }
    for status in ("scheduled", "running", "failed", "cancelled"):
        path = f"/timers?prefix=plain&status={status}&tag={mark}"
        here, there = [await pod.call("GET", path) for pod in (one, other)]
        assert [timer["id"] for timer in here["items"]] == [timer["id"] for timer in there["items"]]


async def change(pod: Pod, site: Site, mark: str) -> None:
    """Through this pod, change what another one has made: one change of each kind."""
    for kind in ("fails_until", "runs_until"):
        (site.folder / f"{kind}-{mark}").touch()
    await pod.call("PATCH", f"/timers/plain/{mark}-moved", {"delay": "100ms", "payload": {"moved": mark}})
    await pod.call("DELETE", f"/timers/plain/{mark}-cancelled")
    await pod.call("DELETE", f"/timers/plain/{mark}-purged?purge=true")
    await pod.call("DELETE", f"/timers/plain/{mark}-bare-later")
    await pod.call("PUT", f"/timers/plain/{mark}-replaced", {"delay": 0, "payload": {"replaced": mark}})
    await pod.call("POST", f"/timers/plain/{mark}-again/retry")
    await pod.call("POST", f"/timers/mended/{mark}-failed/retry")
    await pod.call("POST", f"/timers/mended/{mark}-retrying/fire")


def asked_for(mark: str) -> dict[tuple[str, str], tuple[str, int]]:
    """How each timer must end, and how often it must have completed."""
    once = [("plain", name) for name in ("moved", "replaced", "again", "bare", *(f"soon-{n}" for n in range(SOON)))]
    once += [("mended", "failed"), ("mended", "retrying"), *(("held", str(n)) for n in range(HOLDS))]
    wanted = {
        **dict.fromkeys(once, ("completed", 1)),
        ("plain", "tick"): ("completed", TICKS),
        ("plain", "kept"): ("scheduled", 0),
        ("plain", "cancelled"): ("cancelled", 0),
        ("plain", "bare-later"): ("cancelled", 0),
    }
    return {(prefix, f"{mark}-{name}"): ends for (prefix, name), ends in wanted.items()}


def ran_as_asked(runs: Sequence[Json], mark: str) -> None:
    payloads = {run["timer"]: run["payload"] for run in runs}
    wanted = {name: {name: mark} for name in ("moved", "replaced")} | {"bare": {"bare": mark}, "again": {"made": mark}}
    assert {name: payloads[f"plain:{mark}-{name}"] for name in wanted} == wanted
    ticks = [run["occurrence"] for run in runs if run["timer"] == f"plain:{mark}-tick"]
    assert set(ticks) == set(range(1, TICKS + 1))


def each_made_its_own_keys(runs: Sequence[Json]) -> None:
    for run in runs:
        created = "" if run["pod"] == "earlier" else f"{run['created']}:"
        assert run["key"] == f"{run['timer']}:{created}{run['occurrence']}"


async def told_of_each_end(receiver: Receiver, timers: Sequence[Timer]) -> None:
    """Each completed and cancelled timer was told."""
    names = {"completed": "timer.completed", "cancelled": "timer.cancelled"}
    wanted = Counter({(t.id, names[t.status]): 1 for t in timers if t.prefix == "plain" and t.status in names})

    async def look() -> bool:
        bodies = {request.body for request in receiver.received}  # a crash may make one call twice
        data = [(json.loads(body)["type"], json.loads(body)["data"]) for body in bodies]
        told = Counter((each["id"], kind) for kind, each in data)
        return all(told[key] >= 1 for key in wanted)

    await eventually(look, "the hook has told of all")


@pytest.mark.parametrize("direction", ["upgrade", "rollback"])
async def test_two_versions_on_one_db(
    direction: str, site: Site, server: ServerHandle, earlier: Version, newer: Version
) -> None:
    first, second = (earlier, newer) if direction == "upgrade" else (newer, earlier)
    async with receiving() as receiver, Redis.from_url(server.url) as redis, TimerClient(server.url) as client:
        site.settings["TIMERS_HOOKS"] = f"completed+cancelled@plain={receiver.url}/"
        if first is newer:  # which would make a db of the newest format
            await leave(await site.pod(earlier))
        key, one = await asyncio.gather(site.key(first, "--pending", "200", "--rate", "1000/s"), site.pod(first))
        await one.take(key)
        await make(one, site, redis, "a")
        other_key, other = await asyncio.gather(site.key(second, "--pending", "200"), site.pod(second))
        await other.take(key)
        await one.take(other_key)
        await both_say_the_same(one, other, "a")
        told = (await (one if one.version is newer else other).call("GET", "/pods"))["items"]
        assert {pod["pod"]: (pod["version"], pod["format"]) for pod in told} == {
            "earlier": ("0.1.0", 1),
            "newer": ("0.1.0", READS),
        }
        await make(other, site, redis, "b")
        await both_say_the_same(other, one, "b")
        await change(other, site, "a")
        await change(one, site, "b")
        if server.family == "redis":
            await leave(one)
        else:
            one.process.kill()

        wanted = asked_for("a") | asked_for("b")

        async def ended() -> bool:
            return all([(await client.get(*name)).status == status for name, (status, _) in wanted.items()])

        await eventually(ended, "all but the kept timers have ended")
        timers = [timer async for timer in client.iterate()]
        found = {(t.prefix, t.id): (t.status, sum(e.cause == "completed" for e in t.history)) for t in timers}
        assert found == wanted
        for mark in "ab":
            ran_as_asked(site.runs, mark)
        each_made_its_own_keys(site.runs)
        assert {run["pod"] for run in site.runs} == {"earlier", "newer"}
        await told_of_each_end(receiver, timers)
        await leave(other)
        await nothing_is_left_over(server, redis)


async def nothing_is_left_over(server: ServerHandle, redis: Redis) -> None:
    store = await open_store(connect(server.url))
    async for _ in audit(store, 0):  # the earlier version does not know the index of retrying timers
        pass
    await conserved(store)
    await store.connections.close()
    for aside in ("quarantine", "displaced"):
        assert [key async for key in redis.scan_iter(f"timers:*{aside}*")] == []
