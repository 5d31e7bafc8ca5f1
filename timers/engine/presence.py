"""Owns being seen: a pod's signs of life from its start to its end, whatever its roles."""

from collections.abc import Mapping

from timers.engine.peers import Peers
from timers.engine.supervisor import Supervisor
from timers.errors import Unavailable
from timers.logs import get_logger

_log = get_logger("timers.presence")


class Presence:
    """Gives signs of life until it is stopped, then signs off."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._beating = Supervisor([peers])

    @property
    def states(self) -> Mapping[str, str]:
        """As a supervisor's."""
        return self._beating.states

    async def start(self) -> None:
        """The first sign of life is given when this returns. Raises Unavailable."""
        await self._peers.beat()
        self._beating.start()

    async def stop(self) -> None:
        """Sign off, so that nobody waits for this pod. While Redis is away its last sign ages instead."""
        await self._beating.stop()
        try:
            await self._peers.leave()
        except Unavailable as error:
            _log.warning("could not sign off", reason=str(error))
