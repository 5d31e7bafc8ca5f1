"""Owns which peers there are: what to install, how to see what is left to do, and what each cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

MEASURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "a": ("drain", "bulk", "single", "bytes", "idle", "p50", "p99"),
        "b": ("drain", "bulk", "single", "p50", "p99"),
    }
)
"""Setting → what is measured under it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One scheduler. `left` are Redis commands whose answers add up to the jobs that have not ended; they may have
    `strftime` fields, for the due time in UTC. `no_bulk` says why there is no bulk call for delayed jobs."""

    name: str
    packages: tuple[str, ...]
    left: tuple[str, ...]
    no_bulk: str = ""
    node: bool = False
    arms_first: bool = False
    """Its worker takes no notice of jobs that others arm while it runs, so it is started after they are."""
    adapter: str = ""
    workers: int = 1
    others: int = 0
    """So many further jobs lie armed while lateness is measured."""
    settings: Mapping[str, str] = field(default_factory=dict)
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Setting → what is measured of it; empty means everything."""

    @property
    def program(self) -> str:
        """The file name of its adapter."""
        return f"{self.adapter or self.name}.{'cjs' if self.node else 'py'}"

    def measures(self, setting: str) -> tuple[str, ...]:
        """What is measured of it under this setting."""
        return dict(self.only or MEASURES.items()).get(setting, ())


_OURS: Final = ("ZCARD timers:{0}:due:bench-noop", "ZCARD timers:{0}:leases")
OURS: Final = "ours"
_FAST: Final = ("hiredis==3.5.0", "uvloop==0.23.0")

_ALL: Final = (
    Peer(OURS, (), _OURS),
    Peer(
        "bullmq",
        ("bullmq@6.7.0", "ioredis@5.11.1"),
        ("ZCARD bull:bench:delayed", "LLEN bull:bench:wait", "LLEN bull:bench:active", "ZCARD bull:bench:prioritized"),
        node=True,
    ),
    Peer(
        "arq",
        ("arq==0.28.0", *_FAST),
        ("ZCARD arq:queue",),
        no_bulk="`enqueue_job` takes one job",
    ),
    Peer(
        "saq",
        ("saq[redis]==0.26.4", "typing-extensions==4.16.0", *_FAST),
        ("ZCARD saq:default:incomplete",),
        no_bulk="`enqueue` takes one job; `map` and `batch` wait for results",
    ),
    Peer(
        "celery",
        ("celery[redis]==5.7.0", "hiredis==3.5.0"),
        ("LLEN celery", "HLEN unacked"),
        no_bulk="a `group` sends its tasks one by one",
    ),
    Peer(
        "apscheduler",
        ("apscheduler==3.11.3", "redis==8.1.0", "hiredis==3.5.0"),
        ("ZCARD apscheduler.run_times",),
        no_bulk="`add_job` takes one job",
        arms_first=True,
    ),
    Peer(
        "dramatiq",
        ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        ("HLEN dramatiq:default.msgs", "HLEN dramatiq:default.DQ.msgs"),
        no_bulk="a `group` sends its messages one by one",
        # The default is 8,000; as many as are due at once.
        settings={"dramatiq_delay_queue_prefetch": "65535"},
    ),
    Peer(
        "huey",
        ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
        ("ZCARD huey.schedule.bench", "LLEN huey.redis.bench"),
        no_bulk="`schedule` takes one task; `map` knows no time",
    ),
    Peer(
        "rq",
        ("rq==2.12.0", "hiredis==3.5.0"),
        ("ZCARD rq:scheduled:bench", "LLEN rq:queue:bench", "ZCARD rq:wip:bench"),
    ),
    Peer(
        "taskiq",
        ("taskiq==0.13.0", "taskiq-redis==1.2.4", *_FAST),
        ("LLEN schedule:time:%Y-%m-%dT%H:%M", "LLEN taskiq"),
        no_bulk="`schedule_by_time` takes one task",
    ),
    Peer(
        "docket",
        ("pydocket==0.27.0", *_FAST),
        ("ZCARD bench:queue", "XLEN bench:stream"),
    ),
    Peer("ours, 4 pods", (), _OURS, adapter=OURS, workers=4, only=(("a", ("idle",)),)),
    Peer("ours, 16 shards", (), _OURS, adapter=OURS, settings={"PEER_SHARDS": "16"}, only=(("a", ("idle",)),)),
    Peer(
        "ours, 4 pods beside 1,000,000",
        (),
        _OURS,
        adapter=OURS,
        workers=4,
        others=1_000_000,
        only=(("b", ("p50", "p99")),),
    ),
)
PEERS: Final[Mapping[str, Peer]] = MappingProxyType({peer.name: peer for peer in _ALL})


def chosen(names: list[str]) -> list[Peer]:
    """The peers of these names, in the order of the table, and always ours. Raises ValueError for an unknown name."""
    if unknown := [name for name in names if name not in PEERS]:
        raise ValueError(f"{unknown[0]!r} is not a peer; there are: {', '.join(PEERS)}")
    return [peer for peer in _ALL if not names or peer.name in names or peer.name.startswith(OURS)]
