"""Peers alone: which pod an event belongs to, and who touches which shard, while pods come and go."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Fleet
from timers.engine import peers
from timers.engine.peers import ALL_BEATS, SOON_SECONDS, Peers
from timers.store.identity import DbIdentity
from timers.store.membership import INTRODUCE_BEATS, Declaration, Member, Membership, Roster
from timers.store.notifications import Part
from timers.store.servers import connect
from timers.store.store import Store

IDS = [f"user-{number}" for number in range(4_000)]


class _Identity(DbIdentity):
    """Remembers what it is asked to mark, to look at and to count."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.connections, store.clock, store.shards)
        self.asked: list[tuple[list[int], list[int], list[int]]] = []

    async def check(self, mine: Sequence[int], others: Sequence[int] = ()) -> None:
        self.asked.append((list(mine), list(others), []))

    async def count(self, shards: Collection[int]) -> None:
        self.asked[-1][2].extend(shards)


class _Registry(Membership):
    """A registry that returns what the test says; each sign of life is new."""

    def __init__(self, *members: Member, shards: int = 1) -> None:
        super().__init__(Store(connect("redis://nowhere.invalid"), shards=shards))
        self.identity = self.store.identity = _Identity(self.store)
        self.members = members
        self.declared_before: list[str] = []
        self._beats = 0

    async def beat(self, me: Member) -> Roster:
        self._beats += 1
        declared = {prefix for member in self.members for prefix in member.processors}
        names = dict.fromkeys([*declared, *self.declared_before], Declaration(0, ""))
        return Roster(str(self._beats).encode(), self.members, names)


def sign(pod: str, *processors: str, **said: Any) -> Member:
    return Member(pod, **{"roles": ("worker",), "processors": frozenset(processors or ("note",)), **said})


def peers_of(registry: _Registry, me: Member) -> Peers:
    return Peers(registry, me)


async def fleet_of(*signs: Member, declared: Sequence[str] = ()) -> dict[str, Peers]:
    """Each pod's view of the whole fleet."""
    registry = _Registry(*signs)
    registry.declared_before = list(declared)
    views = {each.pod: peers_of(registry, each) for each in signs}
    for view in views.values():
        await view.beat()
    return views


async def named(names: Sequence[str]) -> dict[str, Peers]:
    return await fleet_of(*[sign(name) for name in names])


def owners(views: Mapping[str, Peers], prefix: str = "note", shard: int = 0) -> dict[str, str]:
    """Each id's pod. Fails if an id belongs to none or to several."""
    owner = {}
    for timer_id in IDS:
        (owner[timer_id],) = [name for name, view in views.items() if view.is_mine(shard, prefix, timer_id)]
    return owner


NAMES = {
    "numbered": [f"pod-{number}" for number in range(8)],
    "of a deployment": [f"timers-7d9c{number:04x}b-x{number}k2p" for number in range(8)],
    "letters": list("abcdefgh"),
    "hosts": [f"worker{number}.eu-west-1.example.org:{4711 + number}" for number in range(8)],
}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("kind", NAMES)
async def test_every_event_belongs_to_one_pod_and_the_shares_are_even(kind: str, size: int) -> None:
    shares = Counter(owners(await named(NAMES[kind][:size])).values())
    assert len(shares) == size
    even = len(IDS) / size
    assert all(abs(share - even) < 0.15 * even for share in shares.values()), shares


@pytest.mark.parametrize("kind", NAMES)
async def test_when_a_pod_leaves_only_its_own_events_move(kind: str) -> None:
    names = NAMES[kind]
    before = owners(await named(names))
    after = owners(await named(names[1:]))
    assert {i for i in IDS if before[i] != after[i]} == {i for i in IDS if before[i] == names[0]}
    heirs = Counter(after[i] for i in IDS if before[i] == names[0])
    assert len(heirs) == len(names) - 1


@pytest.mark.parametrize("kind", NAMES)
async def test_every_shard_has_each_rank_once_and_the_touching_is_shared_out(kind: str) -> None:
    views = await named(NAMES[kind])
    first = Counter[str]()
    for shard in range(64):
        ranks = {name: view.rank(shard) for name, view in views.items()}
        assert sorted(ranks.values()) == list(range(len(views)))
        first.update(name for name, rank in ranks.items() if rank == 0)
    assert max(first.values()) <= 64 // 2


async def test_a_pod_alone_has_every_event() -> None:
    alone = (await named(["a"]))["a"]
    assert all(alone.is_mine(0, "note", timer_id) for timer_id in IDS)
    assert alone.rank(0) == 0
    assert not alone.serve(0, "note")


async def test_before_its_first_beat_a_pod_has_every_event() -> None:
    unborn = peers_of(_Registry(), sign("a"))
    assert unborn.is_mine(0, "note", "x")
    assert unborn.rank(0) == 0


async def test_a_pod_that_is_no_worker_has_no_share() -> None:
    views = await fleet_of(sign("a"), sign("api", roles=("api",)))
    assert all(views["a"].is_mine(0, "note", timer_id) for timer_id in IDS)
    assert views["a"].rank(0) == 0


async def test_a_pod_has_a_share_only_of_the_prefixes_it_serves() -> None:
    views = await fleet_of(sign("a", "note", "mail"), sign("b", "note"))
    assert all(views["a"].is_mine(0, "mail", timer_id) for timer_id in IDS)
    assert len(set(owners(views).values())) == 2
    assert not views["a"].serve(0, "mail")
    assert views["a"].serve(0, "note.of.any.kind")


async def test_a_pod_limited_to_some_prefixes_has_a_share_only_of_those() -> None:
    views = await fleet_of(sign("a", "n"), sign("b", "n", only=("n-ote", "n-ews")))
    assert len(set(owners(views, "n-ote").values())) == 2
    assert all(views["a"].is_mine(0, "n-umber", timer_id) for timer_id in IDS)
    assert views["a"].serve(0, "n-ews.letter")
    assert not views["a"].serve(0, "n-ewsletter")


async def test_a_pod_limited_to_some_shards_has_a_share_only_of_those() -> None:
    views = await fleet_of(sign("a"), sign("b", shards=(1,)))
    assert all(views["a"].is_mine(0, "note", timer_id) for timer_id in IDS)
    assert len(set(owners(views, shard=1).values())) == 2
    assert (views["a"].rank(0), {views["a"].rank(1), views["b"].rank(1)}) == (0, {0, 1})


async def test_results_cached_for_old_peers_are_forgotten_with_the_next_beat() -> None:
    registry = _Registry(sign("a"), sign("b"))
    view = peers_of(registry, sign("a"))
    await view.beat()
    shared = [timer_id for timer_id in IDS if view.is_mine(0, "note", timer_id)]
    registry.members = (sign("a"),)
    await view.beat()
    assert len(shared) < len(IDS)
    assert all(view.is_mine(0, "note", timer_id) for timer_id in IDS)


async def test_a_pod_whose_sign_says_nothing_is_no_rival() -> None:
    """Its entry is foreign, or of a version that writes other fields."""
    views = await fleet_of(sign("a"), Member("odd"))
    assert views["a"].is_mine(0, "note", "x")
    assert views["a"].rank(0) == 0


async def test_the_longest_declared_prefix_owns_over_the_fleet() -> None:
    views = await fleet_of(sign("a", "log"), sign("b", "log", "log-check"), declared=["log-gone"])
    owners = {p: views["a"].owner(p) for p in ("log", "log-x", "log-check.x", "log-checker", "log-gone-x", "login")}
    assert owners == {
        "log": "log",
        "log-x": "log",
        "log-check.x": "log-check",
        "log-checker": "log",
        "log-gone-x": "log-gone",
        "login": None,
    }
    assert not views["b"].serve(0, "log-check")
    assert views["a"].serve(0, "log-check.x")
    assert not views["a"].serve(0, "log-gone")


@pytest.mark.parametrize(
    ("elapsed_s", "told", "pause_s"),
    [
        (1.0, Peers.hear_news, 0),
        (0.05, Peers.hear_news, SOON_SECONDS - 0.05),
        (1.0, Peers.beat_soon, SOON_SECONDS),
    ],
    ids=["news", "news in quick succession", "a cut"],
)
async def test_a_pod_comes_for_news_at_once_and_after_a_cut_lets_timers_go_first(
    monkeypatch: pytest.MonkeyPatch, elapsed_s: float, told: Callable[[Peers], None], pause_s: float
) -> None:
    pauses, now_s = asyncio.Queue[float](), [0.0]
    view = peers_of(_Registry(sign("a")), sign("a"))
    monkeypatch.setattr(peers, "asyncio", SimpleNamespace(sleep=pauses.put))
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    beaten = asyncio.Event()

    async def check_identity(_: object) -> None:
        beaten.set()

    monkeypatch.setattr(view, "check_identity", check_identity)
    beating = asyncio.create_task(view.run())
    await beaten.wait()
    now_s[0] += elapsed_s
    told(view)
    assert await pauses.get() == pytest.approx(pause_s)
    beating.cancel()


async def test_a_pod_watches_one_shard_of_each_server_at_every_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server may go back in time while the others do not."""
    registry = _Registry(shards=40)
    peers, identity = peers_of(registry, sign("a", shards=(7, 9, 30))), registry.identity
    of_servers = [frozenset(range(10)), frozenset(range(10, 20)), frozenset(range(20, 40)), frozenset[int]()]
    servers = [Part(registry.store.connections, shards, (), ()) for shards in of_servers]
    monkeypatch.setattr("timers.engine.peers.parts", lambda _connections, _shards: servers)
    for _ in range(1 + ALL_BEATS):
        await peers.check_identity(())
    assert all({7, 30} <= set(marked) and 10 in looked for marked, looked, _ in identity.asked)
    # A db of one shard that was lost a minute after its timers were armed had had none, by what was said of it. Of what
    # several pods say, the most counts.
    assert all({7, 30} <= set(counted) for _, _, counted in identity.asked)


@pytest.mark.parametrize(("mine", "always"), [([1, 3, 30], 1), ([], 0)])
async def test_a_pod_watches_all_shards_at_first_and_then_a_few_at_each_sign_of_life(
    mine: list[int], always: int
) -> None:
    others = [shard for shard in range(40) if shard not in mine]
    registry = _Registry(shards=40)
    peers, identity = peers_of(registry, sign("a", shards=tuple(mine))), registry.identity
    for _ in range(1 + ALL_BEATS):
        await peers.check_identity(())
    assert identity.asked[0] == (mine, others, list(range(40)))
    later = identity.asked[1:]
    assert all(always in (*marked, *looked) and len(marked) + len(looked) <= 3 for marked, looked, _ in later)
    assert {shard for marked, _, _ in later for shard in marked} == set(mine)
    assert {shard for _, looked, _ in later for shard in looked} == set(others)
    assert {shard for _, _, counted in later for shard in counted} == set(range(40))


async def test_two_live_pods_of_one_name_both_say_so_and_one_that_starts_again_says_nothing(fleet: Fleet) -> None:
    async def beaten(*pods: Peers) -> list[str]:
        with capture_logs() as logs:
            for pod in pods * 2 * INTRODUCE_BEATS:
                await pod.beat()
        return [line["pod"] for line in logs if line["event"] == "another live pod has the same name"]

    one, other = (Peers(Membership(fleet.store), Member("shop", roles=("worker",))) for _ in range(2))
    assert await beaten(one) == []
    assert await beaten(other) == [], "as after a crash of the first"
    assert set(await beaten(one, other)) == {"shop"}
    await other.stop()
    assert await beaten(one) == []
