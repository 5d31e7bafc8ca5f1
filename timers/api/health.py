"""Owns what probes ask: whether the process lives, and whether it can do its work now."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from timers.api.answer import answer
from timers.api.operations import route
from timers.api.problems import HTTP_KINDS, problem
from timers.client.coverage import read_uncovered
from timers.client.doctor import full, unacknowledged
from timers.engine.worker import Worker
from timers.errors import Unavailable
from timers.store.store import Store

ANSWER_SECONDS: Final = 0.9
"""How long Redis may take to answer a probe: probes themselves usually give up after a second."""


class HealthRoutes:
    """`/healthz` and `/readyz` of one pod; `worker` is None where the pod has not that role."""

    def __init__(self, store: Store, worker: Worker | None) -> None:
        self._store, self._worker = store, worker
        self._draining = False

    def routes(self) -> Sequence[web.RouteDef]:
        """What to add to an application."""
        return (route("getHealth", self.healthz), route("getReadiness", self.readyz))

    def drain(self) -> None:
        """Say "not ready" from now on, so that no new work is sent here."""
        self._draining = True

    async def healthz(self, _request: web.Request) -> web.Response:
        """Whoever answers lives."""
        return answer({"status": "ok"})

    async def readyz(self, _request: web.Request) -> web.Response:
        """200 where Redis answers and every part works; else 503 with the reasons."""
        redis, is_full, warnings = await self._redis()
        state: dict[str, Any] = {
            "redis": redis or ("full" if is_full else "ok"),
            **self._worker_state(),
            "warnings": [*is_full, *warnings],
        }
        problems = [*([redis] if redis else []), *state.pop("problems", []), *(["draining"] if self._draining else [])]
        state = {"ready": not problems, **state, "problems": list(dict.fromkeys(problems))}
        if problems:
            return problem(HTTP_KINDS[503], "; ".join(state["problems"]), **state)
        return answer(state)

    async def _redis(self) -> tuple[str | None, Sequence[str], Sequence[str]]:
        """What is wrong with Redis, if anything, whether it is full, and what was lost or is covered by no live pod."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                full_up = await full(self._store)
                return None, full_up, [*unacknowledged(self._store), *(await read_uncovered(self._store)).warnings()]
        except TimeoutError:
            return f"Redis does not answer within {ANSWER_SECONDS:g} seconds", (), ()
        except Unavailable as error:
            return str(error), (), ()

    def _worker_state(self) -> dict[str, Any]:
        if self._worker is None:
            return {}
        health = self._worker.health()
        return {
            "notifications": health.notifications,
            "services": dict(health.services),
            "running": health.running,
            "problems": list(health.problems),
        }
