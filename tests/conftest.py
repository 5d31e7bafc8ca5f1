"""The servers that the tests of a session share, one of each kind, started when first needed."""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Final

import pytest
import pytest_asyncio
import redis.utils
from hypothesis import HealthCheck, settings

from tests import postgres
from tests.certificates import trust_no_strangers
from tests.clusters import Cluster
from tests.sentinels import Sentinels
from tests.servers import FAMILIES, FORGETFUL, KINDS, Kind, ServerHandle, start_kind
from tests.topologies import ONE_SERVER, TOPOLOGIES, Place, Topology, empty, reach_all_primaries
from timers.embedded import Family

# A shell ignores SIGINT in background jobs, and every command that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time that an example takes only shows how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

trust_no_strangers()

# For each connection, redis-py reads the description of its own package: half a millisecond.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

# Every pod and every command that a test starts would compile the whole service, and every worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the others owns what they share."""
    if postgres.prepare():
        config.add_cleanup(postgres.stop)
    if config.getoption("on") == "cluster":
        reach_all_primaries()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options."""
    parser.addoption("--every-server", action="store_true", help="run each test on all servers that it can run on")
    parser.addoption("--on", choices=TOPOLOGIES, default=ONE_SERVER, help="tests of one server on this instead")


HEAVY: Final = (
    *("dashboard/test_browser", "simulation/test_simulation", "docs/test_readme", "ledger/test_exactly_once"),
    *("chaos/test_ledger_losses", "store/test_foreign_values", "cli/test_pods", "docker/test_alerts"),
    *("ledger/test_following", "api/test_fuzz", "chaos/test_pods_killed", "upgrade/test_side_by_side"),
    *("life/test_restore", "docker/test_image", "install/test_install", "generators/test_generators"),
    *("store/test_restoring", "store/test_quota", "life/test_bare_clients", "property/test_cron"),
    *("property/test_decide", "engine/test_outages", "ledger/test_restoring", "chaos/test_pods_stopped"),
    *("chaos/test_server_away", "doctor/test_doctor", "engine/test_blocked", "engine/test_rescues"),
    *("cli/test_new_processor", "cli/test_serve_with_keys", "cli/test_mixed_fleet", "docker/test_sentinel"),
    *("docker/test_cluster", "unit/test_slips"),
)
"""Files that take longest. They start first, so that none of them is alone at the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect no garbage among thousands of tests that all stay, neither now nor later, and then seldom: a test makes
    little, and most of it is in no circle."""
    gc.disable()
    try:
        _compile_a_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def _compile_a_share(config: pytest.Config) -> None:
    """Before a worker imports all tests it imports some that no other worker begins with. In a fresh checkout, all of
    them would otherwise compile the same files at the same time."""
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS and hasattr(config, "workerinput"):
        worker, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
        for path in sorted((config.rootpath / "tests").rglob("test_*.py"))[worker::workers]:
            with suppress(Exception):  # the collection reports it
                import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the heavy files. With `--on`, leave only what shows something there: tests that change nothing in a
    shared server but its data."""
    if config.getoption("on") != ONE_SERVER:
        left = [item for item in items if _is_anywhere(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left
    places = {f"tests/{name}.py": place for place, name in enumerate(HEAVY)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def _is_anywhere(item: pytest.Item) -> bool:
    uses = {"server", "store", "real"}.intersection(getattr(item, "fixturenames", ()))
    return bool(uses) and item.get_closest_marker("one_server") is None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The rule of what runs where. What the server itself does may differ between the families: tests of that
    (`every_server`) run on both, and so do those of the store, which show that each script does the same on both: on a
    Valkey by itself, and on Redis as a cluster, which refuses more. What pods make of it runs on one.
    `--every-server` runs all, and those of the store on the test kit's fake server too."""
    on, all_servers = metafunc.config.getoption("on"), metafunc.config.getoption("every_server")
    if "family" in metafunc.fixturenames:
        each = all_servers or metafunc.definition.get_closest_marker("every_server")
        metafunc.parametrize("family", FAMILIES if each else FAMILIES[:1])
    kinds = KINDS if all_servers else ("valkey", "cluster")
    for name, usual in (("backend", ("fake", *kinds) if all_servers else kinds), ("kind", kinds)):
        if name in metafunc.fixturenames and name not in _own_parameters(metafunc):
            metafunc.parametrize(name, usual if on == ONE_SERVER else FAMILIES)


def _own_parameters(metafunc: pytest.Metafunc) -> set[str]:
    """What a test is parametrized with by itself."""
    names = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    return {name.strip() for each in names for name in (each.split(",") if isinstance(each, str) else each)}


class SharedServers:
    """Servers for tests that change nothing in them but the data of the db they use."""

    def __init__(self, folders: pytest.TempPathFactory, on: Topology) -> None:
        self._folders, self._on = folders, on
        self._running: dict[Kind, ServerHandle] = {}
        self._clusters: dict[Family, Cluster] = {}
        self._sentinels: dict[Family, Sentinels] = {}

    async def of(self, kind: Kind) -> ServerHandle:
        """The server of this kind. If the machine has none, the test is skipped, or fails in CI."""
        if kind not in self._running:
            folder = self._folders.mktemp(kind)
            self._running[kind] = await start_kind(kind, folder, "--enable-debug-command", "yes", *FORGETFUL)
        return self._running[kind]

    async def place(self, kind: Kind) -> Place:
        """What a test of one server runs on. Clusters and Sentinels are healed, and all is empty."""
        if kind == "cluster" or self._on == ONE_SERVER:
            place = await self.of(kind)
            await empty(place)
            return place
        return await (self.cluster if self._on == "cluster" else self.sentinels)(kind)

    async def cluster(self, family: Family) -> Cluster:
        """Three primaries with a replica each, healed and emptied."""
        if family not in self._clusters:
            self._clusters[family] = await Cluster.start(family, self._folders.mktemp("cluster"))
        cluster = self._clusters[family]
        await cluster.heal()
        await cluster.empty()
        return cluster

    async def sentinels(self, family: Family) -> Sentinels:
        """Three Sentinels over a primary and two replicas, healed and emptied."""
        if family not in self._sentinels:
            self._sentinels[family] = await Sentinels.start(family, self._folders.mktemp("sentinels"))
        sentinels = self._sentinels[family]
        await sentinels.heal()
        await sentinels.empty()
        return sentinels

    async def stop(self) -> None:
        for server in self._running.values():
            await server.stop()
        self.stop_topologies()

    def stop_topologies(self) -> None:
        """End clusters and Sentinels, which talk to each other all the time. Another test may start them again."""
        for cluster in self._clusters.values():
            cluster.stop()
        for sentinels in self._sentinels.values():
            sentinels.stop()
        self._clusters.clear()
        self._sentinels.clear()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedServers]:
    """The session's servers."""
    shared = SharedServers(tmp_path_factory, pytestconfig.getoption("on"))
    yield shared
    await shared.stop()


@pytest.fixture(scope="module")
def topologies(servers: SharedServers) -> Iterator[SharedServers]:
    """The session's servers, of which the tests of a file leave no cluster and no Sentinels."""
    yield servers
    servers.stop_topologies()


@pytest.fixture
async def cluster(topologies: SharedServers, family: Family) -> Cluster:
    """A cluster whose nodes the test may kill, stop and fail over."""
    return await topologies.cluster(family)


@pytest.fixture
async def sentinels(topologies: SharedServers, family: Family) -> Sentinels:
    """Sentinels and servers that the test may kill, stop and fail over."""
    return await topologies.sentinels(family)
