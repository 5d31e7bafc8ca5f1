"""A db whose records have a newer format: pods and clients of the earlier version, and of this one, leave it alone."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.cli.commands import Process
from tests.servers import ServerHandle
from tests.upgrade.pods import Site, Version
from tests.waiting import eventually
from timers.client import open_store
from timers.embedded import Family
from timers.store import identity
from timers.store.servers import connect
from timers.store.store import Store

NEXT = identity.READS + 1
LATER = b"%d the head of a later version\nand its body" % NEXT
REFUSED = {
    "earlier": f"the db holds records of format {NEXT}; this version knows 1",
    "newer": f"by version 9.9; this version reads formats up to {identity.READS}. Use version 9.9, or a later one",
}


class Application(Process):
    program = (sys.executable, "-m", "tests.upgrade.application")


@pytest.fixture
def family() -> Family:
    """One server is enough: what is tested is how the versions behave."""
    return "redis"


@pytest.fixture
def version(request: pytest.FixtureRequest, earlier: Version, newer: Version) -> Version:
    return {"earlier": earlier, "newer": newer}[request.param]


@pytest.fixture
async def later(server: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """This process at the db, as a later version that reads the next format."""
    monkeypatch.setattr(identity, "READS", NEXT)
    store = await open_store(connect(server.url))
    yield store
    await store.connections.close()


async def raise_the_db(later: Store) -> None:
    await later.identity.refresh()
    await later.identity.raise_format(NEXT, "9.9")


def bucket_of(member: str) -> str:
    return f"timers:{{0}}:rec:{hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"


@pytest.mark.parametrize("version", REFUSED, indirect=True)
async def test_pods_that_cannot_read_it_end_and_are_refused_at_their_start(
    version: Version, site: Site, later: Store
) -> None:
    pod = await site.pod(version)
    await raise_the_db(later)
    ended = await asyncio.to_thread(pod.process.end)
    assert ended.code == 1
    assert REFUSED[version.name] in ended.err.splitlines()[-1]
    assert REFUSED[version.name] in (await site.command(version, "serve")).refusal()


@pytest.mark.parametrize("version", REFUSED, indirect=True)
async def test_a_client_that_cannot_read_it_is_told_and_harms_no_record(
    version: Version, site: Site, server: ServerHandle, later: Store
) -> None:
    go = site.folder / "go"
    async with Redis.from_url(server.url) as redis:
        await redis.hset("timers:{pods}:declared", "plain", "1 pod")
        application = site.begin(version, str(go), kind=Application)

        async def has_armed() -> bool:
            return application.out == "armed\n"

        await eventually(has_armed, "the application has armed a timer")
        await raise_the_db(later)
        member = "plain:later"
        await redis.hset(bucket_of(member), member, LATER)
        go.touch()
        ended = await asyncio.to_thread(application.end)
        assert REFUSED[version.name] in ended.out, ended
        assert await redis.hget(bucket_of(member), member) == LATER
        assert not await redis.exists("timers:{0}:quarantine")
