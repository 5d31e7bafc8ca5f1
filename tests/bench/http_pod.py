"""One API pod of a benchmark as a process of its own, and beside it in the same loop a bare handler to compare with.

Run as `python -m tests.bench.http_pod URL`. Prints the two addresses, then answers each line on its input with the CPU
seconds it has used; the end of the input ends it.
"""

import json
import os
import sys

import uvloop
from aiohttp import web

from tests.bench.pod import LEDGER, answer_with_cpu, noop
from timers.api.auth import Auth
from timers.api.health import HealthRoutes
from timers.api.server import all_routes, application, listening
from timers.app import collect_garbage_rarely
from timers.client import client_over, open_store
from timers.core.spec import NewTimer
from timers.logs import configure
from timers.metrics import Metrics
from timers.store.callers import Callers
from timers.store.membership import Member, Membership
from timers.store.servers import connect


async def bare(request: web.Request) -> web.Response:
    """What any service must do: read JSON, check it, answer JSON."""
    new = NewTimer.model_validate(json.loads(await request.read()))
    return web.json_response({"prefix": new.prefix, "id": new.id, "payload": new.payload}, status=201)


async def _serve(url: str) -> None:
    store = await open_store(connect(url))
    await Membership(store).beat(Member("bench", roles=("worker",), processors=frozenset({noop.prefix})))
    client = client_over(store, ledger=os.environ.get(LEDGER) or None)
    routes = all_routes(client, HealthRoutes(store, client, None, Metrics()))
    reference = web.Application()
    reference.add_routes([web.post("/v1/timers", bare)])
    service = application(routes, Auth(Callers(store)))
    async with listening(service, "127.0.0.1", 0) as ours, listening(reference, "127.0.0.1", 0) as bare_url:
        print(ours, bare_url, flush=True)
        await answer_with_cpu()
    await store.connections.close()


if __name__ == "__main__":
    configure("json", "warning")
    collect_garbage_rarely()
    uvloop.run(_serve(sys.argv[1]))
