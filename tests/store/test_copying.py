"""A db is read for a copy while it changes: what is there all the time comes once."""

from collections import Counter
from typing import Any

import pytest

from tests.conftest import SharedServers
from tests.servers import Kind
from tests.store.acts import PREFIX, arming, cancelled
from tests.store.backends import open_store
from timers.store import restoring
from timers.store.codec import taken_apart
from timers.store.membership import Declaration
from timers.store.restoring import (
    put_declaration,
    put_key,
    put_pause,
    read_declarations,
    read_pauses,
    read_records,
)
from timers.store.store import Store

STAY = [f"stay-{i}" for i in range(600)]


async def change(store: Store, step: int) -> None:
    """Make the buckets grow and shrink, and change what stays."""
    await store.arm([arming(f"new-{step}-{i}", due="+3600000") for i in range(50)])
    for i in range(0, 50, 10):
        await store.cancel(PREFIX, f"new-{step}-{i}", purge=True)
    await store.arm([arming(name, due="+7200000", if_exists="replace") for name in STAY[step % 20 :: 20]])


@pytest.mark.parametrize("shards", [1, 4])
async def test_what_stays_comes_once_while_others_come_and_go(
    servers: SharedServers, kind: Kind, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are small, so that each bucket grows while it is read."""
    monkeypatch.setattr(restoring, "PAGE", 1)
    async with open_store(servers, kind, shards=shards) as store:
        await store.arm([arming(name, due="+3600000") for name in STAY])
        seen, step = Counter[str](), 0
        async for page in read_records(store):
            seen.update(member.removeprefix(f"{PREFIX}:") for member, _ in page)
            if (step := step + 1) % 3 == 0:
                await change(store, step)
        assert {name: seen[name] for name in STAY} == dict.fromkeys(STAY, 1)
        assert max(seen.values()) == 1


async def test_what_the_server_shows_twice_comes_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server may while a bucket shrinks."""
    rounds = [[(7, {b"log:a": b"1", b"log:b": b"1"}), (0, {})], [(0, {b"log:a": b"2", b"log:c": b"2"})]]

    async def scanned(*_: Any) -> list[Any]:
        return rounds.pop(0) if rounds else [(0, {})] * restoring.BUCKETS

    monkeypatch.setattr(restoring, "BUCKETS", 2)
    monkeypatch.setattr(restoring, "read", scanned)
    found = [each async for page in read_records(store) for each in page]
    assert found == [("log:a", b"1"), ("log:b", b"1"), ("log:c", b"2")]


async def test_a_record_comes_as_it_is_in_one_moment(store: Store) -> None:
    await cancelled(store)
    ((_, record),) = [each async for page in read_records(store) for each in page]
    assert taken_apart(record).status == "x"


async def test_only_those_that_match(store: Store) -> None:
    await store.arm([arming("a", prefix=prefix, due="+3600000") for prefix in ("log", "log-x", "lo")])
    found = {
        pattern: {m async for page in read_records(store, pattern) for m, _ in page} for pattern in ("log:*", "log*:*")
    }
    assert found == {"log:*": {"log:a"}, "log*:*": {"log:a", "log-x:a"}}


async def test_large_records_come_a_few_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "PAGE_BYTES", 20_000)
    await store.arm([arming(f"t{i}", due="+3600000", spec={"payload": "x" * 2000}) for i in range(1000)])
    sizes = [sum(len(record) for _, record in page) async for page in read_records(store)]
    assert max(sizes) < 200_000
    assert sum(sizes) > 2_000_000


async def test_a_foreign_value_in_the_place_of_a_bucket_stops_nothing(store: Store) -> None:
    await store.arm([arming("a", due="+3600000")])
    await store.connections.commands.set("timers:{0}:rec:00", "foreign")
    assert [m async for page in read_records(store) for m, _ in page] == [f"{PREFIX}:a"]
    await store.connections.commands.delete("timers:{0}:rec:00")


async def test_a_declaration_that_is_there_stays(store: Store) -> None:
    first, second = Declaration(5, "pod-1"), Declaration(9, "pod-2")
    assert await put_declaration(store, "log", first, dry_run=True)
    assert await read_declarations(store) == {}
    assert await put_declaration(store, "log", first, dry_run=False)
    assert not await put_declaration(store, "log", second, dry_run=False)
    assert await read_declarations(store) == {"log": first}


async def test_a_pause_counts_until_somebody_resumes(store: Store) -> None:
    await store.pause("log", paused=True)
    ((_, since_ms),) = (await read_pauses(store)).items()
    assert since_ms is not None
    assert not await put_pause(store, "log", since_ms, if_exists="newer", dry_run=False)
    await store.pause("log", paused=False)
    assert not await put_pause(store, "log", since_ms, if_exists="newer", dry_run=False)
    assert not await put_pause(store, "log", None, if_exists="newer", dry_run=False)
    later = await store.now_ms() + 1000
    assert not await put_pause(store, "log", later, if_exists="keep", dry_run=False)
    assert await put_pause(store, "log", later, if_exists="newer", dry_run=True)
    assert await read_pauses(store) == {}
    assert await put_pause(store, "log", later, if_exists="newer", dry_run=False)
    assert (await read_pauses(store)).keys() == {"log"}


@pytest.mark.parametrize(
    ("there", "given", "if_exists", "put"),
    [
        (None, "entry", "newer", True),
        ("entry", "entry", "replace", False),
        ("other", "entry", "newer", False),
        ("other", "entry", "replace", True),
        ("entry", "revoked", "keep", True),
        ("revoked", "entry", "replace", False),
    ],
)
async def test_a_key_is_put_there_unless_it_was_revoked(
    store: Store, there: str | None, given: str, if_exists: str, put: bool
) -> None:
    if there is not None:
        await store.connections.commands.hset("timers:keys", "k", there)
    assert await put_key(store, "k", given, if_exists=if_exists, dry_run=True) is put
    assert await put_key(store, "k", given, if_exists=if_exists, dry_run=False) is put
    kept = await store.connections.commands.hget("timers:keys", "k")
    assert kept == (given if put else str(there)).encode()
