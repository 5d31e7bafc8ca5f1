"""Owns sending each command to the node of a cluster that has its key.

redis-py's own client for clusters sends again what was cut, so a script would run twice or more. This one sends each
command over a node's never-repeating connections, and again only after an answer that says it was not carried out.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from timers.errors import ConfigurationError
from timers.setting_values import split_hosts
from timers.store import keys
from timers.store.servers.connections import Connections, Scripts
from timers.store.servers.durability import WaitLevel, Write, Written
from timers.store.servers.slots import SCRIPTS, Slots, key_of, slot_of

_MOST_PRIMARIES: Final = 1024
"""A cursor of SCAN says on which primary it goes on."""

_NOT_DONE: Final = (AskError, TryAgainError, ClusterDownError)
"""Answers of a node that has not carried out a command, MovedError among them."""

Command = tuple[Any, ...]
Answer = Any


def connect_cluster(url: str, answer_s: float) -> "ClusterConnections":
    """Connections to a cluster, given the address of one or more of its nodes. Opens nothing yet. Raises
    ConfigurationError, and what `connect_server` does."""
    split = split_hosts(url)[0]
    db = split.path.strip("/") or dict(parse_qsl(split.query)).get("db", "0")
    if db != "0":
        said = f"db {db} cannot be used: a cluster has only db 0; expected {split.scheme}://HOST:PORT without a db"
        raise ConfigurationError(f"TIMERS_REDIS_URL: {said}")
    slots = Slots(url, answer_s=answer_s)
    return ClusterConnections(ClusterRedis(slots), 0, slots, slots)


@dataclass(frozen=True, slots=True)
class ClusterConnections(Connections):
    """The connections to a cluster: `commands` and `scripts` go where the key is."""

    is_spread = True
    slots: Slots

    @property
    def options(self) -> str:
        return f"-c {self.slots.seed.options.removesuffix(f' -n {self.db}')}"

    @property
    def nodes(self) -> Sequence[Connections]:
        """The primaries; those of the URL until the first command was sent."""
        return self.slots.primaries

    @property
    def replicas(self) -> Sequence[Connections]:
        return self.slots.replicas

    def node_of(self, key: str) -> Connections:
        return self.slots.owner(key)

    async def refresh(self) -> None:
        await self.slots.refresh()

    def dial(self) -> AbstractConnection:
        """A connection to one of the primaries. See Connections."""
        return self.nodes[0].dial()

    def dial_scripts(self, answer_s: float) -> Scripts:
        return self.slots.apart(answer_s)

    def durable(self, level: WaitLevel) -> Write:
        """See Connections. What goes to one node at the same time shares a wait there, for its own disk or replicas."""

        async def ask(command: Command, node: Connections) -> Written:
            ((answer, reached),) = await node.durable(level)([command])
            if isinstance(answer, _NOT_DONE):
                raise answer
            return answer, reached

        async def write(commands: Sequence[Command]) -> list[Written]:
            return await asyncio.gather(*(self.slots.send(key_of(each), partial(ask, each)) for each in commands))

        return write

    async def lacks(self, level: WaitLevel, root: str = "") -> str:
        """See Connections. Without a root, what the first primary lacks that answers and lacks something."""

        async def ask(node: Connections) -> str:
            why = await node.lacks(level)
            return why and f"{why} ({node.options})"

        if root:
            return await self.slots.send(root, ask)
        await self.slots.look()
        said = await asyncio.gather(*map(ask, self.nodes), return_exceptions=True)
        return next((why for why in said if isinstance(why, str) and why), "")

    async def close(self) -> None:
        await self.slots.aclose()


class ClusterRedis(Redis):
    """All commands of redis-py, each on the primary that has its key, or that of `timers:meta` if it has no key. EXISTS
    may have keys of several slots. SCAN goes through all primaries, with cursors of its own."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(connection_pool=slots.seed.commands.connection_pool)
        self._slots = slots

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "ClusterPipeline":
        """A pipeline, which can be no transaction."""
        if transaction:
            raise NotImplementedError("a cluster has no transactions over several slots")
        return ClusterPipeline(self, self._slots)

    async def execute_command(self, *args: Any, **options: Any) -> Answer:
        if args[0] == "EXISTS" and len({slot_of(name) for name in args[1:]}) > 1:
            return await self._exists(args[1:])
        if args[0] == "SCAN":
            return await self._scan(int(args[1]), args[2:], options)

        async def ask(node: Connections) -> Answer:
            redis: Any = node.commands
            try:
                return await redis.execute_command(*args, **options)
            except AskError as error:
                if isinstance(error, MovedError) or args[0] in SCRIPTS:
                    raise
                # The key is not on this node, or not any more: its slot is being moved.
                asked: Any = self._slots.at(error, node).commands.pipeline(transaction=False)
                _, answer = await asked.execute_command("ASKING").execute_command(*args, **options).execute()
                return answer

        return await self._slots.send(key_of(args) or keys.META, ask)

    async def _exists(self, names: Sequence[Any]) -> int:
        by_slot: dict[int, list[Any]] = {}
        for name in names:
            by_slot.setdefault(slot_of(name), []).append(name)
        asked = self.pipeline(transaction=False)
        for of_slot in by_slot.values():
            asked.exists(*of_slot)
        return sum(await asked.execute())

    async def _scan(self, cursor: int, arguments: Command, options: Any) -> tuple[int, Any]:
        """A cursor has the place of a primary in its low bits, and above them that node's own cursor."""
        await self._slots.look()
        primaries = self._slots.primaries
        own, place = divmod(cursor, _MOST_PRIMARIES)
        if place >= len(primaries):  # there are fewer now
            return 0, []
        redis: Any = primaries[place].commands
        own, found = await redis.execute_command("SCAN", own, *arguments, **options)
        if own == 0:
            place += 1
        return (own * _MOST_PRIMARIES + place if place < len(primaries) else 0), found


class ClusterPipeline(Pipeline):
    """A pipeline that is sent in parts, one to each node, all at once. Answers come in order. A command without a key
    goes where the one before it goes. What a node refuses because it does not have the slot is sent again, one by one;
    what lies on a node that is away is answered with the error."""

    def __init__(self, redis: ClusterRedis, slots: Slots) -> None:
        super().__init__(redis.connection_pool, redis.response_callbacks, transaction=False, shard_hint=None)
        self._redis, self._slots = redis, slots

    async def execute(self, raise_on_error: bool = True) -> list[Answer]:
        stack, self.command_stack = self.command_stack, []
        answers: list[Answer] = [None] * len(stack)
        if stack:
            await self._slots.look()
        parts: dict[Connections, list[int]] = {}
        key: str | bytes = keys.META
        for place, (args, _) in enumerate(stack):
            key = key_of(args) or key
            parts.setdefault(self._slots.owner(key), []).append(place)
        sent = await asyncio.gather(
            *(self._ask(node, [stack[place] for place in places]) for node, places in parts.items())
        )
        for place, answer in zip(chain(*parts.values()), chain(*sent), strict=True):
            answers[place] = answer
        for place, answer in enumerate(answers):
            if isinstance(answer, AskError | TryAgainError):
                args, options = stack[place]
                answers[place] = await _error_or(self._redis.execute_command(*args, **options))
        if raise_on_error and (error := next((a for a in answers if isinstance(a, Exception)), None)):
            raise error
        return answers

    async def _ask(self, node: Connections, commands: Sequence[tuple[Command, Any]]) -> Sequence[Answer]:
        asked: Any = node.commands.pipeline(transaction=False)
        for args, options in commands:
            asked.execute_command(*args, **options)
        answers = await _error_or(self._slots.answer(asked.execute(raise_on_error=False)))
        if isinstance(answers, Exception):
            self._slots.doubt()
            return [answers] * len(commands)
        for answer in answers:
            if isinstance(answer, MovedError):
                self._slots.moved(answer, node)
        return list(answers)


async def _error_or(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except Exception as error:  # noqa: BLE001 (it is the answer)
        return error
