"""Owns the calls for whoever keeps the service running: stats, prefixes, pods, pause, resume and forget, metrics."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from timers.api.answer import answer
from timers.api.body import read_query, refuse_body
from timers.api.operations import route
from timers.api.scope import require_visible, visible_to
from timers.client import TimerClient
from timers.client.coverage import Uncovered
from timers.core.model import Status
from timers.engine.worker import Worker
from timers.errors import Unavailable
from timers.metrics import CONTENT_TYPE, Metrics

COUNTS_SECONDS: Final = 2.0
"""How long a scrape waits for Redis; without it the pod's own metrics are answered alone."""


class OperatingRoutes:
    """The service seen as a whole. `worker` is None where this pod has not that role."""

    def __init__(self, client: TimerClient, metrics: Metrics, worker: Worker | None) -> None:
        self._client, self._metrics, self._worker = client, metrics, worker

    def routes(self) -> Sequence[web.RouteDef]:
        """What to add to an application."""
        return (
            route("getStats", self.stats),
            route("listPrefixes", self.prefixes),
            route("pausePrefix", self.pause),
            route("resumePrefix", self.resume),
            route("forgetPrefix", self.forget),
            route("listPods", self.pods),
            route("acknowledgeLosses", self.acknowledge_losses),
            route("getMetrics", self.metrics),
        )

    async def stats(self, request: web.Request) -> web.Response:
        """200 the state of the whole service; of timers only what the asker may see."""
        read_query(request)
        stats, visible = await self._client.stats(), visible_to(request)
        if visible is not None:
            stats = replace(stats, counts={prefix: n for prefix, n in stats.counts.items() if visible(prefix)})
        return answer(stats.to_json())

    async def prefixes(self, request: web.Request) -> web.Response:
        """200 the prefixes that the asker may see."""
        read_query(request)
        visible = visible_to(request)
        views = [view for view in await self._client.prefixes() if visible is None or visible(view.prefix)]
        return answer({"items": [view.to_json() for view in views]})

    async def pause(self, request: web.Request) -> web.Response:
        """200 the prefix, paused."""
        prefix = await _prefix(request)
        await self._client.pause(prefix)
        return answer({"prefix": prefix, "paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """200 the prefix, no longer paused."""
        prefix = await _prefix(request)
        await self._client.resume(prefix)
        return answer({"prefix": prefix, "paused": False})

    async def forget(self, request: web.Request) -> web.Response:
        """204 once the declaration is taken back."""
        await self._client.forget(await _prefix(request))
        return web.Response(status=204)

    async def pods(self, request: web.Request) -> web.Response:
        """200 the live pods."""
        read_query(request)
        return answer({"items": [pod.to_json() for pod in await self._client.pods()]})

    async def acknowledge_losses(self, request: web.Request) -> web.Response:
        """200 the losses that nobody is warned of any more."""
        read_query(request)
        await refuse_body(request)
        return answer({"items": [loss.to_json() for loss in await self._client.acknowledge_losses()]})

    async def metrics(self, request: web.Request) -> web.Response:
        """200 the exposition text."""
        read_query(request)
        health = None if self._worker is None else self._worker.health()
        counts, uncovered = await self._db()
        text = self._metrics.render(counts, uncovered, health, losses=len(self._client.losses))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def _db(self) -> tuple[Mapping[str, Mapping[Status, int]], Uncovered]:
        """The timers by prefix and status, and what no pod covers; neither while Redis is away, which is when a pod is
        looked at most."""
        try:
            async with asyncio.timeout(COUNTS_SECONDS):
                return await self._client.counts(), await self._client.uncovered()
        except (Unavailable, TimeoutError):
            return {}, Uncovered((), ())


async def _prefix(request: web.Request) -> str:
    read_query(request)
    await refuse_body(request)
    prefix = request.match_info["prefix"]
    require_visible(request, prefix)
    return prefix
