"""Real clusters for the tests, whose nodes a test may kill, stop, restart and fail over.

Each starts once for a process. A test gets it healed and emptied; which nodes are primaries is as the tests before left
it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from tests.engine.own import OwnServer
from tests.servers import free_port
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.embedded import Family

HOST: Final = "127.0.0.1"
SLOTS: Final = 16384
NODE_TIMEOUT_MS: Final = 1000
"""After twice this time without an answer a node counts as failed; one replica is primary a second later."""

_FAILOVER_SECONDS: Final = 6.0
"""A node has given up a `CLUSTER FAILOVER` by then, for example because the others were slow to vote."""

_WHOLE: Final = ("CLUSTER INFO", "CLUSTER SLOTS", "ROLE")
"""What tells whether a cluster is whole."""

_REPLICATION: Final = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--appendfsync", "no")


def client(port: int) -> Any:
    """A client for one server of this machine."""
    return Redis(host=HOST, port=port, decode_responses=True, protocol=2, socket_timeout=DEADLINE_SECONDS)


class Node(OwnServer):
    """A server of this machine that others know as `name`, `127.0.0.1:<port>`."""

    def __init__(self, family: Family, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.name = f"{HOST}:{self.port}"
        self.is_up = False
        super().__init__(family, folder, "--bind", HOST, "--port", str(self.port), *_REPLICATION, *options)

    async def up(self) -> None:
        await super().up()
        self.is_up = True

    def down(self) -> None:
        super().down()
        self.is_up = False

    async def ask(self, *command: str | int) -> Any:
        """The answer to a command, on a connection of its own."""
        async with client(self.port) as redis:
            return await redis.execute_command(*command)

    async def ask_all(self, *commands: str) -> list[Any]:
        """The answers to commands, on one connection."""
        async with client(self.port) as redis, redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(command)
            answers: list[Any] = await pipeline.execute()
        return answers

    async def is_primary(self, *, replicas: int) -> bool:
        """Whether it is a primary with so many replicas."""
        role, _, followers = (await self.ask("ROLE"))[:3]
        return bool(role == "master" and len(followers) == replicas)

    async def is_replica(self) -> bool:
        """Whether it is a replica that follows a primary."""
        role, _, _, state = [*(await self.ask("ROLE")), None][:4]
        return bool(role == "slave" and state == "connected")

    async def empty(self, *, replicas: int) -> None:
        """Delete all keys and functions; returns when so many replicas have done so too."""
        async with client(self.port) as redis:
            await redis.execute_command("FLUSHALL")
            await redis.execute_command("WAIT", replicas, 0)


async def move_key_by_key(slot: int, source: Node, target: Node) -> None:
    """As `redis-cli --cluster reshard`: scripts on a slot that is open are refused."""
    await target.ask("CLUSTER SETSLOT", slot, "IMPORTING", await source.ask("CLUSTER MYID"))
    await source.ask("CLUSTER SETSLOT", slot, "MIGRATING", await target.ask("CLUSTER MYID"))
    while names := await source.ask("CLUSTER GETKEYSINSLOT", slot, 10):
        await source.ask("MIGRATE", HOST, target.port, "", 0, 10_000, "KEYS", *names)
    for node in (target, source):
        await node.ask("CLUSTER SETSLOT", slot, "NODE", await target.ask("CLUSTER MYID"))


@asynccontextmanager
async def held_open(slot: int, source: Node, target: Node) -> AsyncIterator[None]:
    """Meanwhile a slot is being moved, but no key of it."""
    await target.ask("CLUSTER SETSLOT", slot, "IMPORTING", await source.ask("CLUSTER MYID"))
    await source.ask("CLUSTER SETSLOT", slot, "MIGRATING", await target.ask("CLUSTER MYID"))
    yield
    for node in (source, target):
        await node.ask("CLUSTER SETSLOT", slot, "STABLE")


async def move_at_once(slot: int, source: Node, target: Node) -> None:
    """As Valkey 9 moves slots: all of it changes hands in one moment."""
    await source.ask("CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", await target.ask("CLUSTER MYID"))

    async def is_there() -> bool:
        return not await source.ask("CLUSTER COUNTKEYSINSLOT", slot) and bool(
            await target.ask("CLUSTER COUNTKEYSINSLOT", slot)
        )

    await eventually(is_there, "the slot has moved")


class Cluster:
    """Primaries with one replica each, or with none."""

    def __init__(self, family: Family, folder: Path, *options: str, primaries: int = 3, replicas: int = 1) -> None:
        self.size, self.replicas, self._buses = primaries, replicas, dict[Node, int]()
        for number in range(primaries * (1 + replicas)):
            bus = free_port()
            cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
            ports = ("--cluster-port", str(bus), "--cluster-announce-ip", HOST)
            node = Node(family, folder / f"node-{number}", *cluster, *ports, "--enable-debug-command", "yes", *options)
            self._buses[node] = bus

    @property
    def nodes(self) -> list[Node]:
        """All, up or down."""
        return list(self._buses)

    @property
    def url(self) -> str:
        """Names all nodes."""
        return f"redis+cluster://{','.join(node.name for node in self.nodes)}"

    @classmethod
    async def start(cls, family: Family, folder: Path, *options: str, primaries: int = 3, replicas: int = 1) -> Self:
        """Returns when all slots are served and all replicas follow."""
        made = cls(family, folder, *options, primaries=primaries, replicas=replicas)
        await asyncio.gather(*(node.up() for node in made.nodes))
        first, heads = made.nodes[0], made.nodes[:primaries]
        for number, head in enumerate(heads):
            begin, end = SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1
            await head.ask("CLUSTER ADDSLOTSRANGE", begin, end)
            await head.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node, bus in list(made._buses.items())[1:]:
            await first.ask("CLUSTER MEET", HOST, node.port, bus)
        await eventually(made._all_know_all, "all nodes know each other")
        for number, node in enumerate(made.nodes[primaries:]):
            await node.ask("CLUSTER REPLICATE", await heads[number % primaries].ask("CLUSTER MYID"))
        await made.heal()
        return made

    async def heal(self) -> None:
        """Start and wake all nodes. Returns when all slots are served and all replicas follow."""
        for node in self.nodes:
            if node.is_up:
                node.go_on()
            else:
                await node.up()
        await eventually(self._is_whole, "the cluster is whole")

    async def empty(self) -> None:
        """Delete all keys, also on the replicas."""
        await asyncio.gather(*(node.empty(replicas=self.replicas) for node in await self.primaries()))

    async def primaries(self) -> list[Node]:
        """Those that are primaries now, as the nodes themselves say; of what is up and answers."""
        roles = await asyncio.gather(*(node.ask("ROLE") for node in self.nodes if node.is_up))
        up = (node for node in self.nodes if node.is_up)
        return [node for node, said in zip(up, roles, strict=True) if said[0] == "master"]

    async def replica_of(self, primary: Node) -> Node:
        """The replica of a primary that is up."""
        followers = (await primary.ask("ROLE"))[2]
        return next(node for node in self.nodes if str(node.port) in {port for _, port, _ in followers})

    async def owner(self, key: str) -> Node:
        """The primary of a key's hash slot, as the first node that is up says."""
        asked = next(node for node in self.nodes if node.is_up)
        slot = await asked.ask("CLUSTER KEYSLOT", key)
        ranges = await asked.ask("CLUSTER SLOTS")
        port = next(place[1] for begin, end, place, *_ in ranges if begin <= slot <= end)
        return next(node for node in self.nodes if node.port == port)

    async def fail_over(self, primary: Node) -> Node:
        """Make the replica of a primary the primary, with both at work. Returns it once the old one follows."""
        successor = await self.replica_of(primary)
        given_up_at = 0.0

        async def follows() -> bool:
            nonlocal given_up_at
            if (await successor.ask("ROLE"))[0] != "master" and asyncio.get_running_loop().time() >= given_up_at:
                given_up_at = asyncio.get_running_loop().time() + _FAILOVER_SECONDS
                with suppress(ResponseError):  # it has just become the primary
                    await successor.ask("CLUSTER FAILOVER")
            return await successor.is_primary(replicas=1) and await primary.is_replica()

        await eventually(follows, "the primary follows its replica")
        return successor

    async def move(self, key: str) -> Node:
        """Give the hash slot of a key to another primary. All its keys are lost. Returns that primary."""
        was = await self.owner(key)
        now = next(node for node in await self.primaries() if node is not was)
        slot, new_id = await was.ask("CLUSTER KEYSLOT", key), await now.ask("CLUSTER MYID")

        async def is_given() -> bool:
            try:
                for there in await was.ask("CLUSTER GETKEYSINSLOT", slot, 10_000):
                    await was.ask("DEL", there)
            except ResponseError:  # it knows already that it lost the slot
                return True
            try:
                return bool(await was.ask("CLUSTER SETSLOT", slot, "NODE", new_id))
            except ResponseError:  # somebody has written there again
                return False

        # Only a node that imports the slot tells the others that its word is the newest.
        await now.ask("CLUSTER SETSLOT", slot, "IMPORTING", await was.ask("CLUSTER MYID"))
        await now.ask("CLUSTER SETSLOT", slot, "NODE", new_id)
        await eventually(is_given, "the slot has no keys")
        await eventually(self._is_whole, "all nodes know")
        return now

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.down()

    async def _all_know_all(self) -> bool:
        said = await asyncio.gather(*(node.ask("CLUSTER NODES") for node in self.nodes))
        return all(
            len(known) == len(self.nodes) and not any("handshake" in each["flags"] for each in known.values())
            for known in said
        )

    async def _is_whole(self) -> bool:
        try:
            said = await asyncio.gather(*(node.ask_all(*_WHOLE) for node in self.nodes))
        except (RedisError, OSError):
            return False  # loading
        infos, slots, roles = zip(*said, strict=True)
        all_ok = all(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS) for info in infos)
        owners = {tuple(sorted((begin, end, head[1]) for begin, end, head, *_ in said)) for said in slots}
        heads = [role for role in roles if role[0] == "master" and len(role[2]) == self.replicas]
        following = [role for role in roles if role[0] == "slave" and role[3] == "connected"]
        all_ok = all_ok and len(owners) == 1
        return all_ok and len(heads) == self.size and len(following) == self.size * self.replicas
