"""Owns the arithmetic and the tables: what several rounds become, and how ours compares within each of them."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.bench.peers.catalogue import MEASURES, OURS, Peer

Figure = float | str
"""A number, or why there is none."""
Round = Mapping[tuple[str, str], Mapping[str, Figure]]
"""(setting, name of the peer) → measure → figure."""

YARDSTICK: Final = "yardstick"
COLUMNS: Final[Mapping[str, tuple[str, int]]] = {
    "drain": ("burst, jobs/s", 0),
    "bulk": ("bulk arm, jobs/s", 0),
    "single": ("one by one, jobs/s", 0),
    "bytes": ("bytes a job", 0),
    "idle": ("idle, commands/s", 1),
    "p50": ("late p50 ms", 1),
    "p99": ("late p99 ms", 1),
    YARDSTICK: ("`SET PX`/s, pipelined", 0),
}
"""Measure → its heading and digits."""


def drained_per_s(count: int, left: int, seconds: float) -> float:
    """The rate of what was done of `count` jobs in these seconds after due."""
    return (count - left) / seconds


def combined(figures: Sequence[Figure], digits: int) -> str:
    """The median of the rounds, and their range if there is one; or why there is no figure in any of them."""
    numbers = [figure for figure in figures if not isinstance(figure, str)]
    if not numbers:
        return str(figures[0]) if figures else ""
    shown = [_number(number, digits) for number in (statistics.median(numbers), min(numbers), max(numbers))]
    return shown[0] if len(numbers) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def table(setting: str, peers: Sequence[Peer], rounds: Sequence[Round]) -> str:
    """One row a peer in Markdown, and below it why some figures are missing."""
    reasons: list[str] = []
    names = (*MEASURES[setting], YARDSTICK)
    rows = [["", *(COLUMNS[name][0] for name in names)]]
    for peer in peers:
        if peer.measures(setting):
            cells = [_cell(setting, peer, name, rounds, reasons) for name in names]
            rows.append([peer.name, *cells])
    return "\n".join([*_markdown(rows), "", *(f"- [{i}] {reason}" for i, reason in enumerate(reasons, 1))]).rstrip()


def ratios(setting: str, peers: Sequence[Peer], rounds: Sequence[Round]) -> str:
    """Ours divided by each peer's, within each round."""
    rows = [["ours ÷", *(COLUMNS[name][0] for name in MEASURES[setting])]]
    for peer in peers:
        if not peer.name.startswith(OURS):
            of_all = [[_ratio(one, setting, peer.name, name) for one in rounds] for name in MEASURES[setting]]
            rows.append([peer.name, *(combined(_numbers(some), 2) for some in of_all)])
    return "\n".join(_markdown(rows))


def _cell(setting: str, peer: Peer, name: str, rounds: Sequence[Round], reasons: list[str]) -> str:
    figures = [found[name] for one in rounds if name in (found := one.get((setting, peer.name), {}))]
    text = combined(figures, COLUMNS[name][1])
    if not figures or any(not isinstance(figure, str) for figure in figures):
        return text
    if text not in reasons:
        reasons.append(text)
    return f"– [{reasons.index(text) + 1}]"


def _ratio(one: Round, setting: str, name: str, measure: str) -> float | None:
    ours, theirs = (one.get((setting, who), {}).get(measure, "") for who in (OURS, name))
    if isinstance(ours, str) or isinstance(theirs, str) or not theirs:
        return None
    return ours / theirs


def _numbers(ratios_: Sequence[float | None]) -> list[Figure]:
    return [ratio for ratio in ratios_ if ratio is not None and math.isfinite(ratio)]


def _number(number: float, digits: int) -> str:
    return f"{number:,.{digits}f}" if math.isfinite(number) else "never"


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for i, row in enumerate(rows):
        yield f"| {' | '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))} |"
        if i == 0:
            yield f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|"
