"""Owns the calls for operators: stats, prefixes, pods, pause, resume and forget, metrics."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiohttp import web

from timers.api.answer import answer, encoded, joined, of_bytes
from timers.api.auth import acting, require_visible, visible_to
from timers.api.body import parsed, read_query, refuse_body, refuse_query
from timers.api.operations import PrefixQuery, route
from timers.client import TimerClient, posted
from timers.client.fleet import by_name
from timers.core.answers import PodAnswer
from timers.core.fields import check_prefix
from timers.core.model import Status
from timers.engine.pod import UNDECLARED
from timers.engine.worker import Worker
from timers.errors import Unavailable
from timers.metrics import CONTENT_TYPE, Figures, Metrics
from timers.store.cooperative import cooperatively
from timers.store.filters import Visible
from timers.store.starts import quantiles_ms

COUNTS_SECONDS: Final = 0.7
"""How long a scrape waits for Redis. After that the pod answers with its own metrics alone, still within a second."""

_UNKNOWN_LATENESS: Final = quantiles_ms({})
"""Replaces a lateness that includes prefixes which the caller may not see."""


async def _stats(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the state of the whole service, but only with timers that the caller may see."""
    prefix, visible = read_query(request, PrefixQuery).prefix, visible_to(request)
    stats = await client.stats(prefix, visible=visible)
    counts, whole = stats.counts, dict[str, Any](replace(stats, counts={}).to_json())
    total: Counter[Status] = Counter()
    async for counted in cooperatively(counts.values()):
        total.update(counted)
    by_prefix = await joined(sorted(counts), lambda prefix: encoded(prefix) + b":" + encoded(by_name(counts[prefix])))
    del whole["by_prefix"]
    whole |= {"by_status": by_name(total), "pods": [_visible_member(pod, visible) for pod in whole["pods"]]}
    if visible is not None:
        whole["lateness_ms"] = _UNKNOWN_LATENESS
    return of_bytes(encoded(whole)[:-1] + b',"by_prefix":{' + by_prefix + b"}}")


async def _prefixes(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the prefixes that the caller may see."""
    prefix, visible = read_query(request, PrefixQuery).prefix, visible_to(request)
    views = [view for view in await client.prefixes(prefix) if visible is None or visible(view.prefix)]
    return of_bytes(b'{"items":[' + await joined(views, lambda view: encoded(view.to_json())) + b"]}")


async def _pause(pausing: bool, client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the prefix, paused or no longer paused."""
    prefix, caller = await _prefix(request), acting(client, request)
    await (caller.pause(prefix) if pausing else caller.resume(prefix))
    return answer({"prefix": prefix, "paused": pausing})


async def _forget(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 204 after taking back the declaration."""
    await acting(client, request).forget(await _prefix(request))
    return web.Response(status=204)


async def _pods(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the live pods, showing only the prefixes that the caller may see."""
    refuse_query(request)
    visible = visible_to(request)
    return answer({"items": [_visible_member(pod.to_json(), visible) for pod in await client.pods()]})


async def _acknowledge_losses(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with the losses that now cause no more warnings."""
    refuse_query(request)
    await refuse_body(request)
    return answer({"items": [loss.to_json() for loss in await client.acknowledge_losses()]})


async def _metrics(client: TimerClient, metrics: Metrics, worker: Worker | None, request: web.Request) -> web.Response:
    """Answers 200 with the exposition text."""
    refuse_query(request)
    health = None if worker is None else worker.health()
    losses, dropped = len(client.losses), client.events_dropped
    figures = await _db_figures(client)
    up = None if client.ledger is None else client.ledger.trouble is None
    text = metrics.render(figures, health, losses=losses, dropped=dropped, ledger_up=up)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def _db_figures(client: TimerClient) -> Figures | None:
    """The gauges of what Redis tells, by declared prefix. None while Redis is down or frozen, which is when people look
    at a pod most."""
    found = defaultdict[str, Counter[Status]](Counter)
    try:
        async with asyncio.timeout(COUNTS_SECONDS):
            fleet, counts = await client.fleet(), await client.counts(own=True)
            async for prefix, counted in cooperatively(counts.items()):
                found[await _label(client, prefix)].update(counted)
            posted_entries, posted_ms = await posted(client)
            failing_ms = dict[str, int]()
            for prefix, _, ms in await client.retrying():
                label = await _label(client, prefix)
                failing_ms[label] = max(ms, failing_ms.get(label, 0))
            unserved = Counter([await _label(client, prefix) for prefix in fleet.unserved.prefixes])
    except (Unavailable, TimeoutError):
        return None
    numbers = [(prefix, status, n) for prefix, counted in found.items() for status, n in counted.items()]
    return {
        # Among the scheduled ones, so that a sum counts each timer once.
        "timers_retrying": {(prefix,): n for prefix, status, n in numbers if status is Status.RETRYING},
        "timers_timers": {(prefix, status.value): n for prefix, status, n in numbers if status is not Status.RETRYING},
        "timers_retrying_seconds": {(prefix,): ms / 1000 for prefix, ms in failing_ms.items()},
        "timers_uncovered_shards": {(str(shard),): 1 for shard in fleet.unserved.shards},
        "timers_uncovered_prefixes": {(prefix,): n for prefix, n in unserved.items()},
        "timers_overdue_seconds": {(): fleet.overdue_ms("ready") / 1000},
        "timers_outbox_entries": {(): posted_entries},
        "timers_outbox_seconds": {(): posted_ms / 1000},
    }


async def _label(client: TimerClient, prefix: str) -> str:
    return await client.owner(prefix) or UNDECLARED


def _visible_member(pod: PodAnswer, visible: Visible | None) -> PodAnswer:
    """A pod as shown to a caller that may see only some prefixes: with only these, and without figures over all
    prefixes."""
    if visible is None:
        return pod
    serves, only = ([prefix for prefix in some if visible(prefix)] for some in (pod["serves"], pod["only"]))
    return {**pod, "serves": serves, "only": only, "lateness_ms": _UNKNOWN_LATENESS}


async def _prefix(request: web.Request) -> str:
    await refuse_body(request)
    prefix = parsed(request, check_prefix, request.match_info["prefix"])
    require_visible(request, prefix)
    return prefix


_CALLS: Final[Mapping[str, Callable[[TimerClient, web.Request], Awaitable[web.Response]]]] = {
    "getStats": _stats,
    "listPrefixes": _prefixes,
    "pausePrefix": partial(_pause, True),
    "resumePrefix": partial(_pause, False),
    "forgetPrefix": _forget,
    "listPods": _pods,
    "acknowledgeLosses": _acknowledge_losses,
}


def operating_routes(client: TimerClient) -> Sequence[web.RouteDef]:
    """The routes to add to an application: the calls on the service as a whole."""
    return [route(name, partial(call, client)) for name, call in _CALLS.items()]


def metrics_route(client: TimerClient, metrics: Metrics, worker: Worker | None) -> web.RouteDef:
    """The route to add to an application. `worker` is None if this pod does not have that role."""
    return route("getMetrics", partial(_metrics, client, metrics, worker))
