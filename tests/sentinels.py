"""Real Sentinels for the tests: three that watch over a primary and two replicas, all of which a test may kill, stop,
restart and fail over.

They start once for a process. A test gets them healed and emptied; which server is primary is as the tests before left
it.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from redis.exceptions import RedisError

from tests.clusters import HOST, Node, client
from tests.servers import binary_for, free_port
from tests.waiting import eventually
from timers.embedded import Family, _spawn

if TYPE_CHECKING:
    from subprocess import Popen

SERVICE: Final = "timers"
"""What the Sentinels call the primary."""
DOWN_AFTER_MS: Final = 1000
FAILOVER_MS: Final = 5000
"""A Sentinel gives a failover up that takes longer."""
INFO_MS: Final = 100
"""How often a Sentinel asks a server whom it follows; else every ten seconds."""
QUORUM: Final = 2

_CONFIG: Final = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {primary} {quorum}
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} {failover}
"""


class Sentinel:
    """One Sentinel at `name`, `127.0.0.1:<port>`, up or down. It keeps what it knows in its folder."""

    def __init__(self, family: Family, folder: Path, primary: Node) -> None:
        self.port = free_port()
        self.name = f"{HOST}:{self.port}"
        self._family, self._folder = family, folder
        self._running: Popen[bytes] | None = None
        folder.mkdir(parents=True)
        fields = {"port": self.port, "folder": folder, "service": SERVICE, "primary": primary.port}
        text = _CONFIG.format(**fields, quorum=QUORUM, down_after=DOWN_AFTER_MS, failover=FAILOVER_MS)
        (folder / "sentinel.conf").write_text(text)

    @property
    def is_up(self) -> bool:
        """Whether it runs, stopped or not."""
        return self._running is not None

    def up(self) -> None:
        """Start or restart it."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            config = str(self._folder / "sentinel.conf")
            self._running = _spawn(
                [str(binary_for(self._family)), config, "--sentinel"], self._folder / "sentinel.log", lock
            )
        finally:
            os.close(lock)

    def down(self) -> None:
        """Kill it. A second call does nothing."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def hang(self) -> None:
        """Stop it from answering, with its connections open."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again after `hang`."""
        self._signal(signal.SIGCONT)

    async def links(self) -> list[str]:
        """How each replica's connection to the primary is, as far as it knows."""
        found = await self.ask("SENTINEL REPLICAS", SERVICE)
        return [each[each.index("master-link-status") + 1] for each in found if "master-link-status" in each]

    def _signal(self, number: signal.Signals) -> None:
        assert self._running is not None, "the Sentinel is up"
        self._running.send_signal(number)

    async def ask(self, *command: str | int) -> Any:
        """The answer to a command, on a connection of its own."""
        async with client(self.port) as redis:
            return await redis.execute_command(*command)


class Sentinels:
    """Three Sentinels, and the servers that they watch."""

    def __init__(self, family: Family, folder: Path, *options: str, replicas: int = 2) -> None:
        self.nodes = [
            Node(family, folder / f"node-{number}", "--enable-debug-command", "yes", *options)
            for number in range(1 + replicas)
        ]
        self.sentinels = [Sentinel(family, folder / f"sentinel-{number}", self.nodes[0]) for number in range(3)]

    @property
    def url(self) -> str:
        """Names all Sentinels."""
        return f"redis+sentinel://{','.join(each.name for each in self.sentinels)}/{SERVICE}/0"

    @classmethod
    async def start(cls, family: Family, folder: Path, *options: str, replicas: int = 2) -> Self:
        """Returns when the replicas follow and each Sentinel knows all others."""
        made = cls(family, folder, *options, replicas=replicas)
        await asyncio.gather(*(node.up() for node in made.nodes))
        for node in made.nodes[1:]:
            await node.ask("REPLICAOF", HOST, made.nodes[0].port)
        await made.heal()
        return made

    async def heal(self) -> None:
        """Start and wake all. Returns when the replicas follow, and all Sentinels name the same primary and miss
        nobody."""
        for node in self.nodes:
            if node.is_up:
                node.go_on()
            else:
                await node.up()
        for sentinel in self.sentinels:
            if sentinel.is_up:
                sentinel.go_on()
            else:
                sentinel.up()
        primary = await eventually(self._agreed, "all Sentinels name one primary")
        for sentinel in self.sentinels:
            await sentinel.ask("SENTINEL DEBUG INFO-PERIOD", INFO_MS)
        for node in self.nodes:
            # A Sentinel does this too, but ten seconds later.
            if node is not primary and (await node.ask("ROLE"))[:3:2] != ["slave", primary.port]:
                await node.ask("REPLICAOF", HOST, primary.port)
        await eventually(self._is_whole, "the Sentinels and their servers are whole")

    async def primary(self) -> Node:
        """The primary that the first Sentinel names which is up."""
        asked = next(sentinel for sentinel in self.sentinels if sentinel.is_up)
        return self._at(await asked.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE))

    async def empty(self) -> None:
        """Delete all keys, also on the replicas."""
        await (await self.primary()).empty(replicas=len(self.nodes) - 1)

    async def fail_over(self) -> Node:
        """Ask a Sentinel for another primary, with all at work. Returns it when it is one and that Sentinel says so;
        the old one still takes writes for a time. On a busy machine the Sentinel may give up, so it is asked again."""
        before, asked = await self.primary(), self.sentinels[0]

        async def is_other() -> Node | None:
            now = self._at(await asked.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE))
            return now if now is not before and (await now.ask("ROLE"))[0] == "master" else None

        await asked.ask("SENTINEL FAILOVER", SERVICE)
        with suppress(AssertionError):
            return await eventually(is_other, "another primary", seconds=3 * FAILOVER_MS / 1000)
        await asked.ask("SENTINEL FAILOVER", SERVICE)
        return await eventually(is_other, "another primary")

    def stop(self) -> None:
        """End all."""
        for sentinel in self.sentinels:
            sentinel.down()
        for node in self.nodes:
            node.down()

    def _at(self, place: Any) -> Node:
        return next(node for node in self.nodes if str(node.port) == str(place[1]))

    async def _agreed(self) -> Node | None:
        """The primary that all Sentinels name, if it is one."""
        try:
            places = [await each.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE) for each in self.sentinels]
            named = {self._at(place) for place in places}
            roles = [(await node.ask("ROLE"))[0] for node in self.nodes if node in named]
        except (RedisError, OSError):
            return None  # starting or loading
        return named.pop() if roles == ["master"] else None

    async def _is_whole(self) -> bool:
        try:
            known = [await sentinel.ask("SENTINEL MASTER", SERVICE) for sentinel in self.sentinels]
            links = {link for each in self.sentinels for link in await each.links()}
            heads = [node for node in self.nodes if await node.is_primary(replicas=len(self.nodes) - 1)]
            following = [node for node in self.nodes if await node.is_replica()]
        except (RedisError, OSError):
            return False  # loading
        healthy = all(
            each["flags"] == "master"
            and each["num-slaves"] == len(self.nodes) - 1
            and each["num-other-sentinels"] == len(self.sentinels) - 1
            for each in known
        )
        return healthy and links <= {"ok"} and len(heads) == 1 and len(following) == len(self.nodes) - 1
