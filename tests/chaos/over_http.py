"""The driver's calls over HTTP, to any pod that lives, with the answers and errors that the Python client gives."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import aiohttp

from tests.chaos.pods import Pod
from timers import NewTimer, TimersError
from timers.errors import AlreadyExists, NotFound, Refused, Unavailable

TIMEOUT_S: Final = 15.0


class Made(NamedTuple):
    """How a create over HTTP ended, as `Armed` says it."""

    how: str


class HttpClient:
    """Each call goes to a pod drawn by lot. An answer of 503 and none at all are Unavailable: nobody knows what was
    done. Each has a connection of its own, because aiohttp repeats a call if a kept one breaks."""

    def __init__(self, pods: Callable[[], Sequence[Pod]], rng: random.Random) -> None:
        self._pods, self._rng = pods, rng

    async def __aenter__(self) -> Self:
        timeout, alone = aiohttp.ClientTimeout(total=TIMEOUT_S), aiohttp.TCPConnector(force_close=True)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=alone)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def batch(self, news: Sequence[NewTimer]) -> list[Made | TimersError]:
        """Arm timers."""
        wanted = [new.model_dump(mode="json", exclude_unset=True) for new in news]
        answer = await self._call("POST", "/v1/timers/batch", {"timers": wanted})
        return [_made(result) for result in answer["results"]]

    async def cancel(self, prefix: str, timer_id: str) -> object:
        """Cancel a timer."""
        return await self._call("DELETE", f"/v1/timers/{prefix}/{timer_id}")

    async def reschedule(self, prefix: str, timer_id: str, *, due_at: int) -> object:
        """Move a timer."""
        return await self._call("PATCH", f"/v1/timers/{prefix}/{timer_id}", {"due_at": due_at})

    async def retry(self, prefix: str, timer_id: str) -> object:
        """Arm a timer again."""
        return await self._call("POST", f"/v1/timers/{prefix}/{timer_id}/retry")

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        pod = self._rng.choice(self._pods())
        try:
            async with self._http.request(method, f"{pod.address}{path}", json=body) as response:
                answer = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unavailable(f"{method} {path} at {pod.name}: {error!r}") from error
        if response.status >= 500:
            raise Unavailable(str(answer))
        if response.status >= 400:
            raise (NotFound if response.status == 404 else Refused)(str(answer.get("detail")))
        return answer


def _made(result: dict[str, Any]) -> Made | TimersError:
    status = result["status"]
    if status == 409:
        return AlreadyExists(result["problem"]["detail"])
    if status >= 400:
        return Refused(result["problem"]["detail"])
    return Made("created" if status in (201, 202) else "replaced")  # 202: by the ledger alone so far
