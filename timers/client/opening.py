"""Owns opening the store of a db that a pod or a command is to use."""

from typing import TYPE_CHECKING

from timers.errors import ConfigurationError, FieldError, LedgerUnavailable
from timers.setting_values import redacted
from timers.settings import Settings
from timers.store.identity import READS
from timers.store.scripts import reachable
from timers.store.servers.connect import connect
from timers.store.servers.connections import Connections
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.ledger.database import Database


async def open_store(connections: Connections, *, shards: int | None = None) -> Store:
    """A store over connections, with the number of shards that the db has. Writes nothing."""
    store = Store(connections, shards=shards)
    await store.identity.refresh()
    if not store.identity.epoch:
        with reachable():
            await connections.check_form()
    return store


async def open_redis(url: str, settings: Settings, *, joins: bool = False) -> Store:
    """Opens the timers of a db; with `joins`, makes an empty db ours. Raises ConfigurationError, which names the
    setting, if the db cannot be used."""
    if settings.format is not None and settings.format > READS:
        raise ConfigurationError(str(FieldError("TIMERS_FORMAT", str(settings.format), f"a number from 1 to {READS}")))
    connections = connect(url)
    try:
        store = await open_store(connections, shards=settings.shards)
        store.identity.newest = settings.format or READS
        await _recall_shards(store, settings, joins=joins)
        if joins:
            await store.identity.join()
    except BaseException as error:
        await connections.close()
        if isinstance(error, ConfigurationError) or not isinstance(error, Exception):
            raise
        raise ConfigurationError(f"TIMERS_REDIS_URL: {redacted(url)} cannot be used: {error}") from error
    return store


async def _recall_shards(store: Store, settings: Settings, *, joins: bool) -> None:
    """Have an empty db get the number of shards that it had before it was lost. Only who `joins` insists on knowing
    that. Raises ConfigurationError."""
    ledger = open_ledger(settings.ledger)
    if ledger is None or store.identity.epoch or settings.shards is not None:
        return
    try:
        if joins:
            await ledger.check()
        await recall_shards(store, ledger)
    except LedgerUnavailable as error:
        if joins:
            raise ConfigurationError(f"TIMERS_LEDGER_URL: {error}") from error
    finally:
        await ledger.close()


async def recall_shards(store: Store, ledger: "Database") -> None:
    """Have an empty db get the number of shards that the ledger knows. Raises LedgerUnavailable."""
    from timers.ledger.holding import last_shards  # noqa: PLC0415 (what it needs is an extra)

    if not store.identity.epoch and (known := await ledger.do(last_shards, writes=False)) is not None:
        store.identity.expect(known)


def open_ledger(url: str | None) -> "Database | None":
    """The ledger's database, if there is a ledger. Connects at the first call."""
    if url is None:
        return None
    from timers.ledger.database import Database  # noqa: PLC0415 (what it needs is an extra)

    return Database(url)
