"""Services with parts in a task group: they restart after a failure like any other, and stop when told to."""

import asyncio

from tests.engine.fleet import until
from timers.engine.supervisor import Supervisor
from timers.errors import Unavailable


class Grouped:
    """A service of two parts in a task group, one of which fails at once."""

    def __init__(self) -> None:
        self.starts = 0

    async def run(self) -> None:
        self.starts += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fail())
            group.create_task(asyncio.Event().wait())

    async def _fail(self) -> None:
        raise Unavailable("away")


async def test_claims_stop_for_good_after_one_that_failed() -> None:
    service = Grouped()
    watched = Supervisor({"grouped": service.run})
    watched.start()
    await until(lambda: service.starts > 3, "it is started again and again")
    await watched.stop()
    assert watched.states == {"grouped": "stopped"}
