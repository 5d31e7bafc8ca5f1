"""Owns the network between a process and the server: connections in the place of the
store's, on which each command takes a while and may go wrong."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection, ConnectionPool, DefaultParser
from redis.exceptions import ConnectionError

from tests.simulation import faults
from tests.simulation.data import Refused, Reply
from tests.simulation.faults import EVENT, Fault, Faults
from tests.simulation.loop import Actor, VirtualLoop
from tests.simulation.server import Server, service_scripts
from timers.store.servers import ANSWER_TIMEOUT_SECONDS
from timers.store.servers.connections import Connections, Scripts

Command = tuple[bytes, ...]
Executed = Callable[[Actor, str, Command, Reply], None]
"""Told of each command when it has been executed: whose, its name, its words, its answer."""

SHORTEST_SECONDS: Final = 0.00005
LONGEST_SECONDS: Final = 0.0008


class Network:
    """What lies between all actors and the server. `die` and `freeze` stop an actor."""

    def __init__(self, loop: VirtualLoop, server: Server, wrong: Faults, rng: Random) -> None:
        self.loop, self.server, self.faults, self._rng = loop, server, wrong, rng
        self.executed: Executed = lambda *_: None
        self.says: Callable[[Fault], None] = lambda _: None
        """Told of each fault as it happens."""
        self.context = contextvars.Context()
        self.die: Callable[[Actor], None] = lambda _: None
        self.freeze: Callable[[Actor, float], None] = lambda _, __: None

    def delay(self) -> float:
        """How long a message takes now, in seconds."""
        return SHORTEST_SECONDS + self._rng.random() ** 4 * (LONGEST_SECONDS - SHORTEST_SECONDS)

    def at(self, when: float, call: Callable[..., object], *given: Any) -> None:
        """Call it then; it belongs to nobody."""
        self.loop.call_at(when, call, *given, context=self.context)

    def hang_up(self, actor: Actor) -> None:
        """Its process has ended, and with it its subscriptions."""
        self.server.forget(lambda listener: isinstance(listener, Subscription) and listener.actor is actor)


class _Question:
    """Commands that are sent together, and what becomes of them."""

    __slots__ = ("answer", "commands", "fault", "is_cut", "life", "names", "replies")

    def __init__(
        self,
        commands: Sequence[Command],
        names: Sequence[str],
        answer: asyncio.Future[list[Reply]],
        fault: Fault | None,
    ) -> None:
        self.commands, self.names, self.answer, self.fault = commands, names, answer, fault
        self.replies: list[Reply] = []
        self.life = 0
        self.is_cut = False


class Link:
    """One connection: what is asked is executed and answered in order."""

    def __init__(self, network: Network, actor: Actor, answer_s: float) -> None:
        self._network, self.actor, self._answer_s = network, actor, answer_s
        self._asked: list[_Question] = []
        self._executed_at = self._answered_at = 0.0

    def ask(self, commands: Sequence[Command]) -> asyncio.Future[list[Reply]]:
        """The answers to some commands that are sent together. Fails as redis-py does."""
        network, loop = self._network, self._network.loop
        answer: asyncio.Future[list[Reply]] = loop.create_future()
        names = [_name(command) for command in commands]
        if self.actor.stopped:  # it is being unwound
            answer.set_exception(ConnectionError("the actor is dead"))
            return answer
        question = _Question(commands, names, answer, network.faults.at(self.actor.name, names[0]))
        question.life = network.server.life
        self._send(question)
        return answer

    def _send(self, question: _Question) -> None:
        network, fault = self._network, question.fault
        now, server = network.loop.time(), network.server
        kind, seconds = (fault.kind, fault.seconds) if fault is not None else ("", 0.0)
        if fault is not None:
            network.says(fault)
        if kind == faults.STALL:
            server.stalled_until = max(server.stalled_until, now + seconds)
        if kind == faults.REFUSES:
            server.refuses_until = max(server.refuses_until, now + seconds)
        at = max(now + network.delay(), self._executed_at, server.stalled_until)
        if kind == faults.SLOW_REQUEST:
            at += seconds
        back = max(at + network.delay(), self._answered_at)
        if kind == faults.SLOW_ANSWER:
            back += seconds
        self._executed_at, self._answered_at = at, back
        self._asked.append(question)
        network.at(at, self._execute, question)
        network.at(back, self._answer, question)
        if back - now > self._answer_s:
            network.at(now + self._answer_s, self._give_up, question)

    def _execute(self, question: _Question) -> None:
        network, server, fault = self._network, self._network.server, question.fault
        kind = "" if fault is None else fault.kind
        if question.is_cut or question.life != server.life or network.loop.time() < server.away_until:
            self.cut("Connection refused." if question.life == server.life else "Connection closed by server.")
            return
        if kind == faults.LOST_REQUEST:
            self.cut()
        elif kind == faults.AWAY and fault is not None:
            server.restart(fault.seconds)
            self.cut()
        elif kind == faults.DIES_BEFORE:
            network.die(self.actor)
            self.cut()
        else:
            for name, command in zip(question.names, question.commands, strict=True):
                question.replies.append(server.execute(command))
                network.executed(self.actor, name, command, question.replies[-1])
            if kind == faults.DIES_AFTER:
                network.die(self.actor)
            elif kind == faults.FREEZES and fault is not None:
                network.freeze(self.actor, fault.seconds)

    def _answer(self, question: _Question) -> None:
        if question.answer.done():
            return
        if (
            question.is_cut
            or question.life != self._network.server.life
            or (question.fault is not None and question.fault.kind == faults.LOST_ANSWER)
        ):
            self.cut()
        else:
            self._asked.remove(question)
            question.answer.set_result(question.replies)

    def _give_up(self, question: _Question) -> None:
        """The caller's patience ends, and with it the connection; what was sent may still be executed."""
        if question.answer.done():
            return
        question.answer.set_exception(TimeoutError())
        self._fail("Connection closed.")

    def cut(self, why: str = "Connection closed by server.") -> None:
        """End the connection: nothing that is on its way is executed any more, and no answer comes."""
        for question in self._asked:
            question.is_cut = True
        self._fail(why)

    def _fail(self, why: str) -> None:
        asked, self._asked = self._asked, []
        self._executed_at = self._answered_at = 0.0
        for question in asked:
            if not question.answer.done():
                question.answer.set_exception(ConnectionError(why))


def _name(command: Command) -> str:
    """What faults and stories call it: the script, or the command."""
    return service_scripts().get(command[1], "eval") if command[0] == b"EVALSHA" else command[0].decode().lower()


def _words(given: Sequence[str | int | float | bytes]) -> Command:
    return tuple([part if type(part) is bytes else str(part).encode() for part in given])  # the fastest way


def _meant(reply: Reply) -> Any:
    if type(reply) is Refused:
        return DefaultParser.parse_error(str(reply))  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return reply


class ScriptWire(Scripts):
    """A connection for scripts."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def execute_command(self, *command: str | int | bytes) -> Any:
        """See Scripts."""
        (reply,) = await self._link.ask([_words(command)])
        answer = _meant(reply)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        """See Scripts."""
        self._link.cut()


_POOL: Final = ConnectionPool(protocol=2)
_CALLBACKS: Final = Redis(connection_pool=_POOL).response_callbacks


class Commands(Redis):
    """redis-py's client. Each call has a connection of its own, as from a pool."""

    def __init__(self, link: Callable[[], Link]) -> None:
        self._link = link
        self.connection_pool, self.response_callbacks = _POOL, _CALLBACKS

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        """As redis-py's."""
        (reply,) = await self._link().ask([_words(command)])
        return self._understood(command, options, reply)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """As redis-py's."""
        return _Commands(self)

    def _understood(self, command: Sequence[Any], options: dict[str, Any], reply: Reply) -> Any:
        answer = _meant(reply)
        if isinstance(answer, Exception):
            raise answer
        callback = self.response_callbacks.get(command[0])
        options.pop("keys", None)
        return answer if callback is None else callback(answer, **options)

    async def all(self, stack: Sequence[Any]) -> list[Any]:
        """The answers to commands that are sent together; errors among them."""
        replies = await self._link().ask([_words(command) for command, _ in stack])
        answers: list[Any] = []
        for (command, options), reply in zip(stack, replies, strict=True):
            try:
                answers.append(self._understood(command, dict(options), reply))
            except Exception as error:  # noqa: BLE001 (its caller looks at each)
                answers.append(error)
        return answers

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Do nothing: no connection is kept."""

    def __del__(self, *_: object) -> None:
        """Nothing is open."""


class _Commands(Pipeline):
    def __init__(self, commands: Commands) -> None:
        super().__init__(_POOL, _CALLBACKS, False, None)
        self._commands = commands

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """As redis-py's."""
        stack, self.command_stack = self.command_stack, []
        answers = await self._commands.all(stack) if stack else []
        for answer in answers if raise_on_error else ():
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def reset(self) -> None:  # type: ignore[override]  # as redis-py's own
        """As redis-py's."""
        self.command_stack = []

    def __del__(self, *_: object) -> None:
        """Nothing is open."""


class Subscription:
    """A subscriber's connection, with what `timers.store.notifications` uses of redis-py's."""

    def __init__(self, network: Network, actor: Actor) -> None:
        self._network, self.actor = network, actor
        self._come: deque[Any] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._sent_at = self._heard_at = 0.0
        self._life = -1
        self._parser = SimpleNamespace(_reader=SimpleNamespace(gets=self._more))

    async def connect(self) -> None:
        await asyncio.sleep(self._network.delay())
        if self._network.loop.time() < self._network.server.away_until:
            raise ConnectionError("Connection refused.")
        self._life = self._network.server.life

    async def send_command(self, *command: str | bytes) -> None:
        words = _words(command)
        network = self._network
        self._sent_at = max(self._sent_at, network.loop.time() + network.delay(), network.server.stalled_until)
        network.at(self._sent_at, self._take, words)

    def _take(self, words: Command) -> None:
        server = self._network.server
        if self._life != server.life:
            self._end()
        elif words[0] == b"PING":
            self._bring([b"pong", b""])
        elif words[0] == b"TIME":
            self._bring(server.execute(words))
        else:
            for number, channel in enumerate(words[1:], 1):
                server.subscribe(channel, self)
                self._bring([b"subscribe", channel, number])

    def hear(self, channel: bytes, message: bytes) -> None:
        """Called by the server."""
        network = self._network
        fault = network.faults.at(self.actor.name, EVENT)
        kind = "" if fault is None else fault.kind
        if fault is not None:
            network.says(fault)
        # Redis sends a subscription every event once and in order, until it ends. Some fare worse here, but not those
        # that pods count: the expiries of a bare key after each canary.
        is_canary, is_in_order = b"canary:" in message, b":{" not in message
        if kind == faults.EVENT_LOST and not is_canary:
            return
        if kind == faults.EVENT_CUT:
            network.server.forget(lambda listener: listener is self)
            self.lose()
            return
        at = network.loop.time() + network.delay()
        reply = [b"message", channel, message]
        if kind == faults.EVENT_OVERTAKEN and fault is not None and not is_in_order:
            network.at(at + fault.seconds, self._bring_now, reply)
            return
        if kind == faults.EVENT_LATE and fault is not None:
            at += fault.seconds
        self._bring(reply, at)
        if kind == faults.EVENT_DOUBLED and not is_in_order:
            self._bring(reply, at)

    def _bring(self, reply: Any, at: float | None = None) -> None:
        network = self._network
        self._heard_at = max(self._heard_at, at if at is not None else network.loop.time() + network.delay())
        network.at(self._heard_at, self._bring_now, reply)

    def _bring_now(self, reply: Any) -> None:
        self._come.append(reply if self._life == self._network.server.life else None)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def lose(self) -> None:
        """The connection is gone; the subscriber notices a little later."""
        self._network.at(self._network.loop.time() + self._network.delay(), self._end)

    def _end(self) -> None:
        self._life = -2
        self._bring_now(None)

    async def read_response(self, **_: Any) -> Any:
        while not self._come:
            self._waiting = self._network.loop.create_future()
            await self._waiting
        reply = self._come.popleft()
        if reply is None:
            raise ConnectionError("Connection closed by server.")
        return reply

    def _more(self, _decoded: bool) -> Any:
        return self._come.popleft() if self._come and self._come[0] is not None else NOT_ENOUGH_DATA

    async def disconnect(self, nowait: bool = False) -> None:
        self._network.server.forget(lambda listener: listener is self)
        self._life = -2


class Wires(Connections):
    """The connections of one actor."""

    _network: Network
    _actor: Actor

    @classmethod
    def of(cls, network: Network, actor: Actor, answer_s: float = ANSWER_TIMEOUT_SECONDS) -> "Wires":
        """A process's connections. An answer may take `answer_s` seconds."""
        commands = Commands(lambda: Link(network, actor, answer_s))
        wires = cls(commands, 0, ScriptWire(Link(network, actor, answer_s)))
        object.__setattr__(wires, "_network", network)
        object.__setattr__(wires, "_actor", actor)
        return wires

    @property
    def user(self) -> str:
        return "default"

    def dial(self) -> AbstractConnection:
        return cast("AbstractConnection", Subscription(self._network, self._actor))

    def dial_scripts(self, answer_s: float) -> Scripts:
        return ScriptWire(Link(self._network, self._actor, answer_s))

    async def close(self) -> None:
        """Close the shared connection."""
        await self.scripts.aclose()
