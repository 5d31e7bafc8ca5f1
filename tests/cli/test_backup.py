"""`timers export` and `timers import`: what a file holds, and what comes of it elsewhere."""

import asyncio
import base64
import errno
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from tests.cli.commands import END_SECONDS, CommandLine, Ended, Process, clean_environment
from tests.conservation import conserved
from tests.nursery import ROOT
from tests.waiting import eventually
from timers.client import open_store
from timers.embedded import EmbeddedServer
from timers.errors import LedgerUnavailable, TimersError, Unavailable
from timers.store.codec import taken_apart
from timers.store.restoring import Record, Restored, read_records, restore
from timers.store.servers import connect
from timers.store.store import Store

HOUR_MS: Final = 3_600_000


class Service:
    """A db of the server, through the command line."""

    def __init__(self, timers: CommandLine, url: str, folder: Path) -> None:
        self._timers, self.url, self._folder = timers, url, folder

    def __call__(self, *arguments: str) -> Ended:
        return self._timers(arguments[0], "--url", self.url, *arguments[1:])

    def exported(self, *options: str) -> list[dict[str, Any]]:
        """The lines of an export."""
        ended = self("export", *options)
        assert ended.code == 0, ended
        return [json.loads(line) for line in ended.out.splitlines()]

    def timers(self, *options: str) -> dict[str, dict[str, Any]]:
        """The timers of an export, by id."""
        return {line["id"]: line for line in self.exported(*options) if line["type"] == "timer"}

    def imported(self, lines: list[dict[str, Any]], *options: str) -> dict[str, Any]:
        """What an import says that ends well."""
        ended = self("import", self.file(lines), "-o", "json", *options)
        assert ended.code == 0, ended
        return dict(ended.json)

    def file(self, lines: list[Any]) -> str:
        path = self._folder / "export.jsonl"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return str(path)

    def conserved(self) -> None:
        async def check() -> None:
            store = await open_store(connect(self.url))
            await conserved(store)
            await store.connections.close()

        asyncio.run(check())


@pytest.fixture
def here(timers: CommandLine, server: EmbeddedServer, tmp_path: Path) -> Service:
    return Service(timers, server.url, tmp_path)


@pytest.fixture
def there(timers: CommandLine, server: EmbeddedServer, tmp_path: Path) -> Service:
    """Another db, with another number of shards."""
    service = Service(timers, server.url.replace("db=0", "db=1"), tmp_path)
    assert service("init", "--shards", "5").code == 0
    return service


def create(service: Service, *ids: str, after: str = "1h", prefix: str = "test") -> None:
    for timer_id in ids:
        assert service("create", prefix, timer_id, "--in", after, "--payload", '{"n": 1}').code == 0


def some(service: Service) -> None:
    """Timers of several kinds, of which one was cancelled."""
    create(service, "a", "b")
    create(service, "c", prefix="log")
    args = ("create", "test", "daily", "--in", "1d", "--repeat", "1d", "--tag", "ä", "--retry", "3")
    assert service(*args).code == 0
    assert service("cancel", "test", "b").code == 0


def timer_line(timer_id: str = "a", **parts: Any) -> dict[str, Any]:
    """A completed timer's line."""
    return {
        "type": "timer",
        "prefix": "test",
        "id": timer_id,
        "status": "completed",
        "version": 3,
        "attempt": 1,
        "failures": 0,
        "occurrence": 1,
        "token": 17,
        "created_ms": 1000,
        "due_ms": 2000,
        "spec": {"payload": 1},
        "history": ["2000 r 1 pod 0 - event", "2500 c 1 pod - - completed"],
        **parts,
    }


def file_of(*timers: Any, **footer: Any) -> list[Any]:
    """An export with these lines."""
    header = {"type": "header", "format": 1, "service": "0", "time": "2026-11-20T00:00:00Z", "epoch": "e", "shards": 1}
    numbers = {"keys": 0, "declarations": 0, "pauses": 0, "timers": len(timers), "unreadable": 0}
    return [{**header, "timers": len(timers)}, *timers, {"type": "footer", **numbers, **footer}]


def told(line: dict[str, Any]) -> dict[str, Any]:
    """A timer's line without what an import adds."""
    return {**line, "version": 0, "history": [entry for entry in line["history"] if " imported " not in entry]}


def test_a_service_comes_back_elsewhere_with_another_number_of_shards(here: Service, there: Service) -> None:
    some(here)
    lines = here.exported()
    assert there.imported(lines)["timers"] == {"restored": 4}
    assert there.exported()[0]["shards"] == 5
    assert {name: told(line) for name, line in there.timers().items()} == {
        name: told(line) for name, line in here.timers().items()
    }
    there.conserved()


def test_the_first_line_says_what_it_is_and_the_last_how_much(here: Service, redis: Redis) -> None:
    some(here)
    header, *lines, footer = here.exported()
    meta = redis.hgetall("timers:meta")
    assert (header["type"], header["format"], header["epoch"], header["shards"]) == ("header", 1, meta["epoch"], 1)
    assert header["time"].startswith("20")
    assert header["service"]
    assert footer == {"type": "footer", "keys": 0, "declarations": 2, "pauses": 0, "timers": 4, "unreadable": 0}
    assert len(lines) == 6


def test_a_line_is_the_whole_record(here: Service) -> None:
    create(here, "a")
    redis: Any = Redis.from_url(here.url)
    (bucket,) = redis.keys("timers:{0}:rec:*")
    parts, line = taken_apart(redis.hget(bucket, "test:a")), here.timers()["a"]
    numbers = ("version", "token", "attempt", "failures", "occurrence", "created_ms", "due_ms")
    assert [line[name] for name in numbers] == [getattr(parts, name) for name in numbers]
    assert (line["status"], line["spec"], line["history"]) == ("scheduled", {"payload": {"n": 1}}, [])
    assert "progress" not in line


def test_declarations_pauses_and_keys_come_along(here: Service, there: Service, redis: Any) -> None:
    made = here("keys", "make", "--prefix", "test", "--name", "me", "-o", "json").json
    revoked = here("keys", "make", "-o", "json").json["entry"].split(":")[0]
    here("keys", "revoke", redis.hkeys("timers:keys")[1])
    here("pause", "log")
    lines = here.exported()
    assert made["key"] not in json.dumps(lines)
    assert there.imported(lines) == {
        "dry_run": False,
        "keys": {"restored": 2},
        "declarations": {"restored": 2},
        "pauses": {"restored": 1},
        "bad_lines": 0,
    }
    other = Redis.from_url(there.url, decode_responses=True)
    assert other.hgetall("timers:keys") == redis.hgetall("timers:keys")
    assert other.hexists("timers:meta", "closed")
    assert other.hgetall("timers:{pods}:declared") == redis.hgetall("timers:{pods}:declared")
    assert [other.smembers(f"timers:{{{shard}}}:paused") for shard in range(5)] == [{"log"}] * 5
    again = there.imported(lines)
    assert [again[kind] for kind in ("keys", "declarations", "pauses")] == [{"kept": 2}, {"kept": 2}, {"kept": 1}]
    assert revoked


def test_a_revoked_key_stays_revoked(here: Service, there: Service, redis: Any) -> None:
    here("keys", "make")
    (key_id,) = redis.hkeys("timers:keys")
    lines = here.exported()
    there.imported(lines)
    there("keys", "revoke", key_id)
    assert there.imported(lines, "--if-exists", "replace")["keys"] == {"kept": 1}
    here("keys", "revoke", key_id)
    assert here.imported(lines)["keys"] == {"kept": 1}


def test_a_prefix_that_was_resumed_since_is_not_paused_again(here: Service) -> None:
    here("pause", "log")
    lines = here.exported()
    here("resume", "log")
    assert here.imported(lines)["pauses"] == {"kept": 1}
    assert here.imported(lines, "--if-exists", "replace")["pauses"] == {"restored": 1}


def test_only_a_prefix(here: Service) -> None:
    some(here)
    here("keys", "make")
    here("pause", "log")
    kinds = [(line["type"], line.get("prefix")) for line in here.exported("--prefix", "l*")[1:-1]]
    assert kinds == [("declaration", "log"), ("pause", "log"), ("timer", "log")]
    assert here.timers("--prefix", "test").keys() == {"a", "b", "daily"}
    assert here.timers("--prefix", "tes").keys() == set()
    assert "TIMERS" not in here("export", "--prefix", "No!").refusal(2)


def test_only_what_has_changed_since(here: Service) -> None:
    create(here, "a", "b")
    header = here.exported()[0]
    create(here, "c")
    here("reschedule", "test", "a", "--in", "2h")
    assert here.timers("--since", header["time"]).keys() >= {"a", "c"}
    assert here.timers("--since", "-1d").keys() == {"a", "b", "c"}
    assert here.timers("--since", "2090-01-01T00:00:00Z") == {}
    for text in ("soon", "1d"):  # who forgets the minus shall not get a backup of nothing
        assert f"--since: '{text}'" in here("export", "--since", text).refusal(2)


def test_the_services_own_timers_come_along(here: Service, there: Service) -> None:
    lines = file_of(timer_line("call", prefix="timers.hook-0123456789abcdef"))
    there.imported(lines)
    assert there.timers().keys() == {"call"}


def test_to_import_it_again_changes_nothing(here: Service, there: Service) -> None:
    some(here)
    lines = here.exported()
    there.imported(lines)
    before = there.exported()[1:]
    assert there.imported(lines)["timers"] == {"kept": 4}
    assert there.exported()[1:] == before
    assert here.imported(lines)["timers"] == {"kept": 4}


def test_what_changed_here_after_the_export_stays(here: Service) -> None:
    create(here, "a")
    lines = here.exported()
    here("cancel", "test", "a")
    assert here.imported(lines)["timers"] == {"kept": 1}
    assert here.timers()["a"]["status"] == "cancelled"


def test_keep_and_replace(here: Service) -> None:
    create(here, "a")
    lines = here.exported()
    here("cancel", "test", "a")
    before = here.timers()["a"]
    assert here.imported(lines, "--if-exists", "keep")["timers"] == {"kept": 1}
    assert here.imported(lines, "--if-exists", "replace")["timers"] == {"restored": 1}
    after = here.timers()["a"]
    assert (after["status"], after["created_ms"], after["version"]) == (
        "scheduled",
        before["created_ms"],
        before["version"] + 1,
    )
    here("cancel", "test", "a")
    assert here.imported(lines, "--if-exists", "replace")["timers"] == {"kept": 1}


def test_a_dry_run_counts_and_changes_nothing(here: Service, there: Service, redis: Redis) -> None:
    some(here)
    here("pause", "log")
    here("keys", "make")
    lines, other = here.exported(), Redis.from_url(there.url)
    before = {key: other.dump(key) for key in other.keys("*")}
    found = there.imported(lines, "--dry-run")
    assert found == {
        "dry_run": True,
        "keys": {"restored": 1},
        "declarations": {"restored": 2},
        "pauses": {"restored": 1},
        "timers": {"restored": 4},
        "bad_lines": 0,
    }
    assert {key: other.dump(key) for key in other.keys("*")} == before
    assert here.imported(lines, "--dry-run")["timers"] == {"kept": 4}
    other.flushdb()
    assert there.imported(lines, "--dry-run")["timers"] == {"restored": 4}
    assert other.keys("*") == []


def test_the_history_says_where_a_timer_came_from(here: Service, there: Service) -> None:
    create(here, "a")
    lines = here.exported()
    there.imported(lines)
    history = there("get", "test", "a", "-o", "json").json["history"]
    said = f"imported from the export of {lines[0]['time']}, epoch {lines[0]['epoch']}"
    assert [(entry["cause"], entry["note"]) for entry in history] == [("imported", said), ("created", "created")]


def test_rebase_keeps_the_distances(there: Service) -> None:
    exported_ms = 1_795_132_800_000
    parts = {"status": "scheduled", "version": 2, "attempt": 0, "history": ["1 s 0 - - - changed"]}
    ahead, past = exported_ms + HOUR_MS, exported_ms - HOUR_MS
    progress = {"slot": ahead, "anchor": ahead - HOUR_MS, "step": 1, "first_due": past}
    lines = file_of(
        timer_line("ahead", due_ms=ahead, progress=progress, **parts),
        timer_line("past", due_ms=past, **parts),
        timer_line("done"),
    )
    there.imported(lines, "--rebase")
    found = there.timers()
    moved_ms = found["ahead"]["due_ms"] - ahead
    assert moved_ms > 0
    assert found["past"]["due_ms"] == past + moved_ms
    assert found["done"]["due_ms"] == 2000
    assert found["ahead"]["progress"] == {
        "slot": ahead + moved_ms,
        "anchor": ahead - HOUR_MS + moved_ms,
        "step": 1,
        "first_due": past + moved_ms,
    }


def test_a_rebased_import_says_how_to_repeat_it(there: Service) -> None:
    """What it had not reached was moved further than the rest."""
    due_ms = 1_795_132_800_000 + HOUR_MS
    lines = file_of(*(timer_line(id, status="scheduled", due_ms=due_ms) for id in "ab"))
    first = there("import", there.file(lines[:2]), "--rebase")
    (said,) = re.findall(r"repeat the import with --rebase-at (\S+): ", first.err)
    assert there.timers().keys() == {"a"}
    there.imported(lines, "--rebase-at", said)
    assert len({line["due_ms"] for line in there.timers().values()}) == 1
    assert there.timers().keys() == {"a", "b"}
    assert there("import", "--rebase-at", "soon").refusal(2).startswith("timers: --rebase-at: 'soon' is not accepted")


def test_one_that_ran_is_scheduled_with_its_attempts(there: Service) -> None:
    running = timer_line(status="running", attempt=2, failures=1, occurrence=4, token=99, progress={"last_error": {}})
    there.imported(file_of(running))
    line = there.timers()["a"]
    assert (line["status"], line["attempt"], line["failures"], line["occurrence"], line["token"]) == (
        "scheduled",
        2,
        1,
        4,
        99,
    )
    assert line["version"] == running["version"] + 1


def test_every_status_comes_back(there: Service) -> None:
    statuses = ("scheduled", "running", "completed", "failed", "unhandled", "cancelled")
    there.imported(file_of(*(timer_line(status, status=status) for status in statuses)))
    found = {name: line["status"] for name, line in there.timers().items()}
    assert found == {status: "scheduled" if status == "running" else status for status in statuses}
    there.conserved()


def test_a_cut_file_is_noticed(here: Service, there: Service) -> None:
    some(here)
    *lines, _footer = here.exported()
    ended = there("import", there.file(lines), "-o", "json")
    assert (ended.code, ended.json["timers"]) == (1, {"restored": 4})
    assert "footer is missing" in ended.err
    half = there.file([*lines[:-1], json.dumps(lines[-1])[:40]])
    ended = there("import", half)
    assert ended.code == 1
    assert f"line {len(lines)}: " in ended.err


def test_a_line_that_is_missing_in_the_midst_is_noticed(here: Service, there: Service) -> None:
    some(here)
    lines = here.exported()
    ended = there("import", there.file([*lines[:3], *lines[4:]]))
    assert ended.code == 1
    assert "than the footer says" in ended.err


BAD: Final[dict[str, tuple[Any, str]]] = {
    "no JSON": ("{oops", "line 2"),
    "no object": ("[1]", "not a JSON object"),
    "an unknown type": ({"type": "x"}, "no known type"),
    "a reserved prefix": (timer_line(prefix="timers"), "prefix"),
    "a bad id": (timer_line("a b"), "id"),
    "an unknown status": (timer_line(status="odd"), "status"),
    "a negative number": (timer_line(version=-1), "version"),
    "no version": (timer_line(version=0), "impossible"),
    "a boolean": (timer_line(version=True), "version"),
    "a large version": (timer_line(version=2**40), "too large"),
    "a large token": (timer_line(token=2**53), "token"),
    "a time that is none": (timer_line(due_ms=10**13), "impossible"),
    "no spec": (timer_line(spec=None), "spec"),
    "a progress that is none": (timer_line(progress=[]), "progress"),
    "a history with a line break": (timer_line(history=["1 s 0 - - - x\ny"]), "history"),
    "a history that is too long": (timer_line(history=["1 s 0 - - - x"] * 50), "history"),
    "no base64": (timer_line(record="!"), ""),
    "a record that is none": (timer_line(record="AAAA"), "record"),
    "a key without an entry": ({"type": "key", "id": "x"}, "entry"),
    "a key without an id": ({"type": "key", "id": "", "entry": "x"}, "id of a key"),
    "a declaration of no prefix": ({"type": "declaration", "prefix": "!", "declared_ms": 1, "pod": "x"}, "prefix"),
    "a pause of no prefix": ({"type": "pause", "prefix": "timers"}, "prefix"),
}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_line_is_named_and_stops_nothing(there: Service, kind: str) -> None:
    line, why = BAD[kind]
    ended = there("import", there.file(file_of(line, timer_line("good"))), "-o", "json")
    assert (ended.code, ended.json["bad_lines"], ended.json["timers"]) == (1, 1, {"restored": 1})
    assert "timers: line 2: " in ended.err
    assert why in ended.err
    assert "1 bad lines" in ended.err


def test_what_follows_the_footer_is_bad(there: Service) -> None:
    ended = there("import", there.file([*file_of(timer_line()), timer_line("b")]))
    assert "line 4: it comes after the footer" in ended.err


def test_a_line_too_long_is_bad(there: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.cli.moving.LINE_LIMIT_BYTES", 400)
    ended = there(
        "import", there.file(file_of(timer_line(spec={"payload": "x" * 2000}), timer_line("b"))), "-o", "json"
    )
    assert "line 2: it is too long" in ended.err
    assert ended.json["timers"] == {"restored": 1}


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("", "not the header of an export"),
        ("nonsense", "not the header of an export"),
        (json.dumps(timer_line()), "not the header of an export"),
        (json.dumps({**file_of()[0], "format": 2}), "this version reads formats up to 1"),
    ],
)
def test_what_is_no_export_is_refused_as_a_whole(there: Service, first: str, why: str) -> None:
    ended = there("import", there.file([first, *file_of(timer_line())[1:]]))
    assert why in ended.refusal()


def test_an_empty_file_is_called_empty(there: Service) -> None:
    assert there("import", there.file([])).refusal().startswith("timers: there is nothing to import: ")


def test_a_first_line_too_long_is_called_so(there: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.cli.moving.LINE_LIMIT_BYTES", 40)
    refused = there("import", there.file(file_of(timer_line()))).refusal()
    assert refused == "timers: line 1 is not the header of an export: it is too long"
    assert there.timers() == {}


def test_a_file_that_is_not_there(there: Service) -> None:
    assert "nowhere.jsonl" in there("import", "nowhere.jsonl").refusal(2)


def test_a_record_that_json_cannot_hold_comes_back_byte_by_byte(there: Service, here: Service, redis: Redis) -> None:
    create(here, "a")
    raw: Any = Redis.from_url(here.url)
    (bucket,) = raw.keys("timers:{0}:rec:*")
    record = raw.hget(bucket, "test:a")
    assert record is not None
    broken = record.replace(b'{"payload":', b'{"payload":\xff')
    raw.hset(bucket, "test:a", broken)
    line = here.timers()["a"]
    assert base64.b64decode(line["record"]) == broken
    there.imported(here.exported())
    assert base64.b64decode(there.timers()["a"]["record"]).startswith(b"2 s")
    assert b"\xff" in base64.b64decode(there.timers()["a"]["record"])


def test_a_record_that_cannot_be_read_is_left_out_and_named(here: Service, redis: Redis) -> None:
    create(here, "a", "b")
    for bucket in redis.keys("timers:{0}:rec:*"):
        if redis.hexists(bucket, "test:a"):
            redis.hset(bucket, "test:a", "garbage")
    ended = here("export")
    assert ended.code == 1
    assert "test:a cannot be read" in ended.err
    assert json.loads(ended.out.splitlines()[-1])["unreadable"] == 1


def test_a_full_disk_is_one_clear_line(here: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timers export > /dev/full`."""
    some(here)

    class Full(io.RawIOBase):
        def write(self, _data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(Full(), write_through=True))  # type: ignore[type-var]
        ended = here("export")
    assert ended.refusal() == "timers: [Errno 28] No space left on device"


@pytest.mark.parametrize("command", ["export", "stats", "stats --help", "config", "--version"])
def test_what_a_full_disk_does_not_take_is_not_tried_again(
    server: EmbeddedServer, tmp_path: Path, command: str
) -> None:
    environ = clean_environment({"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", "TIMERS_REDIS_URL": server.url})
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "timers", *command.split()],
            cwd=tmp_path,
            env=environ,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=END_SECONDS,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, b"timers: [Errno 28] No space left on device\n")


def test_from_one_into_the_other_through_a_pipe(here: Service, there: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    some(here)
    ended = here("export")
    assert ended.err == "timers: 4 timers exported\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ended.out.encode())))
    assert there("import", "-o", "json").json["timers"] == {"restored": 4}


def test_an_export_of_a_db_that_was_emptied_meanwhile_fails_and_has_no_footer(
    here: Service, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the scan had not reached yet is missing, and nothing else says so."""
    some(here)
    _meanwhile(redis.flushdb, monkeypatch)
    ended = here("export")
    assert (ended.code, ended.err) == (
        1,
        "timers: Redis was restarted, lost data or moved shards during the export: repeat it\n",
    )
    assert [json.loads(line)["type"] for line in ended.out.splitlines()].count("footer") == 0


def test_an_export_of_a_replica_that_is_not_in_sync_is_refused(here: Service, redis: Any) -> None:
    """One that waits for its data said that there are no timers, and a backup of nothing replaced the last one."""
    some(here)
    redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        refused = here("export")
    finally:
        redis.execute_command("REPLICAOF", "NO", "ONE")
    assert "is a replica that is not in sync with its master 127.0.0.1:1, and may lack timers" in refused.refusal()
    assert here("export").err == "timers: 4 timers exported\n"


def test_an_export_during_which_a_shard_gets_its_first_timer_is_whole(
    there: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.imported(file_of(timer_line()))
    other = Redis.from_url(there.url, decode_responses=True)
    (first,) = other.keys("timers:{*}:epoch")
    free = next(key for shard in range(5) if (key := f"timers:{{{shard}}}:epoch") != first)
    _meanwhile(lambda: other.copy(str(first), free), monkeypatch)
    ended = there("export")
    assert other.exists(free)
    assert (ended.code, ended.err) == (0, "timers: 1 timers exported\n")
    other.close()


def _meanwhile(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do this before the last page of an export is read."""

    async def acting(store: Store, pattern: str) -> AsyncIterator[Sequence[Record]]:
        async for page in read_records(store, pattern):
            act()
            yield page

    monkeypatch.setattr("timers.client.backup.read_records", acting)


@pytest.mark.parametrize("gone", [Unavailable("Redis is not available: gone"), LedgerUnavailable("the ledger is gone")])
def test_an_import_says_to_repeat_it_when_redis_or_the_ledger_goes_away(
    there: Service, monkeypatch: pytest.MonkeyPatch, gone: TimersError
) -> None:
    calls: list[int] = []

    async def second_time_away(store: Store, records: Sequence[Restored], **options: Any) -> list[str]:
        calls.append(len(records))
        if len(calls) == 2:
            raise gone
        return await restore(store, records, **options)

    monkeypatch.setattr("timers.client.backup.restore", second_time_away)
    monkeypatch.setattr("timers.client.backup.BATCH", 2)
    lines = file_of(*(timer_line(f"t{i}") for i in range(5)))
    said = str(gone)
    refusal = there("import", there.file(lines)).refusal()
    assert refusal == f"timers: {said}; repeat the import, which continues where this one stopped"
    assert there.imported(lines)["timers"] == {"kept": 2, "restored": 3}


def test_large_timers_are_put_back_a_few_at_a_time(there: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    async def watched(store: Store, records: Sequence[Restored], **options: Any) -> list[str]:
        sizes.append(sum(len(record.record) for record in records))
        return await restore(store, records, **options)

    monkeypatch.setattr("timers.client.backup.restore", watched)
    monkeypatch.setattr("timers.client.backup.BATCH_BYTES", 10_000)
    there.imported(file_of(*(timer_line(f"t{i}", spec={"payload": "x" * 1000}) for i in range(100))))
    assert len(sizes) > 5
    assert max(sizes) < 12_000


def test_the_table_of_an_import(here: Service, there: Service) -> None:
    create(here, "a")
    shown = there("import", there.file(here.exported())).out.splitlines()
    assert [line.split() for line in shown] == [
        ["WHAT", "RESULT", "NUMBER"],
        ["declarations", "restored", "2"],
        ["timers", "restored", "1"],
    ]


def test_a_reader_that_has_seen_enough(here: Service) -> None:
    create(here, "a")
    program = [sys.executable, "-m", "timers", "export", "--url", here.url]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait() == 1


@pytest.mark.parametrize(("closed", "line"), [("2>&-", '{"type":"footer"'), (">&-", ""), (">&- 2>&- <&-", "")])
def test_an_export_whose_caller_has_closed_a_stream(here: Service, closed: str, line: str) -> None:
    create(here, "a")
    program = ["sh", "-c", f'exec "$0" -m timers export --url "$1" {closed}', sys.executable, here.url]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "".join(ended.stdout.splitlines()[-1:]).startswith(line)
    assert ended.stderr in ("", "timers: 1 timers exported\n")


def test_an_import_that_was_killed_goes_on(
    there: Service, start: Callable[..., Process], server: EmbeddedServer
) -> None:
    file = there.file(file_of(*(timer_line(f"t{i}", status="scheduled", due_ms=9 * 10**12) for i in range(20_000))))
    other = Redis.from_url(there.url)
    killed = start("import", file, "--url", there.url)

    async def begun() -> bool:
        return sum(int(n) for shard in range(5) for n in other.hvals(f"timers:{{{shard}}}:counts")) > 2000

    asyncio.run(eventually(begun, "the import has begun"))
    killed.signal(signal.SIGKILL)
    killed.kill()
    there.conserved()
    found = there("import", file, "-o", "json")
    assert found.code == 0
    results = found.json["timers"]
    assert results["kept"] > 2000
    assert results["kept"] + results.get("restored", 0) == 20_000
    there.conserved()
    assert {line["version"] for line in there.timers().values()} == {4}


PEAK: Final = """
import sys
from timers.cli import main
try:
    main()
finally:
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print("peak", line.split()[1], file=sys.stderr)
"""


def peak_kb(*arguments: str, out: Path) -> int:
    """The most memory that a command took."""
    with out.open("wb") as file:
        ended = subprocess.run(
            [sys.executable, "-c", PEAK, *arguments], stdout=file, stderr=subprocess.PIPE, check=True
        )
    return int(ended.stderr.decode().rpartition("peak ")[2])


def test_many_take_no_more_memory_than_few(here: Service, there: Service, tmp_path: Path) -> None:
    def lines(number: int) -> list[Any]:
        spec = {"payload": "x" * 1000}
        return file_of(*(timer_line(f"t{i}", status="scheduled", due_ms=9 * 10**12, spec=spec) for i in range(number)))

    out = tmp_path / "out"

    def peaks(number: int) -> tuple[int, int]:
        file = there.file(lines(number))
        return peak_kb("import", file, "--url", there.url, out=out), peak_kb("export", "--url", there.url, out=out)

    few, many = peaks(2000), peaks(20_000)
    assert len(out.read_bytes().splitlines()) == 20_000 + 2
    assert all(after - before < 5000 for before, after in zip(few, many, strict=True)), (few, many)
