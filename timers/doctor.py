"""Owns the question whether a service is healthy: the server's checks, and whether pods cover what there is to do."""

from collections.abc import Sequence

from timers.fleet import live_workers, serves
from timers.model import Status
from timers.store.checkup import Check, check_server
from timers.store.queries import Queries
from timers.store.store import PodSign, Store

NAMES_SHOWN = 10


async def examine(store: Store, *, fix: bool = False) -> list[Check]:
    """Every check in order. `fix` turns missing notification flags on. Raises Unavailable."""
    workers = await live_workers(store)

    def served(prefix: str) -> bool:
        return any(serves(worker.info, prefix) for worker in workers)

    counts = await Queries(store).counts()
    waiting = [prefix for prefix, statuses in counts.items() if statuses.get(Status.SCHEDULED)]
    unserved = sorted(prefix for prefix in waiting if not served(prefix))
    found = await check_server(store, fix=fix, served=served)
    return [*found, _shards(workers, store.shards), _prefixes(unserved, workers)]


def _shards(workers: Sequence[PodSign], shards: int) -> Check:
    if not workers:
        return Check("shards", "warn", "no worker is alive: nothing runs")
    taken = [range(shards) if (own := w.info.get("shards")) is None else own for w in workers]
    uncovered = sorted(set(range(shards)).difference(*taken))
    if uncovered:
        return Check("shards", "fail", f"no live pod takes the shards {_few(list(map(str, uncovered)))}")
    return Check("shards", "ok", f"{len(workers)} live workers cover all {shards}")


def _prefixes(unserved: Sequence[str], workers: Sequence[PodSign]) -> Check:
    if not unserved:
        return Check("prefixes", "ok", "every waiting timer has a pod that serves its prefix")
    said = f"timers wait that no live pod serves, of the prefixes {_few(unserved)}"
    return Check("prefixes", "fail" if workers else "warn", said)


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + rest
