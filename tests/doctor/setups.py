"""Servers and fleets for the doctor: a healthy one, and ways to break it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.members import announce, declare
from tests.store.acts import arming
from tests.waiting import DEADLINE_SECONDS, eventually, patient
from timers.core.model import Progress
from timers.doctor.checks import Check
from timers.doctor.examining import examine
from timers.store.membership import FORGET_AFTER_MS
from timers.store.servers import connect
from timers.store.store import Arming, Store

SHORT_SECONDS: Final = 0.2
"""Where no event will come."""

TIMED: Final = {"latency", "clock"}
"""What a busy machine may make worse."""

Break = Callable[[Store], Awaitable[None]]
Findings = Mapping[str, tuple[str, str]]
"""By check its level and a part of what is said."""


@asynccontextmanager
async def opened(url: str, shards: int | None = None) -> AsyncIterator[Store]:
    store = Store(connect(patient(url)), shards=shards)
    try:
        yield store
    finally:
        await store.connections.close()


async def alive(store: Store, name: str = "a", **said: Any) -> None:
    """A live and healthy pod unless `said` differs, for as long as a sign of life can last."""
    await announce(
        store, name, **{"processors": ("note",), "notifications": "ok", "concurrency": 10, "running": 1, **said}
    )
    last_ms = await store.now_ms() + FORGET_AFTER_MS - 500
    await store.connections.commands.zadd("timers:{pods}:seen", {name: last_ms})


async def made(store: Store) -> None:
    """Make a healthy set-up: a db of the service, with a timer and a pod."""
    await declare(store, "note")
    await store.identity.make()
    await store.arm([arming("later", prefix="note", due="+3600000")])


async def found(store: Store, *, wait_seconds: float = DEADLINE_SECONDS, fix: bool = False) -> dict[str, Check]:
    """The doctor's findings that are not fine. Each must say what it means and what to do."""
    checks = await examine(store, wait_seconds=wait_seconds, fix=fix)
    wrong = {check.name: check for check in checks if check.level != "ok"}
    assert all(check.means and check.repair for check in wrong.values() if not check.said.startswith("repaired"))
    return wrong


def assert_named(wrong: Mapping[str, Check], expected: Findings) -> None:
    told = {name: (check.level, check.said) for name, check in wrong.items() if name not in TIMED - expected.keys()}
    assert told.keys() == expected.keys(), told
    for name, (level, part) in expected.items():
        assert told[name][0] == level, told
        assert part in told[name][1], told


def setting(name: str, value: str | int) -> Break:
    async def change(store: Store) -> None:
        await store.connections.commands.config_set(name, value)

    change.__name__ = f"{name}={value}"
    return change


async def fill_up(store: Store) -> None:
    await store.connections.commands.setrange("timers:ballast", 40 * 2**20, "x")
    used = (await store.connections.commands.info("memory"))["used_memory"]
    await store.connections.commands.config_set("maxmemory", int(used * 1.06))


async def replicate(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")


async def foreign_keys(store: Store) -> None:
    await store.connections.commands.set("session/abc", "theirs")


async def lose(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.hset("timers:meta", "loss:shard:0", "1795000000000 1795000001000 7")


async def overwrite_meta(store: Store) -> None:
    await store.connections.commands.set("timers:meta", "foreign")


async def lose_an_index(store: Store) -> None:
    await store.connections.commands.delete("timers:{0}:due:note", "timers:{0}:heads")


async def lose_every_index(store: Store) -> None:
    names = ("due:note", "heads", "counts", "prefixes")
    await store.connections.commands.delete(*(f"timers:{{0}}:{name}" for name in names))


async def spoil_a_record(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.hset("timers:{0}:quarantine", "note:one", "1795000000000 no record\n")


async def leave_waiting(store: Store) -> None:
    await store.arm([arming("old", prefix="note", due=f"@{await store.now_ms() - 120_000}")])


async def pause(store: Store) -> None:
    await leave_waiting(store)
    await store.pause("note", paused=True)


async def hold_back(store: Store) -> None:
    """A timer that has been due for ten minutes waits for a permit."""
    long_ago = await store.now_ms() - 600_000
    await store.arm([arming("old", prefix="note", due=f"@{long_ago}")])
    redis = store.connections.commands
    await redis.zadd("timers:{0}:blocked", {"note": long_ago + 3_600_000})
    await redis.zrem("timers:{0}:heads", "note")
    await redis.zadd("timers:{0}:held", {"note": long_ago})


async def serve_another(store: Store) -> None:
    await declare(store, "push")
    await store.arm([arming("x", prefix="push", due="+3600000")])


async def elsewhere(store: Store) -> None:
    await alive(store, shards=(1,))


async def deaf(store: Store) -> None:
    await alive(store, notifications="deaf")


async def differ(store: Store) -> None:
    await alive(store, settings={"TIMERS_RETENTION": "1d", "version": "1"})
    await alive(store, "b", settings={"TIMERS_RETENTION": "7d", "version": "1"})


async def write_to_a_folder(store: Store) -> None:
    await alive(store, settings={"TIMERS_OUTBOX": "/tmp/mail"})  # noqa: S108 (only named)


async def lose_the_head(store: Store) -> None:
    await store.connections.commands.zrem("timers:{0}:heads", "note")


async def lose_the_prefixes(store: Store) -> None:
    await store.connections.commands.delete("timers:{0}:prefixes")


async def lose_a_due_index(store: Store) -> None:
    await store.connections.commands.delete("timers:{0}:due:note")


async def miscount(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.hset("timers:{0}:counts", mapping={"s note": 99, "c note": "many"})


async def lose_a_lease(store: Store) -> None:
    """Remove the lease of a run whose pod is gone."""
    redis: Any = store.connections.commands
    await store.arm([arming("run", prefix="note", due="+0")])
    await eventually(lambda: _claimed(store), "it is claimed")
    await redis.delete("timers:{0}:lease:note:run", "timers:{0}:leases")


async def _claimed(store: Store) -> bool:
    return bool((await store.claim(0, [("note", 1)], pod="gone", lease_ms=60_000, cause="event")).timers)


async def displace(store: Store) -> None:
    """Leave a foreign value in the place to which the scripts move such values."""
    await store.connections.commands.set("timers:{0}:displaced:timers:{0}:nonsense", "foreign")


async def fail_to_save(store: Store) -> None:
    """Let snapshots fail: a folder has the snapshot's name."""
    redis: Any = store.connections.commands
    await redis.config_set("save", "3600 1")
    folder = Path((await redis.config_get("dir"))["dir"]) / "dump.rdb"
    (folder / "in the way").mkdir(parents=True)
    await redis.bgsave()
    await saved(redis, "err")


async def save_again(store: Store) -> None:
    redis: Any = store.connections.commands
    folder = Path((await redis.config_get("dir"))["dir"]) / "dump.rdb"
    (folder / "in the way").rmdir()
    folder.rmdir()


async def saved(redis: Any, status: str) -> None:
    async def look() -> bool:
        told = await redis.info("persistence")
        return told["rdb_last_bgsave_status"] == status and not told["rdb_bgsave_in_progress"]

    await eventually(look, f"the last snapshot is {status}")


async def post_long_ago(store: Store) -> None:
    """Put an entry into the outbox that no pod takes."""
    redis: Any = store.connections.commands
    await redis.xadd("timers:{0}:outbox", {"event": "a"}, id=f"{await store.now_ms() - 1_000_000}-0")


async def fail_a_call(store: Store) -> None:
    failed = Progress({"type": "Retry", "reason": "503 from hooks.example", "detail": "", "at": 1, "attempt": 1})
    await declare(store, "timers.hook-1")
    await alive(store, processors=("note", "timers.hook-1"))
    await store.arm([Arming("timers.hook-1", "note:a:1:1", "+3600000", {}, failed)])


async def leave_alone(store: Store) -> None:
    """Let a timer and a bare key wait without any worker."""
    await declare(store, "note")
    await store.connections.commands.set("note:bare", "1", px=3_600_000)


async def strand_a_call(store: Store) -> None:
    """Leave a call of a hook whose URL no pod has."""
    await store.arm([Arming("timers.hook-1", "note:a:1:1", "+0", {})])
    await store.abandon(0, "timers.hook-1", (), before_ms=await store.now_ms() + 1000, most=1, pod="a")
