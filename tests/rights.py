"""The least rights that a pod needs, as PROTOCOL.md lists them. The tests' pods have no others."""

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis

from timers.store.servers.cluster import ClusterRedis

USER: Final = "timers"
PASSWORD: Final = "secret"


def documented() -> list[str]:
    """The words after `ACL SETUSER timers`."""
    text = (files("timers.store") / "PROTOCOL.md").read_text()
    found = re.search(r"ACL SETUSER timers (.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1].split()


def for_clusters() -> list[str]:
    """The rights that a pod needs besides on each node of a cluster."""
    text = (files("timers.store") / "PROTOCOL.md").read_text()
    found = re.search(r"On a cluster, for each node.*?: also `(.*?)`", text)
    assert found is not None
    return found[1].split()


async def grant(redis: Redis, db: int, prefixes: Iterable[str] = ("",), *, without: Iterable[str] = ()) -> None:
    """Give the user these rights in a db, on each node of a cluster, for some prefixes, and clear the log of
    refusals."""
    patterns = [f"~{prefix}*" for prefix in prefixes]
    for server in _each(redis):
        words = [*documented(), *(for_clusters() if (await server.info("cluster"))["cluster_enabled"] else ())]
        rules = [_rule(word, db) for word in words if not word.startswith("~") or word.startswith("~timers")]
        rules = [rule for rule in rules if rule not in {f"+{name}" for name in without}]
        await server.execute_command("ACL", "SETUSER", USER, *rules, *patterns)
        await server.acl_log_reset()


def _each(redis: Redis) -> list[Any]:
    if not isinstance(redis, ClusterRedis):
        return [redis]
    return [node.commands for node in (*redis._slots.primaries, *redis._slots.replicas)]


def _rule(word: str, db: int) -> str:
    return word.replace("SECRET", PASSWORD).replace("@5__", f"@{db}__")


async def refused(redis: Redis) -> set[str]:
    """What the user was refused since then, except what a pod may try: reading the configuration, and naming its
    library."""
    entries: list[Any] = await redis.acl_log()
    said = {(_text(entry["reason"]), _text(entry["object"])) for entry in entries if _text(entry["username"]) == USER}
    return {f"{reason} {what}" for reason, what in said if not what.startswith(("config", "client|setinfo"))}


def as_user(url: str) -> str:
    """The same URL for that user."""
    return f"{url}{'&' if '?' in url else '?'}username={USER}&password={PASSWORD}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
