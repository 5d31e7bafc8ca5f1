"""Owns the answers to probes: whether the process lives, and whether it can do its work now."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from timers.api.answer import HTTP_PROBLEMS, answer, problem
from timers.api.auth import visible_to
from timers.api.operations import call
from timers.client.doctor import full, unacknowledged
from timers.client.fleet import ALL_SERVED, Unserved, read_fleet
from timers.engine.worker import Worker
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.cooperative import CachedRead
from timers.store.store import Store

ANSWER_SECONDS: Final = 0.6
"""How long Redis may take to answer for a probe. Probes themselves usually give up after a second."""

FRESH_SECONDS: Final = 1.0
"""How long an answer from Redis counts. One read a second serves all probes."""

_log = get_logger("timers.api")


class HealthRoutes:
    """`/healthz` and `/readyz` of one pod. `worker` is None if the pod does not have that role."""

    def __init__(
        self,
        store: Store,
        worker: Worker | None,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._store, self._worker, self._answer_seconds = store, worker, answer_seconds
        self._seen = CachedRead(self._refresh, fresh_seconds)
        self._draining = False

    def drain(self) -> None:
        """Answer "not ready" from now on, so that no new work is sent here."""
        self._draining = True

    @call("getHealth")
    async def healthz(self, _request: web.Request) -> web.Response:
        """Answers 200: a process that answers lives."""
        return answer({"status": "ok"})

    @call("getReadiness")
    async def readyz(self, request: web.Request) -> web.Response:
        """Answers 200 if Redis and every part work, else 503 with the reasons. Anonymous callers see no names."""
        trouble, is_full, unserved = await self._seen.get()
        visible = visible_to(request)
        state: dict[str, Any] = {"redis": trouble or ("full" if is_full else "ok")}
        problems, waits = [trouble] if trouble else [], list[str]()
        if self._worker is not None:
            health = self._worker.health()
            services, waits = health.services, [*health.warnings]
            # The reason for a restart may contain any name.
            bare = visible is not None
            problems += (": ".join(said.split(": ")[:2]) if bare else said for said in health.problems)
            state |= {
                "notifications": health.notifications,
                "services": {name: said.partition(":")[0] if bare else said for name, said in services.items()},
                "running": health.running,
                "queues_waiting": health.queues_waiting,
            }
        problems = list(dict.fromkeys([*problems, *(["draining"] if self._draining else [])]))
        warnings = [*is_full, *unacknowledged(self._store), *unserved.warnings(visible), *waits]
        state = {"ready": not problems, **state, "warnings": warnings, "problems": problems}
        if problems:
            return problem(HTTP_PROBLEMS[503], "; ".join(problems), **state)
        return answer(state)

    async def _refresh(self) -> tuple[str, Sequence[str], Unserved]:
        """Read from Redis what is wrong with it, a sentence if it is full, and what no pod takes. Whatever it answers,
        there is something to tell the probes."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                return "", await full(self._store), (await read_fleet(self._store)).unserved
        except TimeoutError:
            trouble = f"Redis does not answer within {self._answer_seconds:g} seconds"
        except Unavailable as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001 (a probe gets an answer, whatever lies in Redis)
            _log.error("data for the probes cannot be read", exc_info=error)
            trouble = f"the data in Redis cannot be read ({type(error).__name__}); this pod's log says more"
        return trouble, (), ALL_SERVED
