"""Owns the doctor's check of durabilities: which the service can give, and which pods want."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from timers.client.durable import LEVELS, SETTING, lacking, listed
from timers.core.shapes import Durability
from timers.doctor.checks import Check, judged
from timers.doctor.proofs import priorities
from timers.store.membership import Member
from timers.store.servers.durability import FSYNC, REPLICATED, WAITS
from timers.store.store import Store

_REPAIR: Final[Mapping[Durability, str]] = {
    FSYNC: "`redis-cli CONFIG SET appendonly yes appendfsync always`, and the same in the server's configuration",
    REPLICATED: "attach replicas, or see what their logs say",
    "ledger": "set TIMERS_LEDGER_URL",
}


async def durability_check(store: Store, members: Sequence[Member], *, has_ledger: bool) -> Check:
    """Which durabilities the service can give, whether pods want others, and which replica a failover would take."""
    lacks = await lacking(store, has_ledger=has_ledger)
    wanted = {member.settings.get(SETTING, "") for member in members}
    missed = [level for level in LEVELS if level in wanted and level in lacks]
    known = [f"not {level}: {why}" for level, why in lacks.items() if level in WAITS]
    by_node = [await priorities(node) for node in store.connections.nodes]
    said = "; ".join([listed(lacks), *known, *_replicas(by_node)])
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
