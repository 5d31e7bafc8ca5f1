"""Owns asking a server whether timers are safe on it. Reads, proves with one short key, and changes only on demand."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis.exceptions import NoPermissionError, ResponseError

from timers.store import keys, server
from timers.store.scripts import reachable
from timers.store.store import Store
from timers.store.subscription import Subscription

Level = Literal["ok", "warn", "fail"]

OLDEST_MAJOR: Final = 7
SCAN_LIMIT: Final = 100_000
"""Keys looked at for strangers: a sample of a large db."""

DELIVERY_SECONDS: Final = 3.0
CANARY_MS: Final = 50
SKEW_WARN_MS: Final = 1_000

_TRIGGER: Final = re.compile(rb"[a-z0-9][a-z0-9_.-]{0,63}:\{\d+\}:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do where it is not fine."""

    name: str
    level: Level
    said: str

    def to_json(self) -> dict[str, str]:
        """As it is shown."""
        return {"check": self.name, "level": self.level, "said": self.said}


async def check_server(store: Store, *, fix: bool, served: Callable[[str], bool]) -> list[Check]:
    """Every check of the server, in order. `fix` turns missing notification flags on; `served` tells whether a bare key
    of a prefix may be a client's timer. Raises Unavailable."""
    with reachable():
        info: dict[str, Any] = await store.connections.commands.info()
    return [
        _version(info),
        _eviction(info),
        await _persistence(store, info),
        await _flags(store, fix=fix),
        await _delivery(store),
        await _strangers(store, served),
        await _skew(store),
    ]


def _version(info: dict[str, Any]) -> Check:
    family = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get(f"{family}_version", "unknown"))
    major = version.partition(".")[0]
    if major.isdigit() and int(major) >= OLDEST_MAJOR:
        return Check("server", "ok", f"{family} {version}")
    return Check("server", "fail", f"{family} {version}; {OLDEST_MAJOR} or newer is needed")


def _eviction(info: dict[str, Any]) -> Check:
    policy, limit = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return Check("eviction", "ok", "maxmemory-policy is noeviction")
    if limit == 0:
        return Check("eviction", "warn", f"maxmemory-policy is {policy}, harmless only while maxmemory is 0")
    return Check("eviction", "fail", f"maxmemory-policy is {policy}: timers may be evicted; set it to noeviction")


async def _persistence(store: Store, info: dict[str, Any]) -> Check:
    if int(info.get("aof_enabled", 0)):
        return Check("persistence", "ok", "appendonly is on")
    try:
        with reachable():
            save = (await store.connections.commands.config_get("save")).get("save", "")
    except ResponseError:
        save = ""
    if save:
        return Check("persistence", "warn", f"appendonly is off: a crash loses what came after the snapshot ({save})")
    return Check("persistence", "fail", "appendonly is off: a restart loses every timer; set appendonly yes")


async def _flags(store: Store, *, fix: bool) -> Check:
    redis = store.connections.commands
    if fix:
        found = await server.ensure_notifications(redis)
        return Check("flags", "ok" if found.ok else "warn", found.said)
    try:
        with reachable():
            answer: dict[Any, Any] = await redis.config_get(server.FLAGS)
    except ResponseError as error:
        return Check("flags", "warn", f"the server denies CONFIG ({error}); delivery below tells more")
    current = next((value.decode() if isinstance(value, bytes) else value for value in answer.values()), "")
    if missing := server.missing_flags(current):
        said = f"{server.FLAGS} is {current!r} and lacks {missing!r}; a worker adds it, and so does --fix"
        return Check("flags", "fail", said)
    return Check("flags", "ok", f"{server.FLAGS} is {current!r}")


async def _delivery(store: Store) -> Check:
    """Arm a short key and wait for its event."""
    name, heard, ready = f"doctor-{secrets.token_hex(4)}", asyncio.Event(), asyncio.Event()

    def take(_channel: bytes, data: bytes | None) -> None:
        if data is None:
            ready.set()
        elif data == keys.canary_key(name).encode():
            heard.set()

    channel = keys.expired_channel(store.connections.db).encode()
    listening = asyncio.create_task(Subscription(store.connections, (channel,)).stream(take))
    try:
        async with asyncio.timeout(DELIVERY_SECONDS):
            await ready.wait()
            began = time.monotonic()
            await server.set_canary(store.connections.commands, name, CANARY_MS)
            while not heard.is_set():
                await server.touch_canary(store.connections.commands, name)
                await _wait_a_little(heard)
    except TimeoutError:
        said = f"no `expired` event of a key came within {DELIVERY_SECONDS:g} s; timers are found by sweeps alone"
        return Check("delivery", "fail", said)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    late_ms = (time.monotonic() - began) * 1000 - CANARY_MS
    return Check("delivery", "ok", f"the event of a key came {max(0, late_ms):.0f} ms after it was due")


async def _wait_a_little(heard: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(CANARY_MS / 1000 / 5):
            await heard.wait()
    except TimeoutError:
        return


async def _strangers(store: Store, served: Callable[[str], bool]) -> Check:
    strangers: list[bytes] = []
    seen = 0
    try:
        with reachable():
            async for key in store.connections.commands.scan_iter(count=1000):
                seen += 1
                if _is_strange(key, served):
                    strangers.append(key)
                if seen >= SCAN_LIMIT:
                    break
    except NoPermissionError as error:
        return Check("strangers", "warn", f"the server denies SCAN ({error}); bare keys are not adopted")
    return _said_of(strangers, seen)


def _is_strange(key: bytes, served: Callable[[str], bool]) -> bool:
    if key.startswith(b"timers:") or _TRIGGER.fullmatch(key):
        return False
    bare = keys.BARE.fullmatch(key)
    return bare is None or not served(bare[1].decode())


def _said_of(strangers: Sequence[bytes], seen: int) -> Check:
    if not strangers:
        return Check("strangers", "ok", f"the db has no keys of others ({seen} looked at)")
    shown = ", ".join(repr(key.decode(errors="replace")[:60]) for key in strangers[:3])
    said = f"{len(strangers)} of {seen} keys are none of the service's, as {shown}; give it a db of its own"
    return Check("strangers", "warn", said)


async def _skew(store: Store) -> Check:
    skew_ms = abs(await store.now_ms() - time.time() * 1000)
    said = f"the server's clock and this machine's differ by {skew_ms:.0f} ms"
    if skew_ms > SKEW_WARN_MS:
        return Check("clock", "warn", f"{said}; timers follow the server's")
    return Check("clock", "ok", said)
