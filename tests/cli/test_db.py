"""`timers db`, `timers rebuild`, and pods in front of a database that cannot be used."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from redis import Redis
from sqlalchemy import make_url, text

from tests import postgres
from tests.cli.commands import CommandLine, Ended, Process
from tests.cli.test_pods import OURS
from tests.cli.test_probe_port import WORKER, asked
from tests.engine.own import OwnServer
from tests.ledger.copies import in_ledger
from tests.servers import free_port
from tests.waiting import eventually
from timers import TimerClient
from timers.embedded import EmbeddedServer
from timers.errors import LedgerUnavailable, Unavailable
from timers.ledger.database import Database

Start = Callable[..., Process]

AWAY = "postgresql+asyncpg://me:hidden@127.0.0.1:1/shop"
HELD_BY_ANOTHER = (
    "INSERT INTO timers_epochs (epoch, server, shards, made, seen) VALUES ('e', 'other', 1, 0, 9000000000000)"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "postgresql":
        return postgres.new_database()
    (tmp_path / "ledger.db").touch()
    return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"


def execute(url: str, statement: str) -> None:
    async def run() -> None:
        database = Database(url)
        try:
            async with database.transaction() as connection:
                await connection.execute(text(statement))
        finally:
            await database.close()

    asyncio.run(run())


@pytest.fixture
def filled(timers: CommandLine, url: str) -> CommandLine:
    """The command with a ledger that has three timers, two of them of Redis."""
    timers.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    assert timers("db", "upgrade").code == 0
    for name in ("a", "b", "c"):
        assert timers("create", "test", name, "--in", "24h", "--payload", f'"{name}"').code == 0
    return timers


def test_tables_are_made_and_shown(bare: CommandLine, url: str) -> None:
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    before = bare("db", "status", "-o", "json")
    assert before.code == 1
    assert before.json["found"] is None
    assert before.json["problem"] == "it has no tables of the ledger yet: run `timers db upgrade`"
    for _ in range(2):
        assert bare("db", "upgrade").err == "timers: the ledger's tables are of version 0002\n"
    after = bare("db", "status", "-o", "json")
    assert (after.code, after.json["problem"]) == (0, None)
    assert after.json["found"] == after.json["needed"] == "0002"
    assert after.json["shards_behind"] is None, "there is no Redis to ask"


@pytest.mark.parametrize("found", [None, "0001"])
async def test_of_two_upgrades_at_once_the_second_finds_everything_done(start: Start, found: str | None) -> None:
    """Such as two Jobs. A reader holds both up where each has begun."""
    url = postgres.new_database()
    database = Database(url)
    if found is not None:
        await database.upgrade()
    async with database.transaction() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS timers_schema (version_num TEXT PRIMARY KEY)"))
        await connection.execute(text("UPDATE timers_schema SET version_num = :found"), {"found": found})
    upgrades = list[Process]()

    async def both_wait() -> bool:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        assert all(upgrade.alive for upgrade in upgrades)
        return bool(await database.do(lambda connection: connection.scalar(text(asked)), writes=False) == 2)

    async with database.transaction() as connection:
        await connection.execute(text("LOCK TABLE timers_schema IN SHARE MODE"))
        upgrades += [start("db", "upgrade", TIMERS_LEDGER_URL=url) for _ in range(2)]
        await eventually(both_wait, "both upgrades wait")
    await database.close()
    for upgrade in upgrades:
        assert upgrade.end() == Ended(0, "", "timers: the ledger's tables are of version 0002\n")


@pytest.mark.parametrize("command", [["db", "status"], ["ls"], ["create", "test", "a", "--in", "24h"]], ids=" ".join)
def test_a_file_that_is_not_there_is_named_and_not_made(
    timers: CommandLine, tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "mistyped.db"
    timers.monkeypatch.setenv("TIMERS_LEDGER_URL", f"sqlite+aiosqlite:///{path}")
    missing = f"TIMERS_LEDGER_URL: there is no file {path}; correct the path, or run `timers db upgrade`"
    assert timers(*command).refusal() == f"timers: {missing}"
    (doctor,) = (each for each in timers("doctor", "-o", "json").json if each["check"] == "ledger")
    assert (doctor["level"], doctor["said"]) == ("fail", missing)
    assert not path.exists()


WRONG = ["postgresql+asyncpg://me:hidden@127.0.0.1/shop?sslmode=require", "sqlite+aiosqlite:///ledger.db?mode=ro"]
WITH_LEDGER = [
    *(["db", "status"], ["db", "upgrade"], ["ls"], ["doctor"], ["create", "test", "a", "--in", "24h"]),
    ["serve", "--roles", "worker"],
]


@pytest.mark.parametrize("command", WITH_LEDGER, ids=" ".join)
@pytest.mark.parametrize("url", [*WRONG, "postgresql+asyncpg://me:hidden@127.0.0.1:99999/shop"])
def test_a_url_that_no_driver_accepts_is_one_line_that_names_it(
    timers: CommandLine, url: str, command: list[str]
) -> None:
    timers.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    line = timers(*command).refusal()
    assert line.startswith("timers: TIMERS_LEDGER_URL: the ")
    assert "hidden" not in line


def test_a_database_that_can_only_be_read_is_a_problem(bare: CommandLine) -> None:
    url = postgres.new_database()
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    bare("db", "upgrade")
    execute(url, f"ALTER DATABASE {make_url(url).database} SET default_transaction_read_only = on")
    status = bare("db", "status", "-o", "json")
    assert status.code == 1
    assert status.json["problem"] == "the ledger is not available: cannot execute UPDATE in a read-only transaction"


def test_a_database_whose_disk_is_full_is_a_problem(bare: CommandLine) -> None:
    url = postgres.new_database()
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    bare("db", "upgrade")
    raises = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full USING MESSAGE = 'no space'; END $$"
    execute(url, f"CREATE FUNCTION full_disk() {raises}")
    execute(url, "CREATE TRIGGER full_disk BEFORE INSERT ON timers_timers FOR EACH ROW EXECUTE FUNCTION full_disk()")
    status = bare("db", "status", "-o", "json")
    assert status.code == 1
    assert status.json["problem"] == "the ledger is not available: no space"


def test_shards_that_no_pod_has_copied_yet_are_shown(filled: CommandLine) -> None:
    assert filled("db", "status", "-o", "json").json["shards_behind"] == ["0 (restore, 0 %)"]


def test_the_trigger_may_be_left_out(bare: CommandLine) -> None:
    url = postgres.new_database()
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    dropping = "DROP TRIGGER timers_inbox_notify ON timers_inbox"
    assert bare("db", "upgrade").code == 0
    assert bare("db", "upgrade", "--without-notify").code == 0
    with pytest.raises(LedgerUnavailable, match="does not exist"):
        execute(url, dropping)
    assert bare("db", "upgrade").code == 0
    execute(url, dropping)


def test_tables_of_a_later_version_are_left_alone(bare: CommandLine, url: str) -> None:
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url)
    bare("db", "upgrade")
    execute(url, "UPDATE timers_schema SET version_num = '9999'")
    later = "its tables are of a later version (9999, this one knows up to 0002): use that version"
    status = bare("db", "status", "-o", "json")
    assert (status.code, status.json["problem"]) == (1, later)
    assert bare("db", "upgrade").refusal() == f"timers: TIMERS_LEDGER_URL: the database cannot be used; {later}"


def test_tables_whose_version_was_deleted_are_taken_as_they_are(filled: CommandLine, url: str) -> None:
    execute(url, "DELETE FROM timers_schema")
    execute(url, "DROP TABLE timers_effects")
    assert filled("db", "status").code == 1
    assert filled("db", "upgrade").err == "timers: the ledger's tables are of version 0002\n"
    assert filled("db", "status").code == 0
    assert filled("rebuild", "--dry-run", "-o", "json").json[0]["kept"] == 3
    execute(url, "SELECT prefix FROM timers_effects")


COMMANDS = (["db", "upgrade"], ["db", "status"], ["db", "refill"], ["rebuild"], ["rebuild", "--dry-run"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_ledger_each_command_says_so(timers: CommandLine, command: list[str]) -> None:
    assert timers(*command).refusal() == "timers: TIMERS_LEDGER_URL is not set; there is no ledger"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_that_is_away_is_one_line_without_its_password(timers: CommandLine, command: list[str]) -> None:
    timers.monkeypatch.setenv("TIMERS_LEDGER_URL", AWAY)
    line = timers(*command).refusal()
    assert line.startswith("timers: the ledger is not available: ")
    assert "hidden" not in line


@pytest.mark.parametrize("package", ["sqlalchemy", "alembic", "greenlet"])
def test_without_the_extra_it_says_what_to_install(bare: CommandLine, package: str) -> None:
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", AWAY)
    for name in [*sys.modules]:
        if name.startswith(("timers.ledger", "timers.cli.ledger", "timers.client.copies")):
            bare.monkeypatch.delitem(sys.modules, name)
    bare.monkeypatch.setitem(sys.modules, package, None)
    needed = f"timers: the ledger needs {package}: pip install 'redis-timers[ledger]'"
    assert bare("db", "status").refusal() == needed


def test_the_url_in_the_status_has_no_password(bare: CommandLine, url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("SQLite has no passwords")
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", url.replace("postgres@", "postgres:hidden@"))
    bare("db", "upgrade")
    shown = bare("db", "status")
    assert shown.code == 0
    assert "hidden" not in shown.out + shown.err


@pytest.mark.parametrize("state", ["no tables", "later tables", "away"])
def test_a_pod_does_not_start_with_a_ledger_that_it_cannot_use(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path, state: str
) -> None:
    redis.ping()
    url = AWAY if state == "away" else f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    if state == "later tables":
        asyncio.run(_upgraded(url))
        execute(url, "UPDATE timers_schema SET version_num = '9999'")
    settings = {"TIMERS_HTTP_PORT": "0", "TIMERS_START_TIMEOUT": "300ms", "TIMERS_REDIS_URL": server.url}
    line = start("serve", **settings, TIMERS_LEDGER_URL=url).end().refusal()
    assert line.startswith("timers: TIMERS_LEDGER_URL: ")
    said = {"no tables": "run `timers db upgrade`", "later tables": "9999", "away": "the ledger is not available"}
    assert said[state] in line
    assert "hidden" not in line


async def test_a_pod_whose_ledger_another_server_uses_lives_and_says_why_it_waits(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    redis.ping()
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    await _upgraded(url)
    await asyncio.to_thread(execute, url, HELD_BY_ANOTHER)
    port = str(free_port())
    settings: dict[str, Any] = {"TIMERS_REDIS_URL": server.url, "TIMERS_LEDGER_URL": url, "TIMERS_PROBE_PORT": port}
    pod = start("serve", **WORKER, **settings, TIMERS_START_TIMEOUT="1h")
    async with ClientSession(f"http://127.0.0.1:{port}") as session:

        async def lives() -> bool:
            return await asked(session, "/healthz") == (200, '{"status":"ok"}')

        async def is_ready() -> bool:
            return (await asked(session, "/readyz"))[0] == 200

        await eventually(lives, "the pod lives")
        status, said = await asked(session, "/readyz")
        assert (status, "pods of another Redis db use it" in said) == (503, True)
        refused = json.loads((await asked(session, "/v1/timers"))[1])
        assert refused["type"] == "urn:timers:problem:ledger-unavailable"
        assert refused["detail"].endswith("nothing was done")
        told = (await asked(session, "/metrics"))[1]
        assert '\ntimers_redis_up{server=""} 1.0\n' in told
        assert "\ntimers_ready 0.0\n" in told
        assert "\ntimers_overdue_seconds NaN\n" in told
        await asyncio.to_thread(execute, url, "DELETE FROM timers_epochs WHERE epoch = 'e'")
        await eventually(is_ready, "the pod is ready")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0


async def test_a_pod_that_waits_for_its_ledger_outlives_a_restart_of_redis(start: Start, tmp_path: Path) -> None:
    """It ended at once, and a service that moves had no pod in its new place."""
    own, url, port = OwnServer("redis", tmp_path / "own"), f"sqlite+aiosqlite:///{tmp_path}/ledger.db", str(free_port())
    await own.up()
    await _upgraded(url)
    await asyncio.to_thread(execute, url, HELD_BY_ANOTHER)
    settings: dict[str, Any] = {"TIMERS_REDIS_URL": own.url, "TIMERS_LEDGER_URL": url, "TIMERS_PROBE_PORT": port}
    pod = start("serve", **WORKER, **settings, TIMERS_START_TIMEOUT="1h")
    async with ClientSession(f"http://127.0.0.1:{port}") as session:

        async def waits_for(said: str) -> bool:
            return said in (await asked(session, "/readyz"))[1]

        async def is_ready() -> bool:
            return (await asked(session, "/readyz"))[0] == 200

        await eventually(partial(waits_for, "pods of another Redis db use it"), "the pod waits for the ledger")
        own.down()
        await eventually(partial(waits_for, "has not reached Redis"), "the pod waits for Redis")
        await own.up()
        await asyncio.to_thread(execute, url, "DELETE FROM timers_epochs WHERE epoch = 'e'")
        await eventually(is_ready, "the pod is ready")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0
    own.down()


async def _upgraded(url: str) -> None:
    database = Database(url)
    await database.upgrade()
    await database.close()


def test_a_rebuild_says_to_repeat_it_when_redis_goes_away(filled: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> AsyncIterator[tuple[object, list[str]]]:
        yield None, ["restored"]
        raise Unavailable("gone")

    monkeypatch.setattr("timers.cli.ledger.give_back", away)
    assert filled("rebuild").refusal() == "timers: gone; repeat it, which continues where this one stopped"


def test_a_rebuild_gives_back_what_redis_lacks_and_nothing_twice(filled: CommandLine, redis: Redis, url: str) -> None:
    execute(url, "INSERT INTO timers_facts (kind, name, value) VALUES ('paused', 'test', '1000')")
    whole = filled("rebuild", "--dry-run", "-o", "json").json
    assert whole == [{"shard": 0, "restored": 0, "kept": 3, "running": 0, "refused": 0}]
    declared: Any = redis.hgetall("timers:{pods}:declared")
    redis.flushall()
    redis.hset("timers:{pods}:declared", mapping=declared)
    lost = filled("rebuild", "--dry-run", "-o", "json").json
    assert lost == [{"shard": 0, "restored": 3, "kept": 0, "running": 0, "refused": 0}]
    assert filled("ls").out == "none\n"
    assert filled("rebuild", "-o", "json").json == lost
    back = filled("get", "test", "b", "-o", "json").json
    assert (back["status"], back["payload"]) == ("scheduled", "b")
    assert back["history"][0]["note"] == "restored from the ledger after a loss"
    assert redis.smembers("timers:{0}:paused") == {"test"}
    assert filled("rebuild", "-o", "json").json == whole


def test_a_ledger_that_another_server_uses_is_left_to_it(filled: CommandLine, redis: Redis, url: str) -> None:
    redis.flushall()
    execute(url, HELD_BY_ANOTHER)
    assert "another Redis db (other, epoch e) uses this ledger" in filled("rebuild").refusal()
    assert filled("ls").out == "none\n"


def test_a_database_that_was_set_back_is_a_problem(filled: CommandLine, redis: Redis, url: str) -> None:
    execute(url, "INSERT INTO timers_facts VALUES ('agreed', '', '1')")
    redis.set("timers:{0}:agreed", 180_002)
    status = filled("db", "status", "--output", "json")
    assert status.code == 1
    assert "its database is 3 minutes older than what Redis has agreed with" in json.loads(status.out)["problem"]
    assert "its database is 3 minutes older" in filled("rebuild").refusal()


def test_a_rebuild_exits_with_1_if_redis_does_not_take_a_timer(filled: CommandLine, redis: Redis, url: str) -> None:
    redis.flushall()
    execute(url, "UPDATE timers_timers SET due = -1 WHERE id = 'b'")
    done = filled("rebuild", "-o", "json")
    assert done.code == 1
    assert done.json == [{"shard": 0, "restored": 2, "kept": 0, "running": 0, "refused": 1}]


def test_a_db_that_leaves_its_ledger_notes_nothing_more(timers: CommandLine, redis: Redis) -> None:
    redis.hset("timers:{0}:hooks", mapping={"@ledger": "whole 1 -", "all *": "1"})
    assert timers("create", "test", "a", "--in", "24h").code == 0
    assert redis.hkeys("timers:{0}:changed") == ["test:a"]
    assert timers("db", "detach").code == 0
    assert timers("create", "test", "b", "--in", "24h").code == 0
    assert not redis.exists("timers:{0}:changed")
    assert redis.hkeys("timers:{0}:hooks") == ["all *"]


async def test_a_db_whose_pods_use_the_ledger_does_not_leave_it(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    await _upgraded(url)
    settings = {"TIMERS_REDIS_URL": server.url}
    pod = start("serve", **WORKER, **settings, TIMERS_LEDGER_URL=url, TIMERS_POD="shop-1")

    async def follows() -> bool:
        return bool(redis.hexists("timers:{0}:hooks", "@ledger"))

    await eventually(follows, "changes are noted for the ledger")
    told = (await asyncio.to_thread(start("db", "detach", **settings).end)).refusal()
    assert told.startswith("timers: pods that are alive use the ledger: shop-1; remove TIMERS_LEDGER_URL from")
    assert await follows()
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0
    assert (await asyncio.to_thread(start("db", "detach", **settings).end)).code == 0
    assert not await follows()


async def test_an_emptied_ledger_is_filled_again(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    redis.ping()
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    settings = {"TIMERS_REDIS_URL": server.url, "TIMERS_LEDGER_URL": url}
    await _upgraded(url)
    database = Database(url)
    start("serve", "--roles", "worker", **OURS, **settings)
    async with TimerClient(server.url) as client:
        await eventually(lambda: client.owner("hold"), "the pod has declared its processors")
        for number in range(3):
            await client.create("hold", str(number), delay="24h")

        async def copied() -> bool:
            return len(await in_ledger(database)) == 3

        await eventually(copied, "the ledger has them")
        async with database.transaction() as connection:
            await connection.execute(text("DELETE FROM timers_timers"))
        done = await asyncio.to_thread(start("db", "refill", **settings).end)
        assert (done.code, done.err) == (0, "timers: the pods copy all timers to the ledger\n")
        await eventually(copied, "the ledger has them again")
    await database.close()
