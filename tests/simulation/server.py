"""Owns the simulated server: one db, its clock, its scripts and who listens to it."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Protocol

from tests.simulation.data import Keys, Refused, Reply
from tests.simulation.lua import Lua
from timers.store import scripts

EPOCH_US: Final = 1_800_000_000_000_000
"""The server's clock at the loop's second 0, so that it and the clocks of the pods differ."""

_WRITES: Final = frozenset((b"DEL", b"HDEL", b"HSET", b"SET", b"XDEL", b"ZADD", b"ZREM"))
_REFUSED: Final = Refused("NOREPLICAS Not enough good replicas to write.")

CYCLE_SECONDS: Final = 0.1
"""How often the server looks for expired keys by itself."""


@cache
def service_scripts() -> Mapping[bytes, str]:
    """The names of the service's scripts by digest."""
    names = [f"{room}{each.name.removesuffix('.lua')}" for room in ("", "bare/") for each in _folder(room)]
    return {scripts.digest(name).encode(): name for name in names if not name.endswith("common")}


@cache
def _text(name: str) -> bytes:
    return scripts.source(name).encode()


def _folder(room: str) -> list[Traversable]:
    folder = files("timers") / (room.rstrip("/") or "store") / "lua"
    return sorted((each for each in folder.iterdir() if each.name.endswith(".lua")), key=lambda each: each.name)


class Listener(Protocol):
    """A subscription, as the server sees it."""

    def hear(self, channel: bytes, message: bytes) -> None:
        """Take a message."""

    def lose(self) -> None:
        """The connection is gone."""


class Server:
    """`now` asks the loop's time in seconds; `texts` replaces scripts by others, by name."""

    def __init__(self, lua: Lua, now: Callable[[], float], texts: Mapping[str, str] | None = None) -> None:
        self.keys = Keys(self.now_us, self._publish)
        self._lua, self._now = lua, now
        self._texts = {name: text.encode() for name, text in (texts or {}).items()}
        self.listeners: dict[bytes, list[Listener]] = {}
        self.stalled_until = self.away_until = self.refuses_until = 0.0
        self.life = 0
        """Rises with each restart."""

    @property
    def works_from(self) -> float:
        """When it does everything again."""
        return max(self.stalled_until, self.away_until, self.refuses_until)

    def now_us(self) -> int:
        return EPOCH_US + round(self._now() * 1_000_000)

    def execute(self, command: tuple[bytes, ...]) -> Reply:
        """Run a command or a script."""
        refuses = self._now() < self.refuses_until
        if command[0] != b"EVALSHA":
            return _REFUSED if refuses and command[0] in _WRITES else self.keys.run(*command)
        digest, number = command[1], int(command[2])
        name = service_scripts().get(digest)
        if name is None:
            return Refused("NOSCRIPT No matching script. Please use EVAL.")
        text = self._texts.get(name) or _text(name)
        if refuses and b"no-writes" not in text.partition(b"\n")[0]:
            return _REFUSED
        return self._lua.run(self.keys, text, list(command[3 : 3 + number]), list(command[3 + number :]))

    def subscribe(self, channel: bytes, listener: Listener) -> None:
        self.listeners.setdefault(channel, []).append(listener)

    def forget(self, which: Callable[[Listener], bool]) -> None:
        """End subscriptions; nobody is told."""
        for channel, heard in self.listeners.items():
            self.listeners[channel] = [listener for listener in heard if not which(listener)]

    def restart(self, away_seconds: float) -> None:
        """End all connections; keep the data."""
        self.life += 1
        self.keys.process, self.keys.uptime_seconds = f"simulated{self.life}", 1
        self.away_until = max(self.away_until, self._now() + away_seconds)
        listening = [each for heard in self.listeners.values() for each in heard]
        self.listeners.clear()
        for listener in listening:
            listener.lose()

    def look_for_expired(self) -> None:
        """What a server does now and then; it may be slow to find them all."""
        if self._now() >= self.away_until:
            for key in list(self.keys.ends):
                self.keys.expire(key)

    def _publish(self, channel: bytes, message: bytes) -> int:
        heard = self.listeners.get(channel, [])
        for listener in list(heard):
            listener.hear(channel, message)
        return len(heard)
