"""`python -m tests.bench.peers [NAME …]`: install the peers, measure them in turns, print the tables and keep them."""

import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from tests.bench.peers.catalogue import PEERS, Peer, chosen
from tests.bench.peers.environments import CannotInstall, install
from tests.bench.peers.figures import Figure, Round, ratios, table
from tests.bench.peers.measures import SETTINGS, Setting, Sizes, figures_of
from tests.bench.report import surroundings
from tests.servers import binary_for
from timers.embedded import inspect_binary

RESULTS: Final = Path(__file__).parents[1] / "RESULTS.md"


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(PEERS)}; default: all; ours always")] = None,
    *,
    rounds: Annotated[int, typer.Option(min=1, help="the tables show medians and ranges")] = 3,
    settings: Annotated[str, typer.Option(help=", ".join(f"{one.name}: {one.title}" for one in SETTINGS))] = "ab",
    keep: Annotated[Path | None, typer.Option(help="where to; default: RESULTS.md if all are measured")] = None,
    burst: Annotated[int, typer.Option(min=1000, help="jobs due at one moment, and armed in bulk")] = 20_000,
) -> None:
    """Measure other schedulers and ours, each round all of them one after the other."""
    try:
        peers = chosen(names or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    target = keep or (None if names else RESULTS)
    under = [setting for setting in SETTINGS if setting.name in settings]
    uvloop.run(_measure(peers, under, rounds, Sizes(burst), target))


async def _measure(
    peers: Sequence[Peer], settings: Sequence[Setting], number: int, sizes: Sizes, target: Path | None
) -> None:
    reasons = {peer.name: await _installed(peer) for peer in peers}
    conditions = _conditions(number)
    rounds: list[dict[tuple[str, str], dict[str, Figure]]] = []
    for _ in range(number):
        rounds.append({})
        async for place, figures in _round(peers, settings, sizes, reasons):
            rounds[-1][place] = figures
            if target:
                target.write_text(_text(peers, settings, rounds, conditions))
    print(_text(peers, settings, rounds, conditions))


async def _round(
    peers: Sequence[Peer], settings: Sequence[Setting], sizes: Sizes, reasons: Mapping[str, str]
) -> AsyncIterator[tuple[tuple[str, str], dict[str, Figure]]]:
    for setting in settings:
        for peer in peers:
            if wanted := peer.measures(setting.name):
                if reason := reasons[peer.name]:
                    figures: dict[str, Figure] = dict.fromkeys(wanted, reason)
                else:
                    figures = await figures_of(peer, setting, sizes)
                print(f"({setting.name}) {peer.name}: {figures}", file=sys.stderr, flush=True)
                yield (setting.name, peer.name), figures


async def _installed(peer: Peer) -> str:
    """Why it is not there, or nothing."""
    print(f"installing {peer.name}", file=sys.stderr, flush=True)
    try:
        await install(peer)
    except CannotInstall as error:
        return f"not installed: {error}"
    return ""


def _conditions(rounds: int) -> dict[str, str]:
    told = surroundings()
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {rounds} × each; of several, medians and ranges",
        "command": shlex.join(["python", "-m", "tests.bench.peers", *sys.argv[1:]]),
        "machine": f"{told['machine']}, {told['cores']} cores",
        "server": f"Redis {inspect_binary(binary_for('redis')).version}, one for each measurement",
        "python": f"{told['python']}, {', '.join(f'{name} {version}' for name, version in told['packages'].items())}",
        "load at the begin": _load(),
    }


def _text(
    peers: Sequence[Peer], settings: Sequence[Setting], rounds: Sequence[Round], conditions: dict[str, str]
) -> str:
    """The whole document."""
    lines = ["# Beside other schedulers", "", "[peers](peers/README.md) says what is measured, and how.", ""]
    lines += [f"- {name}: {said}" for name, said in {**conditions, "load at the end": _load()}.items()]
    for setting in settings:
        lines += ["", f"## ({setting.name}) {setting.title}", "", table(setting.name, peers, rounds)]
        lines += ["", "Ours divided by each peer's in the same round:", "", ratios(setting.name, peers, rounds)]
    lines += ["", "## What was measured", "", "An adapter says which pages its peer was tuned by.", ""]
    lines += [
        f"- **{peer.name}**: {', '.join(peer.packages)} ([adapter](peers/adapters/{peer.program}))"
        for peer in peers
        if peer.packages
    ]
    return "\n".join(lines) + "\n"


def _load() -> str:
    return ", ".join(map(str, surroundings()["load"]))


if __name__ == "__main__":
    typer.run(main)
