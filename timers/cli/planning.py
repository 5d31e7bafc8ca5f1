"""Owns `timers plan`: how much a load needs (servers, memory, pods and connections, how long a restart takes), and what
breaks first.

The figures are those of one core, measured with the commands that stand beside them (tests/bench/README.md has the
conditions). Time per timer hardly depends on the machine's load, rates do; so the formulas use time per timer.
"""

import math
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple

import typer

from timers.cli.shared import Output, show, table
from timers.core.durations import parse_ms
from timers.core.spec import PAYLOAD_LIMIT_BYTES
from timers.errors import InvalidInput

GIB: Final = 2**30


class Figure(NamedTuple):
    """A measured figure, its unit, and the benchmark with its options and the column that give it."""

    value: float
    unit: str
    benchmark: str
    column: str

    @property
    def source(self) -> str:
        return f"python -m tests.bench {self.benchmark}: {self.column}"


BYTES: Final = Figure(464, "bytes a timer with a payload of 60", "capacity", "bytes/timer")
PAYLOAD_BYTES: Final = Figure(1.13, "bytes a byte of payload", "capacity", "bytes/byte of payload")
ARM_US: Final = Figure(17, "µs of a server's core to arm one", "capacity", "arm alone µs")
FORK_MS: Final = Figure(165, "ms a GiB", "capacity", "fork ms/GiB")
RESTART_S: Final = Figure(8.6, "s a million", "capacity", "restart s/million")
_AT_RATE: Final = "scale --per-s 3000 --pods 2,4"
"""At a rate at which claims come in batches; at lower ones a timer costs more, and no limit is near."""

SERVER_US: Final = Figure(132, "µs of a server's core to run one, with two pods", _AT_RATE, "server µs/timer")
HEARD_US: Final = Figure(22, "µs more for each further pod", _AT_RATE, "server µs/timer")
POD_US: Final = Figure(341, "µs of a pod's core to run one, with four pods", _AT_RATE, "pods µs/timer")
CONNECTIONS: Final = Figure(8, "connections a pod, to each server", _AT_RATE, "connections/pod")

FIGURES: Final = (BYTES, PAYLOAD_BYTES, ARM_US, FORK_MS, RESTART_S, SERVER_US, HEARD_US, POD_US, CONNECTIONS)

BUSY: Final = 0.5
"""The share of a core that a server or a pod is planned to use. The rest is for bursts, retries, lists, snapshots."""

SERVER_GIB: Final = 16.0
"""The most data on one server: beyond it a fork stops the server for seconds."""

ROOM: Final = 1.5
"""Times the data that a server needs: what changes while it saves is there twice."""

POOL: Final = 32
"""Connections that a pod opens at most for commands, to each server; under load it does."""

CONCURRENCY: Final = 1000
"""Runs at once on a pod (TIMERS_CONCURRENCY)."""

FORK_LIMIT_MS: Final = 3000.0
"""A third of a lease: pods extend leases three times in their length."""

RESTART_LIMIT_S: Final = 900.0
CONNECTIONS_LIMIT: Final = 10_000
"""`maxclients` of a server that sets none."""

LEAST_PODS: Final = 2
"""So that one may fail."""

PODS_EACH: Final = 8
"""The most pods of a service. Each hears all events of its servers, so a larger load is split into services with
servers and pods of their own, and callers choose one by a hash of the id."""

SHARDS_EACH: Final = 16
"""At least so many shards for each of several servers, so that they are loaded alike."""

CLUSTER_SHARDS: Final = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load needs: `services`, each with so many primaries, shards, data and pods. Memory, connections, forks and
    restarts are those of each primary. `uses` says how much of each limit is used, 1 being all of it, the nearest
    first."""

    services: int
    primaries: int
    shards: int
    data_gib: float
    memory_gib: float
    pods: int
    connections: int
    fork_ms: int
    restart_s: int
    uses: dict[str, float]


def plan(timers: int, rate: float, payload: int = 60, run_s: float = 0.05) -> Plan:
    """How much is needed for timers that are armed at once, timers that are armed and run each second, bytes of a
    payload as JSON, and the seconds of a run. All but the number of services is of each of them."""
    pod_share = max(POD_US.value / 1e6, run_s / CONCURRENCY)  # of a pod, for each timer a second
    services = max(1, math.ceil(rate * pod_share / BUSY / PODS_EACH))
    timers, rate = math.ceil(timers / services), rate / services
    pods = max(LEAST_PODS, math.ceil(rate * pod_share / BUSY))
    server_us = ARM_US.value + SERVER_US.value + HEARD_US.value * (pods - LEAST_PODS)
    server_cores = rate * server_us / 1e6
    data_gib = timers * (BYTES.value + PAYLOAD_BYTES.value * (payload - 60)) / GIB
    primaries = max(1, math.ceil(server_cores / BUSY), math.ceil(data_gib / SERVER_GIB))
    share, connections = data_gib / primaries, math.ceil(pods * (CONNECTIONS.value + POOL))
    fork_ms, restart_s = share * FORK_MS.value, timers / primaries / 1e6 * RESTART_S.value
    uses = {
        "the core of a server": server_cores / primaries,
        "the cores of the pods": rate * POD_US.value / 1e6 / pods,
        "the pods' concurrency": rate * run_s / (pods * CONCURRENCY),
        "the memory of a server": share / SERVER_GIB,
        "the pause of a fork": fork_ms / FORK_LIMIT_MS,
        "the time of a restart": restart_s / RESTART_LIMIT_S,
        "the connections to a server": connections / CONNECTIONS_LIMIT,
    }
    return Plan(
        services=services,
        primaries=primaries,
        shards=1 if primaries == 1 else max(CLUSTER_SHARDS, 2 ** math.ceil(math.log2(SHARDS_EACH * primaries))),
        data_gib=round(data_gib, 2),
        memory_gib=round(share * ROOM, 2),
        pods=pods,
        connections=connections,
        fork_ms=round(fork_ms),
        restart_s=round(restart_s),
        uses={name: round(used, 2) for name, used in sorted(uses.items(), key=lambda use: -use[1])},
    )


_NUMBER: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kKMGB]?)")
_TIMES: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_MOST: Final = 10**12

app = typer.Typer()


@app.command("plan")
def show_plan(
    timers: Annotated[str, typer.Option("--timers", metavar="N", help="Timers that are armed at once: 10M, 1B.")],
    rate: Annotated[str, typer.Option("--rate", metavar="N", help="Timers that are armed and run each second: 5k.")],
    payload: Annotated[
        int, typer.Option("--payload", metavar="BYTES", min=0, max=PAYLOAD_LIMIT_BYTES, help="Of each, as JSON.")
    ] = 60,
    run: Annotated[str, typer.Option("--run", metavar="DURATION", help="How long a run takes.")] = "50ms",
    output: Output = "table",
) -> None:
    """Say how much a load needs: servers, memory, pods, connections; and what breaks first. It asks no Redis, but
    calculates from measured figures, and lists them."""
    run_s = parse_ms(run, "--run") / 1000
    found = plan(round(_number("--timers", timers)), _number("--rate", rate), payload, run_s)
    (first, used), *others = found.uses.items()
    lines = [
        *table(_rows(found)),
        f"\nWhat breaks first: {first}, which is at {used:.0%} of its limit. Then:",
        *(f"  {share:>4.0%}  {name}" for name, share in others),
        f"\nA server and a pod use {BUSY:.0%} of a core. Measure the figures where the service is to run:",
        *(f"  {source}" for source in _sources()),
    ]
    show({**asdict(found), "sources": _sources()}, output, lines)


def _number(option: str, text: str) -> float:
    found = _NUMBER.fullmatch(text)
    number = float(found[1]) * _TIMES[found[2]] if found else -1
    if not 0 < number <= _MOST:
        raise InvalidInput.of(option, text, "a number above 0 and up to 1000B, such as 5000, 5k, 10M or 1B")
    return number


def _rows(found: Plan) -> list[dict[str, Any]]:
    each = f"{BYTES.value:g} B + {PAYLOAD_BYTES.value:g} B a byte of payload above 60"
    server = f"{ARM_US.value:g} + {SERVER_US.value:g} + {HEARD_US.value:g} for each pod above two"
    pods = f"rate x {POD_US.value:g} µs; {BUSY:.0%} of {CONCURRENCY} runs at once; at least 2"
    rows = (
        ("services", found.services, f"at most {PODS_EACH} pods for a service; callers choose one by a hash of the id"),
        ("primaries of each", found.primaries, f"rate x ({server}) µs; {SERVER_GIB:g} GiB a primary"),
        ("shards", found.shards, f"1, or 64 and at least {SHARDS_EACH} a primary"),
        ("data of each, GiB", found.data_gib, each),
        ("memory of each, GiB", found.memory_gib, f"of each primary: its data x {ROOM:g}"),
        ("pods of each", found.pods, pods),
        ("connections to each", found.connections, f"pods x ({CONNECTIONS.value:g} + up to {POOL} under load)"),
        ("fork of each, ms", found.fork_ms, f"{FORK_MS.value:g} ms a GiB"),
        ("restart of each, s", found.restart_s, f"{RESTART_S.value:g} s a million, on a core of its own"),
    )
    return [{"what": what, "number": number, "from": said} for what, number, said in rows]


def _sources() -> list[str]:
    return [f"{figure.value:g} {figure.unit} ({figure.source})" for figure in FIGURES]
