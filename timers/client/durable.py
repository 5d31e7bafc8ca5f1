"""Owns which durabilities a service can give, and what is said where one is asked for that it cannot."""

from collections.abc import Mapping, Sequence
from typing import Final, get_args

from timers.core.shapes import Durability
from timers.errors import ConfigurationError, InvalidInput
from timers.store.scripts import reachable
from timers.store.servers.durability import FSYNC, WAITS, WaitLevel
from timers.store.store import Store

SETTING: Final = "TIMERS_DURABILITY"
LEVELS: Final[Sequence[Durability]] = get_args(Durability)


async def lacking(store: Store, *, has_ledger: bool, root: str = "") -> Mapping[Durability, str]:
    """What the service lacks for the durabilities that it cannot give, to a shard's root or without one to all of them.
    Raises Unavailable."""
    lacks: dict[Durability, str] = {level: await _lacks(store, level, root) for level in WAITS}
    lacks["ledger"] = "" if has_ledger else "this service has no ledger (TIMERS_LEDGER_URL)"
    return {level: why for level, why in lacks.items() if why}


async def _lacks(store: Store, level: WaitLevel, root: str) -> str:
    with reachable():
        return await store.connections.durable(level).lacks(root)


async def refusal_of(store: Store, durability: Durability, *, has_ledger: bool, root: str = "") -> InvalidInput | None:
    """The error for a durability that the service cannot give, as in `lacking`. Raises Unavailable."""
    if durability in WAITS and not await _lacks(store, durability, root):
        return None
    if durability == "fast" or (durability == "ledger" and has_ledger):
        return None
    lacks = await lacking(store, has_ledger=has_ledger, root=root)
    why = lacks.get(durability)
    if why is None:  # the server has it since a moment ago
        return None
    return InvalidInput.of("durability", durability, f"{listed(lacks)}; {_said(durability, why)}")


async def check_setting(store: Store, durability: Durability | None) -> None:
    """Raises ConfigurationError if every write of a pod with this setting would miss it. Replicas may come later."""
    if durability == FSYNC and (error := await refusal_of(store, FSYNC, has_ledger=False)):
        raise ConfigurationError(str(error).replace("durability", SETTING, 1))


def listed(lacks: Mapping[Durability, str]) -> str:
    """The durabilities that the service can give, as a sentence has them."""
    *some, last = [level for level in LEVELS if level not in lacks]
    return f"{', '.join(some)} or {last}" if some else last


def _said(durability: Durability, why: str) -> str:
    return why if durability == "ledger" else f"this server: {why}"
