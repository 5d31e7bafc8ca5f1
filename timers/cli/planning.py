"""Owns `timers plan`: how much a load needs, by the figures that the benchmarks give."""

import re
from typing import Annotated, Any, Final

import typer

from timers.cli.shared import Output, show
from timers.core.capacity import (
    ARM_US,
    BUSY,
    BYTES,
    CONCURRENCY,
    CONNECTIONS,
    FIGURES,
    FORK_MS,
    HEARD_US,
    PAYLOAD_BYTES,
    POD_US,
    PODS_EACH,
    POOL,
    RESTART_S,
    ROOM,
    SERVER_GIB,
    SERVER_US,
    SHARDS_EACH,
    Load,
    Plan,
    plan,
)
from timers.core.durations import parse_ms
from timers.core.spec import PAYLOAD_LIMIT_BYTES
from timers.errors import InvalidInput

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
    reckons with measured figures, and says with which."""
    load = Load(round(_number("--timers", timers)), _number("--rate", rate), payload, parse_ms(run, "--run") / 1000)
    found = plan(load)
    if output != "table":
        show({**found.to_json(), "sources": _sources()}, output)
        return
    show(_rows(found), output)
    first, used = next(iter(found.uses.items()))
    typer.echo(f"\nWhat breaks first: {first}, which is at {used:.0%} of its limit. Then:")
    for name, share in list(found.uses.items())[1:]:
        typer.echo(f"  {share:>4.0%}  {name}")
    typer.echo(f"\nA server and a pod use {BUSY:.0%} of a core. Measure the figures where the service is to run:")
    for source in _sources():
        typer.echo(f"  {source}")


def _number(option: str, text: str) -> float:
    found = _NUMBER.fullmatch(text)
    number = float(found[1]) * _TIMES[found[2]] if found else -1
    if not 0 < number <= _MOST:
        raise InvalidInput.of(option, text, "a number above 0 and up to 1000B, such as 5000, 5k, 10M or 1B")
    return number


def _rows(found: Plan) -> list[dict[str, Any]]:
    each = f"{BYTES.value:g} B + {PAYLOAD_BYTES.value:g} B a byte of payload above 60"
    server = f"{ARM_US.value:g} + {SERVER_US.value:g} + {HEARD_US.value:g} for each pod above two"
    rows = (
        ("services", found.services, f"at most {PODS_EACH} pods for a service; callers choose one by a hash of the id"),
        ("primaries of each", found.primaries, f"rate x ({server}) µs; {SERVER_GIB:g} GiB a primary"),
        ("shards", found.shards, f"1, or 64 and at least {SHARDS_EACH} a primary"),
        ("data of each, GiB", found.data_gib, each),
        ("memory of each, GiB", found.memory_gib, f"of each primary: its data x {ROOM:g}"),
        (
            "pods of each",
            found.pods,
            f"rate x {POD_US.value:g} µs; {BUSY:.0%} of {CONCURRENCY} runs at once; at least 2",
        ),
        ("connections to each", found.connections, f"pods x ({CONNECTIONS.value:g} + up to {POOL} under load)"),
        ("fork of each, ms", found.fork_ms, f"{FORK_MS.value:g} ms a GiB"),
        ("restart of each, s", found.restart_s, f"{RESTART_S.value:g} s a million, on a core of its own"),
    )
    return [{"what": what, "number": number, "from": said} for what, number, said in rows]


def _sources() -> list[str]:

    return [f"{figure.value:g} {figure.unit} ({figure.source})" for figure in FIGURES]
