"""Owns what a db needs besides its timers to go on as before: API keys, declarations and pauses, as the ledger keeps
them. (Hooks are said again by the pods that ask for them.)

The functions raise Unavailable and LedgerUnavailable.
"""

from collections.abc import Container
from functools import partial
from typing import Final

from timers.ledger import facts
from timers.ledger.database import Database, Transacting
from timers.ledger.facts import KEY
from timers.store.callers import Callers
from timers.store.copying import put_declaration, put_key, put_pause, read_declarations, read_pauses
from timers.store.following import FIRST_SHARD, is_still, stages
from timers.store.membership import Declaration
from timers.store.store import Store

DECLARED: Final = "declared"
PAUSED: Final = "paused"
KINDS: Final = (KEY, DECLARED, PAUSED)


async def keep_facts(store: Store, database: Database) -> None:
    """Make the ledger's facts those of Redis. One that Redis does not have is deleted only if the shard that this pod
    follows was restored in full, and with it the facts."""
    epoch, now = store.identity.epoch, await _read(store)
    is_whole = (await stages(store, [FIRST_SHARD]))[FIRST_SHARD].is_whole
    if not await is_still(store, epoch):
        return
    kept = await database.do(facts.read, writes=False)
    changed = {fact: value for fact, value in now.items() if kept.get(fact) != value}
    gone = [fact for fact in kept if fact[0] in KINDS and fact not in now] if is_whole else []
    if changed or gone:
        await database.do(partial(facts.write, changed=changed, gone=gone))


async def give_facts_back(store: Store, database: Transacting, kinds: Container[str] = KINDS) -> None:
    """Put back what the ledger has of these kinds and Redis has not."""
    for (kind, name), value in (await database.do(facts.read, writes=False)).items():
        match kind if kind in kinds else None:
            case "key":
                await put_key(store, name, value, if_exists="newer", dry_run=False)
            case "declared":
                at, _, pod = value.partition(" ")
                await put_declaration(store, name, Declaration(int(at), pod), dry_run=False)
            case "paused":
                since_ms = int(value) if value else None
                await put_pause(store, name, since_ms, if_exists="newer", dry_run=False)
            case _:
                pass  # not asked for, or of a later version


async def _read(store: Store) -> dict[tuple[str, str], str]:
    """By kind and name: an API `key`'s entry, who `declared` a prefix (`<ms> <pod>`), since when one is `paused` (ms,
    or nothing)."""
    declared, pauses = await read_declarations(store), await read_pauses(store)
    return {
        **{(KEY, key_id): entry for key_id, entry in (await Callers(store).entries()).items()},
        **{(DECLARED, prefix): f"{said.at_ms} {said.pod}" for prefix, said in declared.items()},
        **{(PAUSED, prefix): "" if since_ms is None else str(since_ms) for prefix, since_ms in pauses.items()},
    }
