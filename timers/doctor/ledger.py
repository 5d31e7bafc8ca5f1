"""Owns the doctor's check of the ledger: its tables, and whether it has what Redis has."""

from typing import Final

from timers.client import drift
from timers.client.copies import told
from timers.client.fleet import shortened
from timers.doctor.checks import Check, Trouble, judged
from timers.errors import ConfigurationError, LedgerUnavailable
from timers.ledger import inbox
from timers.ledger.database import Database
from timers.store.following import CHECK, COPY, REBUILD, RESTORE, behind, server_of, stages
from timers.store.store import Store

LATE_MS: Final = 60_000
"""A change or a row that has waited this long is not just the next one."""

REFUSED_SHOWN: Final = 3
DRIFT_MS: Final = 86_400_000
"""For how long the doctor mentions a difference that was repaired."""

_NOT_ARMED: Final = "nothing is armed with durability `ledger`, and changes of timers wait in Redis to be copied"
_CONTINUE: Final = (
    "pods with TIMERS_LEDGER_URL continue automatically; if not, see `{}` under services in /readyz of the workers"
)
_LOOK: Final = _CONTINUE.format("ledger")


async def check_ledger(store: Store, database: Database) -> Check:
    """Raises Unavailable."""
    try:
        state = await database.state()
        if state.problem is not None:
            repair = "upgrade the pods, or use another database" if state.is_foreign else "`timers db upgrade`"
            return Check("ledger", "fail", f"its database cannot be used: {state.problem}", _NOT_ARMED, repair)
        await database.ping((await server_of(store))[1])
        repaired, refused = await _repaired(store, database), await _refused(database)
        reached = await stages(store, range(store.shards))
        waiting, oldest_ms = await behind(store)
        inbox_ms = await database.do(inbox.waited_ms, writes=False) or 0
        restoring, copying = [
            await told(database, {shard: stage for shard, stage in reached.items() if stage.what in what})
            for what in ((RESTORE.what, REBUILD, CHECK), (COPY.what,))
        ]
    except (LedgerUnavailable, ConfigurationError) as error:
        repair = (
            "start its database, let it be written, grant what its user lacks, or correct TIMERS_LEDGER_URL; "
            "the pods continue automatically"
        )
        return Check("ledger", "fail", str(error), _NOT_ARMED, repair)
    given, late = "some of their timers may not be in Redis yet, and will run late", oldest_ms > LATE_MS
    said = f"{waiting} changes wait, the oldest for {oldest_ms // 1000} s or more"
    lost = "if Redis loses its data now, {} are lost"
    rows = f"rows of the inbox wait, the first for {inbox_ms // 1000} s"
    coming, going = (f"shards still being {way}: " for way in ("restored from the ledger", "copied to the ledger"))
    return judged(
        "ledger",
        f"the ledger has all shards; {waiting} changes wait to be copied",
        (bool(restoring), "warn", coming + shortened(restoring), given, _LOOK),
        (bool(copying), "warn", going + shortened(copying), lost.format("some of their timers"), _LOOK),
        (late, "warn", said, lost.format("these changes"), _LOOK),
        (inbox_ms > LATE_MS, "warn", rows, "what they ask for is not done yet", _CONTINUE.format("inbox")),
        repaired,
        refused,
    )


async def _repaired(store: Store, database: Database) -> Trouble:
    """What comparisons have found lately."""
    now_ms, compared = round(store.clock.now_ms()), await drift.compared(database)
    apart = [each for each in compared.values() if now_ms - each.found_ms < DRIFT_MS]
    in_redis, in_ledger = (sum(numbers) for numbers in zip((0, 0), *(each.drift for each in apart), strict=True))
    ago = (now_ms - max((each.found_ms for each in apart), default=now_ms)) // 60_000
    said = f"{in_redis} timers in Redis and {in_ledger} in the ledger, most recently {ago} minutes ago"
    means = "somebody deletes or changes rows or keys, or one of the two servers lost some"
    repair = "find out what did; the log says when (`timers differed between the ledger and Redis and were repaired`)"
    return bool(apart), "warn", f"the comparison repaired {said}", means, repair


async def _refused(database: Database) -> Trouble:
    """What the inbox could not accept."""
    number = await database.do(inbox.count_refused, writes=False)
    newest = await database.do(lambda c: inbox.last_refused(c, REFUSED_SHOWN), writes=False)
    shown = "; ".join(f"{prefix}:{timer_id} ({problem})" for prefix, timer_id, problem in newest)
    said = f"{number} rows of the inbox were refused, such as {shown}"
    repair = "fix and re-insert the rows you still need into timers_inbox, then delete them from timers_inbox_refused"
    return bool(number), "warn", said, "what they ask for was not done", repair
