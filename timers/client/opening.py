"""Owns opening the store of a db that a pod or a command is to use, and which durabilities it can give."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, get_args

from timers.core.shapes import Durability
from timers.errors import ConfigurationError, InvalidInput, LedgerUnavailable
from timers.setting_values import redacted
from timers.settings import Settings
from timers.store.identity import READS
from timers.store.scripts import reachable
from timers.store.servers import connect
from timers.store.servers.connections import Connections
from timers.store.servers.durability import FSYNC, WAITS
from timers.store.store import Store

if TYPE_CHECKING:
    from timers.ledger.database import Database

SETTING: Final = "TIMERS_DURABILITY"
LEVELS: Final[Sequence[Durability]] = get_args(Durability)


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
        raise ConfigurationError.of("TIMERS_FORMAT", settings.format, f"a number from 1 to {READS}")
    connections = connect(url)
    try:
        with _naming(url):
            store = await open_store(connections, shards=settings.shards)
        store.identity.newest = settings.format or READS
        await _recall_shards(store, settings, joins=joins)
        with _naming(url):
            if joins:
                await store.identity.join()
    except BaseException:
        await connections.close()
        raise
    return store


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Raises ConfigurationError, which names the setting, for everything that fails there."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"TIMERS_REDIS_URL: {redacted(url)} cannot be used: {error}") from error


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
    from timers.ledger.facts import last_shards  # noqa: PLC0415 (what it needs is an extra)

    if not store.identity.epoch and (known := await ledger.do(last_shards, writes=False)) is not None:
        store.identity.expect(known)


def open_ledger(url: str | None) -> "Database | None":
    """The ledger's database, if there is a ledger. Connects at the first call."""
    if url is None:
        return None
    from timers.ledger.database import Database  # noqa: PLC0415 (what it needs is an extra)

    return Database(url)


async def ask_ledger(ledger: "Database | None") -> bool:
    """Have the ledger, if there is one, answer now, so that its `trouble` is that of now: a pod without a worker may
    not have asked it for long. True whatever it answers."""
    if ledger is not None:
        with suppress(LedgerUnavailable):
            await ledger.ping()
    return True


async def lacking(
    store: Store, levels: Sequence[Durability] = LEVELS, *, has_ledger: bool, root: str = ""
) -> Mapping[Durability, str]:
    """What the service lacks for those of the durabilities that it cannot give, to a shard's root or without one to all
    of them. Raises Unavailable."""
    lacks: dict[Durability, str] = {}
    for level in levels:
        if level in WAITS:
            with reachable(alone=True):
                lacks[level] = await store.connections.lacks(level, root)
        elif level == "ledger" and not has_ledger:
            lacks[level] = "this service has no ledger (TIMERS_LEDGER_URL)"
    return {level: why for level, why in lacks.items() if why}


async def refusal_of(store: Store, durability: Durability, *, has_ledger: bool, root: str = "") -> InvalidInput | None:
    """The error for a durability that the service cannot give, as in `lacking`. Raises Unavailable."""
    lacks: Mapping[Durability, str] = {}
    for levels in ((durability,), LEVELS):  # the others matter only if it cannot give this one
        lacks = await lacking(store, levels, has_ledger=has_ledger, root=root)
        if durability not in lacks:
            return None
    server = "" if durability == "ledger" else "this server: "
    return InvalidInput.of("durability", durability, f"{listed(lacks)}; {server}{lacks[durability]}")


async def check_setting(store: Store, durability: Durability | None) -> None:
    """Raises ConfigurationError if every write of a pod with this setting would miss it. Replicas may come later."""
    if durability == FSYNC and (error := await refusal_of(store, FSYNC, has_ledger=False)):
        raise ConfigurationError(str(error).replace("durability", SETTING, 1))


def listed(lacks: Mapping[Durability, str]) -> str:
    """The durabilities that the service can give, as a sentence has them."""
    *some, last = [level for level in LEVELS if level not in lacks]
    return f"{', '.join(some)} or {last}" if some else last
