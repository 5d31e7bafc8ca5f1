"""PROTOCOL.md is correct and complete: a client written from it alone works, and it names every script and code."""

import hashlib
import json
import re
import shlex
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import timers.store
from tests.conftest import SharedServers
from tests.records import HEAD, divided
from tests.servers import Kind
from tests.store.acts import an_end
from tests.store.backends import open_store
from timers.core.model import Status
from timers.store.store import Store

FOLDER = Path(timers.store.__file__).parent
PROTOCOL = (FOLDER / "PROTOCOL.md").read_text()
PATHS = {path.stem: path for path in FOLDER.parent.glob("*/lua/*.lua")}
SCRIPTS = sorted({*PATHS} - {"common"})
SHARDS = 4


class Foreign:
    """A client that shares only the document and the scripts with the service."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis

    def where(self, member: str) -> tuple[str, str]:
        """A member's root and bucket."""
        root = f"timers:{{{zlib.crc32(member.encode()) % SHARDS}}}:"
        return root, f"{root}rec:{hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"

    async def call(self, script: str, root: str, *arguments: str | bytes) -> list[Any]:
        flags, rest = PATHS[script].read_text().split("\n", 1)
        commons = [FOLDER / "lua" / "common.lua", *PATHS[script].parent.glob("common.lua")]
        source = "\n".join((flags, *(path.read_text() for path in dict.fromkeys(commons)), rest))
        answer: list[Any] = await self._redis.eval(source, 1, root, "timers:wake:0", *arguments)
        assert int(answer[0]) > 1_700_000_000_000
        return answer[1:]

    async def found(self, root: str, epoch: str) -> None:
        """Do what the document says about the code `foreign`."""
        await self.call("meta", "timers:meta", "make", "2", str(SHARDS), "1", epoch)
        await self.call("meta", "timers:meta", "arm", epoch)
        await self._redis.set(f"{root}epoch", f"{epoch} 2")

    async def record(self, member: str) -> tuple[tuple[Any, ...], list[str]]:
        """The head and the lines of a record, read without a script."""
        head, lines = divided(await self._redis.hget(self.where(member)[1], member))
        return HEAD.unpack(head), [line.decode() for line in lines]


@pytest.fixture
async def sharded(servers: SharedServers, kind: Kind) -> AsyncIterator[Store]:
    async with open_store(servers, kind, shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def foreign(sharded: Store) -> Foreign:
    return Foreign(sharded.connections.commands)


async def arm(foreign: Foreign, member: str, due: str, spec: str) -> list[Any]:
    prefix, _, timer_id = member.partition(":")
    order = f"{prefix} {timer_id} error {due} -\n{spec}\n"
    root = foreign.where(member)[0]
    code, *answer = await foreign.call("arm", root, "an epoch 2", "2", "0", "", order)
    if code == b"foreign":
        await foreign.found(root, "an epoch")
        code, *answer = await foreign.call("arm", root, "an epoch 2", "2", "0", "", order)
    return [code, *answer]


async def test_a_timer_of_a_foreign_client_is_a_timer_like_any_other(sharded: Store, foreign: Foreign) -> None:
    """It is armed by the document's example."""
    (words,) = [shlex.split(line)[6:] for line in PROTOCOL.splitlines() if line.startswith("EVAL <the text of arm>")]
    root, wake, stamp, *arguments = (word.replace("\\n", "\n") for word in words)
    assert (root, wake) == ("timers:{0}:", "timers:wake:0")
    root = foreign.where("reminder:user-42")[0]
    await foreign.found(root, stamp.partition(" ")[0])
    code, told = await foreign.call("arm", root, stamp, *arguments)
    head, (spec, progress) = await foreign.record("reminder:user-42")
    assert (code, spec, progress) == (b"created", '{"payload":1}', "")
    due, created = map(int, told.split())
    assert head == (b"2 ", b"s", 1, 0, 0, 1, 0, created, due)
    (timer,) = await sharded.get([("reminder", "user-42")])
    assert timer is not None
    assert (timer.status, timer.payload) == (Status.SCHEDULED, 1)
    assert timer.due_ms - timer.created_ms == 86_400_000


async def test_a_foreign_client_reads_what_the_service_has_done(sharded: Store, foreign: Foreign) -> None:
    member = "reminder:user-1"
    shard = sharded.shard_of("reminder", "user-1")
    await arm(foreign, member, "+0", '{"payload":{"a":"ä"}}')
    await sharded.identity.refresh()
    (timer,) = (
        await sharded.claim(
            shard, [("reminder", 1)], pod="pod-1", lease_ms=9000, cause="event", processors={"reminder": "log"}
        )
    ).timers
    await sharded.settle(shard, [an_end(timer, note="sent it")], pod="pod-1", retention_ms=1000)
    head, (spec, progress, started, ended) = await foreign.record(member)
    assert head == (b"2 ", b"c", 3, 1, 0, 1, timer.token, timer.created_ms, timer.created_ms)
    assert (json.loads(spec), progress) == ({"payload": {"a": "ä"}}, "")
    assert re.fullmatch(r"\d{13} r 1 pod-1 \d+ log event", started)
    assert re.fullmatch(r"\d{13} c 1 pod-1 - - completed sent it", ended)


async def test_a_foreign_client_cancels(sharded: Store, foreign: Foreign) -> None:
    member = "reminder:user-7"
    await arm(foreign, member, "+86400000", "{}")
    root = foreign.where(member)[0]
    code, record = await foreign.call("cancel", root, "0", "reminder", "user-7", "", "")
    assert (code, record[:3]) == (b"cancelled", b"2 x")
    code, record = await foreign.call("cancel", root, "0", "reminder", "none", "", "")
    assert (code, record) == (b"missing", None)


async def test_a_foreign_pod_runs_a_timer(sharded: Store, foreign: Foreign) -> None:
    member = "reminder:user-3"
    await arm(foreign, member, "+0", "{}")
    root = foreign.where(member)[0]
    next_look, due, go_on, lost = await foreign.call("touch", root, "500", "0")
    assert (due[0], go_on, lost) == (b"reminder", 0, 0)
    assert await foreign.call("orphans", root, "500", "0") == [[], 0]
    queue = "reminder remind 10"
    more, claimed, bad, denied, newer = await foreign.call("claim", root, "pod-x", "30000", "event", "", queue)
    assert (more, bad, denied, newer, claimed[:2]) == ([], [], [], [], [b"reminder", b"user-3"])
    form, _, version, *counts, token, created, due = HEAD.unpack(claimed[2][:43])
    assert await foreign.call("extend", root, "pod-x", "30000", "reminder", "user-3", str(token)) == [[], 1]
    record = HEAD.pack(form, b"c", version + 1, *counts, token, created, due) + claimed[2][43:]
    end = b"reminder user-3 - c 1 pod-x 1+0+20 - completed sent\n" + record
    assert await foreign.call("settle", root, "", end) == [b"settled"]
    assert await foreign.call("settle", root, "", end) == [b"already"]
    (ended,) = await sharded.get([("reminder", "user-3")])
    assert ended is not None
    assert [entry.note for entry in ended.history] == ["sent", "event", "created"]
    assert ended.history[0].run_ms == 20
    assert next_look == b"" or int(next_look) > 0


async def test_a_foreign_pod_starts_no_more_of_a_limited_prefix_than_it_may(foreign: Foreign) -> None:
    root = "timers:{limits:reminder}:"
    n, wait_ms, (permit,) = await foreign.call("reserve", root, "pod-x", "30000", "1", "1000", "5", "10")
    assert (n, wait_ms, permit.split(b" ")[0]) == (1, 0, b"pod-x")
    assert (await foreign.call("reserve", root, "pod-y", "30000", "1", "1000", "5", "10"))[0] == 0
    assert await foreign.call("keep", root, "30000", permit.decode()) == []
    assert await foreign.call("release", root, "0", permit.decode()) == []
    assert (await foreign.call("reserve", root, "pod-y", "30000", "1", "1000", "5", "10"))[0] == 1


def test_the_bucket_in_the_document_is_right() -> None:
    assert Foreign(Redis()).where("reminder:user-42")[1].endswith(":rec:9f")
    assert "field `reminder:user-42` of `timers:{0}:rec:9f`" in PROTOCOL


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_document_has_every_script_with_its_arguments_and_its_answer(script: str) -> None:
    assert re.search(rf"^\| `{script}` \|[^|]*\| [^|]+ \|$", PROTOCOL, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_code_of_a_script_is_in_the_document(script: str) -> None:
    """Codes are the quoted words that a script returns."""
    source = PATHS[script].read_text()
    returned = re.findall(r"(?:return (?:\{now_text, )?|code = )'([a-z]+)'", source)
    assert all(f"`{code}`" in PROTOCOL for code in returned), returned


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_begins_with_its_flags_and_what_it_does(script: str) -> None:
    assert re.match(r"#!lua( flags=[a-z,-]+)?\n-- [A-Z]", PATHS[script].read_text())


def test_every_key_that_is_built_is_in_the_document() -> None:
    sources = "".join(path.read_text() for path in PATHS.values())
    for kind in set(re.findall(r"root \.\. '([a-z]+)", sources)):
        assert re.search(rf"`(R|timers:\{{\S+\}}):{kind}", PROTOCOL), kind


@pytest.mark.parametrize("name", sorted(PATHS))
def test_no_script_makes_code_of_data(name: str) -> None:
    """Python's sources are held to this by the linter."""
    text = PATHS[name].read_text("utf-8")
    assert not [word for word in ("loadstring", "load(", "dofile", "cjson", "cmsgpack") if word in text]
    assert set(re.findall(r"struct\.\w+\([^,]*", text)) <= {"struct.pack(HEAD", "struct.unpack(HEAD"}
