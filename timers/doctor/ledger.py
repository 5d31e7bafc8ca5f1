"""Owns the doctor's check of the ledger: its tables, and whether it has what Redis has."""

from collections.abc import Sequence
from typing import Final

from timers.client import drift
from timers.client.fleet import shortened
from timers.client.progress import told
from timers.doctor.checks import Check, Level, judged
from timers.errors import LedgerUnavailable
from timers.ledger import inbox
from timers.ledger.database import Database
from timers.store.following import CHECK, COPY, REBUILD, RESTORE, behind, stages
from timers.store.store import Store

LATE_MS: Final = 60_000
"""A change that has waited this long is not just the next to be copied."""

REFUSED_SHOWN: Final = 3
DRIFT_MS: Final = 86_400_000
"""For how long the doctor mentions a difference that was repaired."""

_NOT_ARMED: Final = "nothing is armed with durability `ledger`, and changes of timers wait in Redis to be copied"


def _away(error: LedgerUnavailable) -> Check:
    repair = "start its database, or correct TIMERS_LEDGER_URL; the pods go on by themselves"
    return Check("ledger", "fail", str(error), _NOT_ARMED, repair)


async def check_ledger(store: Store, database: Database) -> Check:
    """Raises Unavailable."""
    try:
        state = await database.state()
        if state.problem is not None:
            level: Level = "fail"
            repair = "`timers db upgrade`" if state.is_old else "upgrade the pods"
            return Check("ledger", level, f"its database cannot be used: {state.problem}", _NOT_ARMED, repair)
        refused = await database.do(inbox.count_refused, writes=False)
        newest = await database.do(lambda c: inbox.last_refused(c, REFUSED_SHOWN), writes=False)
        compared = await drift.compared(database)
    except LedgerUnavailable as error:
        return _away(error)
    reached = await stages(store, range(store.shards))
    waiting, oldest_ms = await behind(store)

    async def at(*what: str) -> Sequence[str]:
        return await told(database, {shard: stage for shard, stage in reached.items() if stage.what in what})

    try:
        restoring, copying = await at(RESTORE.what, REBUILD, CHECK), await at(COPY.what)
    except LedgerUnavailable as error:
        return _away(error)

    look = (
        "pods with TIMERS_LEDGER_URL go on by themselves; if not, see `ledger` under services in /readyz of the workers"
    )
    now_ms = round(store.clock.now_ms())
    apart = [each for each in compared.values() if now_ms - each.found_ms < DRIFT_MS]
    in_redis, in_ledger = (sum(numbers) for numbers in zip((0, 0), *(each.drift for each in apart), strict=True))
    ago = (now_ms - max((each.found_ms for each in apart), default=now_ms)) // 60_000
    shown = "; ".join(f"{prefix}:{timer_id} ({problem})" for prefix, timer_id, problem in newest)
    repaired = f"{in_redis} timers in Redis and {in_ledger} in the ledger, most recently {ago} minutes ago"
    said = f"{waiting} changes wait, the oldest for {oldest_ms // 1000} s or more"
    lost = "if Redis loses its data now, these changes are lost"
    insert = (
        "repair them and insert them again into timers_inbox, or do without, then delete them from timers_inbox_refused"
    )
    return judged(
        "ledger",
        f"the ledger has all shards; {waiting} changes wait to be copied",
        (
            bool(restoring),
            "warn",
            f"shards still being restored from the ledger: {shortened(restoring)}",
            "some of their timers may not be in Redis yet, and will run late",
            look,
        ),
        (
            bool(copying),
            "warn",
            f"shards still being copied to the ledger: {shortened(copying)}",
            "if Redis loses its data now, some of their timers are lost",
            look,
        ),
        (oldest_ms > LATE_MS, "warn", said, lost, look),
        (
            bool(apart),
            "warn",
            f"the comparison repaired {repaired}",
            "somebody deletes or changes rows or keys, or one of the two servers lost some",
            "find out what did; the log says when (`timers differed between the ledger and Redis and were repaired`)",
        ),
        (
            bool(refused),
            "warn",
            f"{refused} rows of the inbox were refused, such as {shown}",
            "what they ask for was not done",
            insert,
        ),
    )
