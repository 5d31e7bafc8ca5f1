"""`timers dev` and `timers serve` as processes: what they print and serve, and how they end."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientConnectionError, ClientSession
from redis import Redis

from tests.cli.commands import Process
from tests.install.environment import ROOT
from tests.servers import start_server
from tests.waiting import eventually
from timers.app import stopped_by_signals
from timers.client import TimerClient
from timers.core.model import Timer
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

OURS = {"TIMERS_PROCESSORS": "tests.cli.processors_for_pods", "TIMERS_HTTP_PORT": "0", "TIMERS_LOG_FORMAT": "json"}


async def url_of(process: Process) -> str:
    """The URL of the pod's API, once it listens."""

    async def look() -> re.Match[str] | None:
        assert process.alive, process.err
        return re.search(r"http://127\.0\.0\.1:\d+", process.out + process.err)

    return (await eventually(look, "the pod tells its address"))[0]


async def until_ready(url: str) -> None:
    async with ClientSession() as session:

        async def look() -> bool:
            async with session.get(f"{url}/readyz") as answer:
                return answer.status == 200

        await eventually(look, "the pod is ready")


async def until_status(client: TimerClient, prefix: str, status: str) -> Timer:
    async def look() -> Timer | None:
        timer = await client.get(prefix, "one")
        return timer if timer.status == status else None

    return await eventually(look, f"{prefix}:one is {status}")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_dev_runs_everything_and_its_curl_line_works(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {**OURS, "TIMERS_DATA_DIR": str(data)}
    dev = start("dev", **settings)
    url = await url_of(dev)
    await until_ready(url)
    assert str(data) in dev.out
    assert re.search(r"(redis|valkey) \d+\.\d+", dev.out)
    (curl,) = [line for line in dev.out.splitlines() if line.strip().startswith("curl")]
    words = shlex.split(curl)
    async with ClientSession() as session:
        body, address = words[words.index("-d") + 1], next(word for word in words if word.startswith("http"))
        name, _, value = words[words.index("-H") + 1].partition(": ")
        async with session.post(address, data=body, headers={name: value}) as answer:
            assert answer.status == 201
            made = await answer.json()

    # Another terminal reaches the same server through the data folder.
    got = start("get", made["prefix"], made["id"], "-o", "json", **settings).end()
    assert got.json["id"] == made["id"]
    (message,) = await eventually(lambda: _files(data / "outbox"), "the message is in the outbox")
    assert json.loads(message.read_text())["to"] == json.loads(body)["payload"]["email"]

    server_pid = int((data / "server" / "server.lock").read_text())
    dev.signal(signal.SIGINT)
    assert dev.end().code == 0
    assert gone(server_pid)
    assert "TIMERS_REDIS_URL" in start("get", "send-message", "x", **settings).end().refusal()

    # What was armed before the restart is still there.
    again = start("dev", **settings)
    await until_ready(await url_of(again))
    kept = start("get", made["prefix"], made["id"], "-o", "json", **settings).end()
    assert kept.json["status"] == "completed"
    assert f"written to {message}, not sent" in [entry["note"] for entry in kept.json["history"]]
    again.signal(signal.SIGTERM)
    assert again.end().code == 0


async def _files(folder: Path) -> list[Path]:
    return list(folder.glob("*.json"))


@pytest.mark.parametrize("removed", [True, False])
async def test_dev_says_that_its_data_folder_is_gone(start: Start, tmp_path: Path, removed: bool) -> None:
    """As by `git clean`. It went on as if nothing had happened, and all was lost when it stopped."""
    data = tmp_path / "data"
    dev = start("dev", **OURS, TIMERS_DATA_DIR=str(data))
    await until_ready(await url_of(dev))
    if removed:
        shutil.rmtree(data)
    else:
        data.rename(tmp_path / "elsewhere")
    await eventually(_said(dev, "the data folder was removed or moved"), "it says so")
    dev.signal(signal.SIGTERM)
    assert dev.end().code == 0


async def test_dev_with_a_url_starts_nothing(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    redis.ping()
    data = tmp_path / "data"
    dev = start("dev", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_DATA_DIR=str(data))
    await until_ready(await url_of(dev))
    assert redis.exists("timers:{pods}:seen")
    assert not data.exists()
    dev.signal(signal.SIGTERM)
    assert dev.end().code == 0


async def test_dev_with_a_mail_server_does_not_say_that_it_writes_messages_to_a_folder(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.ping()
    mail = {"TIMERS_SMTP_URL": "smtp://127.0.0.1:9", "TIMERS_MAIL_FROM": "shop@example.org"}
    dev = start("dev", **OURS, **mail, TIMERS_REDIS_URL=server.url)
    await until_ready(await url_of(dev))
    assert "TIMERS_SMTP_URL" in dev.out
    assert "written to" not in dev.out
    dev.signal(signal.SIGTERM)
    assert dev.end().code == 0


async def test_serve_writes_nothing_but_data_to_stdout(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    redis.ping()
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url)
    await until_ready(await url_of(pod))
    async with TimerClient(server.url) as client:
        assert [each.roles for each in await client.pods()] == [("api", "worker")]
    pod.signal(signal.SIGTERM)
    ended = pod.end()
    assert (ended.code, ended.out) == (0, "")
    loud = [line for line in ended.err.splitlines() if json.loads(line)["level"] != "info"]
    assert [line for line in loud if "event loop" not in line] == []  # a busy machine may block that


async def test_an_api_pod_arms_what_a_worker_pod_runs(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    redis.ping()
    plain = {**OURS, "TIMERS_REDIS_URL": server.url, "TIMERS_PROCESSORS": ""}
    api = start("serve", "--roles", "api", **plain)
    url = await url_of(api)
    await until_ready(url)
    due_now = {"prefix": "hold", "id": "one", "delay": 0}
    async with ClientSession() as session:
        async with session.post(f"{url}/v1/timers", json=due_now) as answer:
            assert answer.status == 422
        worker = start("serve", "--roles", "worker", **{**OURS, "TIMERS_REDIS_URL": server.url})

        async def armed() -> bool:
            async with session.post(f"{url}/v1/timers", json=due_now) as answer:
                return answer.status == 201

        await eventually(armed, "the worker's prefixes are known")
    async with TimerClient(server.url) as client:
        await until_status(client, "hold", "running")
        assert sorted(pod.roles for pod in await client.pods()) == [("api",), ("worker",)]
        api.signal(signal.SIGTERM)
        assert api.end().code == 0
        assert [pod.roles for pod in await client.pods()] == [("worker",)]
    assert "http://" not in worker.err


NOHUP: Final = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
STOPS: Final = (
    pytest.param([signal.SIGTERM], id="after the drain time"),
    pytest.param([signal.SIGTERM, signal.SIGTERM], id="at once on the second signal"),
    pytest.param(
        [signal.SIGHUP], id="with its terminal", marks=pytest.mark.skipif(NOHUP, reason="a pod ignores it, too")
    ),
)


@pytest.mark.parametrize("signals", STOPS)
async def test_a_stopped_pod_hands_back_what_it_runs(
    start: Start, server: EmbeddedServer, redis: Redis, signals: list[signal.Signals]
) -> None:
    redis.ping()
    drain = "1h" if len(signals) == 2 else "50ms"
    pod = start("serve", "--roles", "worker", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_DRAIN_TIMEOUT=drain)
    async with TimerClient(server.url) as client:
        await eventually(lambda: client.owner("hold"), "the pod has declared its processors")
        await client.create("hold", "one", delay=0)
        await until_status(client, "hold", "running")
        pod.signal(signals[0])
        await eventually(_said(pod, "stopping"), "the first signal is heard")
        for number in signals[1:]:
            assert pod.alive
            pod.signal(number)
        assert (await asyncio.to_thread(pod.end)).code == 0
        timer = await client.get("hold", "one")
    assert (timer.status, timer.failures, timer.lease) == ("scheduled", 0, None)
    assert redis.zcard("timers:{pods}:seen") == 0


def _said(pod: Process, event: str) -> Callable[[], Any]:
    async def look() -> bool:
        return event in pod.err

    return look


async def test_each_further_signal_asks_for_more() -> None:
    stopped, hurried = asyncio.Event(), asyncio.Event()

    async def main() -> None:
        with stopped_by_signals() as stopping:
            stopping.hurry = hurried.set
            os.kill(os.getpid(), signal.SIGTERM)
            await stopping.asked.wait()
            assert not hurried.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            await hurried.wait()
            stopped.set()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(main())
    assert stopped.is_set()


async def test_a_signal_ends_a_pod_whose_processor_does_not_open(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    redis.ping()
    (tmp_path / "waiting.py").write_text(
        "import asyncio, contextlib, sys\nfrom timers import processor\n\n"
        "@contextlib.asynccontextmanager\nasync def lifespan():\n    print('opening', file=sys.stderr)\n"
        "    await asyncio.Event().wait()\n    yield\n\n"
        "@processor('note', lifespan=lifespan)\nasync def note(timer, context): ...\n"
    )
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "TIMERS_PROCESSORS": "waiting", "TIMERS_HTTP_PORT": "0"}
    pod = start("serve", **path, TIMERS_REDIS_URL=server.url)
    await eventually(_said(pod, "opening"), "the lifespan opens")
    pod.signal(signal.SIGTERM)
    ended = await asyncio.to_thread(pod.end)
    assert (ended.code, '"ready"' in ended.err) == (0, False)
    assert redis.zcard("timers:{pods}:seen") == 0


async def test_a_function_that_hangs_in_its_thread_keeps_no_pod_alive(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.ping()
    pod = start("serve", "--roles", "worker", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_DRAIN_TIMEOUT="50ms")
    async with TimerClient(server.url) as client:
        await eventually(lambda: client.owner("hang"), "the pod has declared its processors")
        await client.create("hang", "one", delay=0)
        await until_status(client, "hang", "running")
        pod.signal(signal.SIGTERM)
        assert (await asyncio.to_thread(pod.end)).code == 0
        assert (await client.get("hang", "one")).status == "scheduled"


@pytest.mark.parametrize("roles", ["api", "worker", "api,worker"])
async def test_a_pod_that_ends_runs_what_atexit_registered(
    start: Start, server: EmbeddedServer, redis: Redis, roles: str, tmp_path: Path
) -> None:
    """An API pod left it out: a thread that had prepared the pages was idle."""
    redis.ping()
    (tmp_path / "leaving.py").write_text(
        "import atexit, sys\nfrom tests.cli.processors_for_pods import hold\n"
        "atexit.register(lambda: print('left', file=sys.stderr))\n"
    )
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "TIMERS_PROCESSORS": "leaving:hold", "TIMERS_HTTP_PORT": "0"}
    pod = start("serve", "--roles", roles, **path, TIMERS_REDIS_URL=server.url)
    await eventually(_said(pod, "ready"), "the pod has started")
    pod.signal(signal.SIGTERM)
    ended = await asyncio.to_thread(pod.end)
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "left")


class WithoutStreams(Process):
    """As under a supervisor that closes stdin and stdout."""

    program = ("sh", "-c", 'exec "$0" -m timers "$@" <&- >&-', sys.executable)


async def test_a_pod_without_standard_streams_ends_in_order(
    server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    """Its event loop got their numbers, and uvloop aborted the process when it ended."""
    redis.ping()
    pod = WithoutStreams(tmp_path, "serve", **OURS, TIMERS_REDIS_URL=server.url)
    try:
        await eventually(_said(pod, "ready"), "the pod has started")
        pod.signal(signal.SIGTERM)
        assert (await asyncio.to_thread(pod.end)).code == 0
    finally:
        pod.kill()


class WithFewFiles(Process):
    """As under `ulimit -n 256`."""

    program = ("sh", "-c", 'ulimit -n 256 && exec "$0" -m timers "$@"', sys.executable)


async def test_a_pod_with_few_file_descriptors_serves(server: EmbeddedServer, redis: Redis, tmp_path: Path) -> None:
    """With 256 it refused every connection, and was never ready."""
    redis.ping()
    pod = WithFewFiles(tmp_path, "serve", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_PROBE_PORT="0")
    held = list[asyncio.StreamWriter]()
    try:
        url = await url_of(pod)
        await until_ready(url)
        port = int(url.rpartition(":")[2])
        for _ in range(200):
            held.append((await asyncio.open_connection("127.0.0.1", port))[1])
        (probes,) = set(re.findall(r"http://127\.0\.0\.1:\d+", pod.out + pod.err)) - {url}
        await until_ready(probes)
        async with TimerClient(server.url) as client:
            await client.create("log", "one", delay=0)
            await until_status(client, "log", "completed")
        for writer in held:
            writer.close()
        await until_ready(url)
    finally:
        pod.kill()


async def test_a_pod_without_a_free_file_descriptor_ends_its_runs(
    server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    """It read a script when it needed it first."""
    redis.ping()
    pod = WithFewFiles(tmp_path, "serve", **OURS, TIMERS_REDIS_URL=server.url)
    try:
        await until_ready(await url_of(pod))
        async with TimerClient(server.url) as client:
            await client.create("leak", "one", delay=0)
            await until_status(client, "leak", "completed")
    finally:
        pod.kill()


async def test_a_sys_exit_in_a_task_of_a_processor_ended_the_pod(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.ping()
    pod = start("serve", "--roles", "worker", **OURS, TIMERS_REDIS_URL=server.url)
    async with TimerClient(server.url) as client:
        await eventually(lambda: client.owner("leave"), "the pod has declared its processors")
        for _ in range(2):
            await client.create("leave", "one", delay=0, if_exists="replace")
            failed = await until_status(client, "leave", "failed")
            assert failed.last_error is not None
            assert (failed.last_error["type"], failed.last_error["reason"]) == ("SystemExit", "3")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0


def test_a_port_in_use_is_named(start: Start, server: EmbeddedServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pod = start("serve", TIMERS_REDIS_URL=server.url, TIMERS_HTTP_PORT=str(port))
        line = pod.end().refusal()
    assert "TIMERS_HTTP_PORT" in line
    assert str(port) in line


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"TIMERS_REDIS_URL": "redis://127.0.0.1:1/0"}, "TIMERS_REDIS_URL"),
        ({}, "TIMERS_REDIS_URL"),
        ({"TIMERS_REDIS_URL": "redis+cluster://127.0.0.1:1"}, "TIMERS_REDIS_URL"),
        ({"TIMERS_PROCESSORS": "no.such.module"}, "TIMERS_PROCESSORS"),
        ({"TIMERS_WEBHOOK_TARGETS": "log=https://example.org"}, "TIMERS_WEBHOOK_TARGETS: 'log' is not accepted"),
        ({"TIMERS_PREFIXES": "nope"}, "TIMERS_PREFIXES: 'nope' is not accepted"),
        ({"TIMERS_HTTP_HOST": "host.invalid", "TIMERS_INSECURE": "1"}, "TIMERS_HTTP_HOST"),
        ({"TIMERS_HTTP_HOST": "0.0.0.0"}, "TIMERS_API_KEYS"),
        ({"TIMERS_SHARD_SUBSET": "5"}, "TIMERS_SHARD_SUBSET"),
        ({"TIMERS_SHARDS": "7"}, "TIMERS_SHARDS"),
        ({"TIMERS_FORMAT": "9"}, "TIMERS_FORMAT: 9 is not accepted; expected a number from 1 to 2"),
        ({"TIMERS_COLOUR": "blue"}, "TIMERS_COLOUR"),
        ({"TIMERS_LEDGER_URL": "ledger.db"}, "TIMERS_LEDGER_URL: the given value is not accepted; expected postgresql"),
    ],
)
def test_an_unusable_setting_at_startup_is_one_line(
    start: Start, server: EmbeddedServer, redis: Redis, settings: dict[str, str], named: str
) -> None:
    redis.hset("timers:meta", mapping={"format": "1", "shards": "1", "epoch": "e", "armed": "1"})
    reached = ("HTTP_HOST", "SHARD_SUBSET", "SHARDS", "FORMAT", "PROCESSORS", "PREFIXES", "WEBHOOK_TARGETS")
    url = {"TIMERS_REDIS_URL": server.url} if {f"TIMERS_{name}" for name in reached} & set(settings) else {}
    port = {"TIMERS_HTTP_PORT": "0" if "TIMERS_HTTP_PORT" not in settings else ""}
    pod = start("serve", **{"TIMERS_START_TIMEOUT": "300ms", **port, **url, **settings})
    assert named in pod.end().refusal()


async def test_a_pod_that_starts_while_redis_is_away_lives_waits_and_then_serves(start: Start, tmp_path: Path) -> None:
    away = await start_server("redis", tmp_path / "server")
    await away.stop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = {**OURS, "TIMERS_REDIS_URL": away.url, "TIMERS_HTTP_PORT": url.rpartition(":")[2]}
    pod = start("serve", **settings, TIMERS_START_TIMEOUT="1h")
    async with ClientSession(url) as session:

        async def asked(method: str, path: str) -> tuple[int, Any] | None:
            try:
                async with session.request(method, path) as answer:
                    return answer.status, await answer.json()
            except ClientConnectionError:
                return None

        alive = await eventually(lambda: asked("GET", "/healthz"), "the pod lives")
        assert alive == (200, {"status": "ok"})
        status, unready = await asked("GET", "/readyz") or (0, {})
        assert (status, unready["ready"]) == (503, False)
        assert "has not reached Redis yet" in unready["detail"]
        async with session.get("/metrics") as answer:
            assert answer.status == 200
            assert '\ntimers_redis_up{server=""} 0.0\n' in await answer.text()
        status, refused = await asked("POST", "/v1/timers") or (0, {})
        assert (status, refused["type"]) == (503, "urn:timers:problem:unavailable")
        assert refused["detail"].endswith("nothing was done")
        server = await start_server("redis", tmp_path / "server")
        assert server.url == away.url

        async def serves() -> bool:
            return (await asked("GET", "/readyz") or (0,))[0] == 200

        await eventually(serves, "the pod is ready")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0
    await server.stop()


def test_a_pod_that_never_reaches_redis_ends_with_one_line_that_says_how_long_it_tried(start: Start) -> None:
    settings = {"TIMERS_REDIS_URL": "redis://127.0.0.1:1/0", "TIMERS_HTTP_PORT": "0", "TIMERS_START_TIMEOUT": "300ms"}
    line = start("serve", **settings).end().refusal()
    assert "TIMERS_REDIS_URL: redis://127.0.0.1:1/0 cannot be used" in line
    assert "TIMERS_START_TIMEOUT" in line


async def test_a_message_that_only_went_to_a_folder_does_not_count_as_sent(
    start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    """Under `timers serve` it fails, unless TIMERS_OUTBOX asks for the folder; then the doctor warns."""
    redis.ping()
    settings = {**OURS, "TIMERS_REDIS_URL": server.url, "TIMERS_DATA_DIR": str(tmp_path / "data")}
    for outbox, status in (None, "failed"), (tmp_path / "outbox", "completed"):
        pod = start("serve", **settings, **({} if outbox is None else {"TIMERS_OUTBOX": str(outbox)}))
        await until_ready(await url_of(pod))
        async with TimerClient(server.url) as client:
            await client.create("send-message", "one", delay=0, payload={"email": "a@b"}, if_exists="replace")
            timer = await until_status(client, "send-message", status)
        found = {check["check"]: check for check in start("doctor", "-o", "json", **settings).end().json}
        pod.signal(signal.SIGTERM)
        assert (await asyncio.to_thread(pod.end)).code == 0
        said = " ".join(entry.note or "" for entry in timer.history)
        if outbox is None:
            assert "TIMERS_SMTP_URL is not set on this pod" in str(timer.last_error)
            assert found["messages"]["level"] == "ok"
            assert not (tmp_path / "data").exists()
        else:
            assert re.search(rf"written to {outbox}/\S+, not sent", said)
            assert (found["messages"]["level"], str(outbox) in found["messages"]["said"]) == ("warn", True)
            assert len(await _files(outbox)) == 1


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    start: Start, server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "outbox").touch()
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_OUTBOX=str(tmp_path / "outbox"))
    assert "TIMERS_OUTBOX: '" in pod.end().refusal()


async def test_a_limited_pod_reports_only_what_it_runs(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    redis.ping()
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_PREFIXES="hold-long,log")
    url = await url_of(pod)
    await until_ready(url)
    async with ClientSession() as session:
        wish = {"prefix": "send-message", "id": "one", "delay": 0}
        async with session.post(f"{url}/v1/timers", json=wish) as answer:
            assert answer.status == 422
            assert "(hold, log)" in (await answer.json())["detail"]
    async with TimerClient(server.url) as client:
        (shown,) = [each.to_json() for each in await client.pods()]
        assert (shown["serves"], shown["only"]) == (["hold", "log"], ["hold-long", "log"])
    (started,) = [line for line in map(json.loads, pod.err.splitlines()) if line["event"] == "worker started"]
    assert started["processors"] == ["hold", "log"]
    pod.signal(signal.SIGTERM)
    assert pod.end().code == 0


async def test_a_pod_that_runs_no_timers_may_be_limited_to_what_others_run(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.ping()
    pod = start("serve", "--roles", "api", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_PREFIXES="nope")
    await until_ready(await url_of(pod))
    pod.signal(signal.SIGTERM)
    assert pod.end().code == 0


async def test_under_a_retention_of_0_a_cancelled_timer_is_gone_with_its_answer(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.hset("timers:{pods}:declared", "hold", "1 before")
    settings = {**OURS, "TIMERS_REDIS_URL": server.url, "TIMERS_RETENTION": "0"}
    pod = start("serve", "--roles", "api", **settings)
    url = await url_of(pod)
    await until_ready(url)
    one = f"{url}/v1/timers/hold/one"
    async with ClientSession() as session:
        async with session.put(one, json={"delay": "1h"}) as answer:
            assert answer.status == 201
        async with session.delete(one) as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "cancelled")
        async with session.get(one) as answer:
            assert answer.status == 404
        async with session.put(one, json={"delay": "1h"}) as answer:
            assert answer.status == 201
    cancelled = start("cancel", "hold", "one", "-o", "json", **settings).end()
    assert cancelled.json["status"] == "cancelled"
    assert not redis.exists("timers:{0}:counts")
    pod.signal(signal.SIGTERM)
    assert pod.end().code == 0


def test_unknown_roles_are_wrong_usage(start: Start) -> None:
    ended = start("serve", "--roles", "api,cook").end()
    assert (ended.code, ended.out) == (2, "")
    assert "cook" in ended.err
