"""Owns which durabilities a service can give, and what is said where one is asked for that it cannot."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

from timers.core.shapes import Durability
from timers.errors import ConfigurationError, InvalidInput
from timers.store.checkup import Check, judged
from timers.store.durability import FSYNC, REPLICATED, WAITS
from timers.store.membership import Member
from timers.store.proofs import priorities
from timers.store.store import Store

SETTING: Final = "TIMERS_DURABILITY"
_LEVELS: Final[Sequence[Durability]] = get_args(Durability)

_REPAIR: Final[Mapping[Durability, str]] = {
    FSYNC: "`redis-cli CONFIG SET appendonly yes appendfsync always`, and the same in the server's configuration",
    REPLICATED: "attach replicas, or see what their logs say",
    "ledger": "set TIMERS_LEDGER_URL",
}


async def lacking(store: Store, *, has_ledger: bool) -> Mapping[Durability, str]:
    """What the service lacks for the durabilities that it cannot give. Raises Unavailable."""
    lacks: dict[Durability, str] = {level: await store.connections.durable(level).lacks() for level in WAITS}
    lacks["ledger"] = "" if has_ledger else "this service has no ledger (TIMERS_LEDGER_URL)"
    return {level: why for level, why in lacks.items() if why}


async def refusal_of(store: Store, durability: Durability, *, has_ledger: bool) -> InvalidInput | None:
    """The error for a durability that the service cannot give. Raises Unavailable."""
    if durability in WAITS and not await store.connections.durable(durability).lacks():
        return None
    if durability == "fast" or (durability == "ledger" and has_ledger):
        return None
    lacks = await lacking(store, has_ledger=has_ledger)
    why = lacks.get(durability, "try again")
    return InvalidInput.of("durability", durability, f"{_listed(lacks)}; {_said(durability, why)}")


async def check_setting(store: Store, durability: Durability | None) -> None:
    """Raises ConfigurationError if every write of a pod with this setting would miss it. Replicas may come later."""
    if durability == FSYNC and (error := await refusal_of(store, FSYNC, has_ledger=False)):
        raise ConfigurationError(str(error).replace("durability", SETTING, 1))


async def durability_check(store: Store, members: Sequence[Member], *, has_ledger: bool) -> Check:
    """Which durabilities the service can give, whether pods want others, and which replica a failover would take."""
    lacks = await lacking(store, has_ledger=has_ledger)
    wanted = {member.settings.get(SETTING, "") for member in members}
    missed = [level for level in _LEVELS if level in wanted and level in lacks]
    known = [f"not {level}: {why}" for level, why in lacks.items() if level in WAITS]
    by_node = [await priorities(node) for node in store.connections.nodes]
    said = "; ".join([_listed(lacks), *known, *_replicas(by_node)])
    means = f"pods are to wait for {' and '.join(missed)}: what they write is only fast, which answers and metrics say"
    never = any(some and {*some} == {0} for some in by_node)
    differ = any(len({*some} - {0, None}) > 1 for some in by_node)
    lost = "no failover happens when the server is lost"
    late = "the one with the lowest number is promoted even if it lags behind; what was only `fast` is lost with that"
    return judged(
        "durability",
        said,
        (bool(missed), "fail", said, means, "; ".join(_REPAIR[level] for level in missed)),
        (never, "warn", f"{said}: none may be promoted", lost, "`redis-cli CONFIG SET replica-priority 100` on one"),
        (differ, "warn", f"{said}: they differ", late, "`redis-cli CONFIG SET replica-priority 100` on each"),
    )


def _replicas(by_node: Iterable[Sequence[int | None]]) -> list[str]:
    """The priorities of each server's replicas in words, if there are any."""
    shown = [", ".join("unknown" if each is None else str(each) for each in some) for some in by_node if some]
    return [f"replica-priority {' | '.join(shown)}"] if shown else []


def _listed(lacks: Mapping[Durability, str]) -> str:
    *some, last = [level for level in _LEVELS if level not in lacks]
    return f"{', '.join(some)} or {last}" if some else last


def _said(durability: Durability, why: str) -> str:
    return why if durability == "ledger" else f"this server: {why}"
