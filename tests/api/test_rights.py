"""Every call with every right: what a key may do, what it may not, and that other keys' prefixes look empty to it."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any, Final, get_args

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, Reply, running_api
from tests.api.keyed import new_key
from tests.members import announce
from timers.access import RIGHTS, ApiKey, Right, make_key
from timers.api import stream
from timers.api.operations import OPERATIONS, Operation
from timers.api.server import listening, probe_application
from timers.core.model import Status, Timer
from timers.embedded import EmbeddedServer
from timers.processor import Context, processor

OWN, OTHER = "mine", "theirs"
CALLS: Final = [operation for operation in OPERATIONS if operation.right is not None]
PUBLIC: Final = [operation for operation in OPERATIONS if operation.right is None]

BODIES: Final[Mapping[str, Any]] = {
    "createTimer": {"prefix": "PREFIX", "id": "new", "delay": "1h"},
    "putTimer": {"delay": "1h"},
    "changeTimer": {"payload": "changed"},
    "createTimers": {"timers": [{"prefix": "PREFIX", "id": "new", "delay": "1h"}]},
    "actOnTimers": {"action": "cancel", "filter": {"prefix": "PREFIX"}},
}
"""What each call that takes a body is sent."""


@processor("mine")
async def mine(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


@processor("theirs")
async def theirs(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


def keys_of_each_right() -> Iterator[tuple[Right, str, ApiKey]]:
    for right in RIGHTS:
        secret, kept = make_key([OWN], [right])
        yield right, secret, kept


KEYS: Final = list(keys_of_each_right())
SECRETS: Final = {right: secret for right, secret, _ in KEYS}
ALL_SECRET, ALL_KEY = make_key(["*"], RIGHTS)
ENTRIES: Final = " ".join([*(kept.entry for _, _, kept in KEYS), ALL_KEY.entry])


@pytest.fixture
async def guarded(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    async with running_api(server.url, [mine, theirs], keys=ENTRIES) as api:
        for prefix in (OWN, OTHER):
            await api.client.create(prefix, "one", delay="1h", payload="kept")
        yield api


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def filled(value: Any, prefix: str) -> Any:
    """The body with the prefix put in for its placeholder."""
    if isinstance(value, dict):
        return {name: filled(inner, prefix) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, prefix) for inner in value]
    return prefix if value == "PREFIX" else value


async def send(api: Api, operation: Operation, prefix: str, headers: Mapping[str, str], timer_id: str = "one") -> Reply:
    """Make the call for a prefix. Of a stream, only the head is read."""
    path = operation.path.format(prefix=prefix, id=timer_id)
    body = filled(BODIES.get(operation.id), prefix)
    async with api.session.request(operation.method, api.server.url + path, json=body, headers=headers) as response:
        known = response.headers.get("Content-Type", "").split(";")[0] in (
            "application/json",
            "application/problem+json",
        )
        return Reply(response.status, response.headers, await response.json() if known else None)


async def test_the_table_is_complete_and_every_call_has_a_body_to_try() -> None:
    assert {operation.id for operation in CALLS if operation.body} == set(BODIES)
    assert {operation.right for operation in CALLS} == set(get_args(Right)) == set(RIGHTS)
    assert {operation.path for operation in PUBLIC} == {
        *("/healthz", "/readyz", "/openapi.json", "/docs"),
        *("/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js"),
    }


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.id)
async def test_a_call_on_an_own_prefix_needs_its_right(guarded: Api, operation: Operation, right: Right) -> None:
    reply = await send(guarded, operation, OWN, bearer(SECRETS[right]))
    if right != operation.right or operation.id in ("getMetrics", "acknowledgeLosses"):
        reply.problem(403, "forbidden")
    elif operation.id == "retryTimer":
        reply.problem(409, "not-scheduled")
    else:
        assert reply.status in (200, 201, 204), reply


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.id)
async def test_a_key_with_all_rights_may_make_every_call(guarded: Api, operation: Operation) -> None:
    reply = await send(guarded, operation, OTHER, bearer(ALL_SECRET))
    assert reply.status == 409 if operation.id == "retryTimer" else reply.status in (200, 201, 204), reply


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize(
    "operation", [operation for operation in CALLS if "{prefix}" in operation.path], ids=lambda operation: operation.id
)
async def test_anothers_prefix_is_answered_like_nothing_under_every_right(
    guarded: Api, operation: Operation, right: Right
) -> None:
    there = await send(guarded, operation, OTHER, bearer(SECRETS[right]))
    nowhere = await send(guarded, operation, OTHER, bearer(SECRETS[right]), timer_id="two")
    unknown = await send(guarded, operation, "nobodys", bearer(SECRETS[right]))
    there.problem(404, "timer-not-found")
    assert alike(there) == alike(nowhere) == alike(unknown)
    await assert_untouched(guarded)


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_a_timer_of_another_key_looks_like_a_missing_one(guarded: Api, method: str) -> None:
    headers = bearer(SECRETS["read" if method == "GET" else "write"])
    body = {"payload": 1} if method == "PATCH" else None
    missing = await guarded.call(method, f"/v1/timers/{OWN}/missing", body, headers=headers)
    hidden = await guarded.call(method, f"/v1/timers/{OTHER}/one", body, headers=headers)
    assert hidden.body["detail"] == f"timer {OTHER}:one does not exist"
    assert alike(missing) == alike(hidden)


def alike(reply: Reply) -> tuple[int, dict[str, str], set[str]]:
    """An answer without the names that the caller gave and without what differs between requests."""
    body = {name: value for name, value in reply.body.items() if name not in ("detail", "request_id")}
    return reply.status, body, set(reply.headers)


async def assert_untouched(api: Api) -> None:
    timers = (await api.client.list(prefix=OTHER)).items
    assert [(timer.id, timer.version, timer.payload) for timer in timers] == [("one", 1, "kept")]
    paused = [view.prefix for view in await api.client.prefixes() if view.paused]
    assert paused == []


async def test_a_create_elsewhere_is_refused_whatever_the_body_says(guarded: Api) -> None:
    write = bearer(SECRETS["write"])
    body = {"prefix": OTHER, "id": "one", "delay": "1h", "if_exists": "replace"}
    refused = (await guarded.call("POST", "/v1/timers", body, headers=write)).problem(404, "timer-not-found")
    assert refused["detail"] == f"there is nothing of the prefix '{OTHER}' that this caller may touch"
    for extra in ({"rights": ["write"]}, {"key": "x"}, {"scope": "*"}):
        assert (await guarded.call("POST", "/v1/timers", {**body, **extra}, headers=write)).status == 422
    await assert_untouched(guarded)


async def test_each_timer_of_a_batch_is_looked_at(guarded: Api) -> None:
    timers = [{"prefix": prefix, "id": "b", "delay": "1h"} for prefix in (OWN, OTHER, OWN + "x")]
    reply = await guarded.call("POST", "/v1/timers/batch", {"timers": timers}, headers=bearer(SECRETS["write"]))
    assert [result["status"] for result in reply.body["results"]] == [201, 404, 404]
    await assert_untouched(guarded)


async def test_lists_stats_and_prefixes_show_only_own_prefixes(guarded: Api) -> None:
    read = bearer(SECRETS["read"])
    listed = (await guarded.call("GET", "/v1/timers", headers=read)).body["items"]
    assert {timer["prefix"] for timer in listed} == {OWN}
    assert (await guarded.call("GET", f"/v1/timers?prefix={OTHER}", headers=read)).body["items"] == []
    stats = (await guarded.call("GET", "/v1/stats", headers=read)).body
    assert set(stats["by_prefix"]) == {OWN}
    assert sum(stats["by_status"].values()) == 1
    shown = (await guarded.call("GET", "/v1/prefixes", headers=read)).body["items"]
    assert OTHER not in {view["prefix"] for view in shown}


async def test_a_prefix_that_nobody_serves_is_refused_without_the_names_of_others(
    server: EmbeddedServer, redis: Redis
) -> None:
    await redis.ping()
    (secret, kept), (every, all_kept) = make_key(["mine*"], RIGHTS), make_key(["*"], RIGHTS)
    new = {"prefix": "minework", "delay": "1h"}
    async with running_api(server.url, [mine, theirs], keys=f"{kept.entry} {all_kept.entry}") as api:
        for path, body in (("/v1/timers", new), ("/v1/timers/batch", {"timers": [new]})):
            for key, names in ((secret, "(mine)"), (every, "(mine, theirs)")):
                text = str((await api.call("POST", path, body, headers=bearer(key))).body)
                assert f"a prefix that a processor serves {names}" in text


async def test_a_cursor_of_anothers_list_opens_nothing(guarded: Api) -> None:
    await guarded.client.create(OTHER, "two", delay="2h")
    page = await guarded.client.list(prefix=OTHER, limit=1)
    assert page.next_cursor is not None
    reply = await guarded.call("GET", f"/v1/timers?cursor={page.next_cursor}", headers=bearer(SECRETS["read"]))
    assert [timer for timer in reply.body["items"] if timer["prefix"] == OTHER] == []


@pytest.mark.parametrize("action", ["cancel", "purge", "retry"])
@pytest.mark.parametrize("wanted", [{"prefix": OTHER}, {"due_after": 0}])
async def test_an_action_reaches_only_own_prefixes(guarded: Api, action: str, wanted: dict[str, Any]) -> None:
    body = {"action": action, "filter": wanted}
    reply = await guarded.call("POST", "/v1/timers/actions", body, headers=bearer(SECRETS["write"]))
    assert reply.status == 200, reply
    await assert_untouched(guarded)


async def test_events_tell_only_of_own_prefixes(guarded: Api) -> None:
    headers = bearer(SECRETS["read"])
    async with guarded.session.get(guarded.server.url + "/v1/events", headers=headers) as stream:
        assert b"\nevent: open\n" in await stream.content.readuntil(b"\n\n")
        await guarded.client.create(OTHER, "seen", delay="1h")
        await guarded.client.create(OWN, "seen", delay="1h")
        first = await stream.content.readuntil(b"\n\n")
    assert b'"prefix":"mine"' in first
    assert b"theirs" not in first


async def test_a_guess_of_anothers_change_is_not_confirmed_by_its_event_id(guarded: Api, redis: Redis) -> None:
    """Nor is it by the id of the newest change, which each listener is told."""
    url, headers = guarded.server.url + "/v1/events", bearer(SECRETS["read"])
    async with redis.pubsub() as eavesdropper:
        await eavesdropper.psubscribe("timers:events:*")
        assert await eavesdropper.get_message(timeout=None) is not None
        async with guarded.session.get(url, headers=headers) as stream:
            await stream.content.readuntil(b"event: open\n")
            await guarded.client.create(OTHER, "guessed", delay="1h")
            await guarded.client.create(OWN, "seen", delay="1h")
            await stream.content.readuntil(b'"prefix":"mine"')
            message = await eavesdropper.get_message(timeout=None)
            assert message is not None
            assert b"theirs:guessed" in message["data"]
            guess = blake2b(message["data"], digest_size=8).hexdigest()
            async with guarded.session.get(url, headers=headers | {"Last-Event-ID": guess}) as again:
                assert b"\nevent: gap\n" in await again.content.readuntil(b"\n\n")


@pytest.mark.parametrize("operation", PUBLIC, ids=lambda operation: operation.path)
async def test_probes_and_the_document_ask_for_no_key(guarded: Api, operation: Operation) -> None:
    assert (await send(guarded, operation, OWN, {})).status == 200


async def test_pods_and_stats_tell_a_key_of_no_others_prefixes(guarded: Api) -> None:
    """Nor how late or overdue they are, and how many run, because that reveals them too."""
    await announce(guarded.store, "a-pod", processors=[OWN, OTHER], only=(OTHER,), lateness={5: 3}, running=7)
    await guarded.client.create(OTHER, "due", delay=0)
    for secret, serves, only, late in (
        (SECRETS["read"], [OWN], [], None),
        (ALL_SECRET, [OWN, OTHER], [OTHER], 3),
    ):
        stats = (await guarded.call("GET", "/v1/stats", headers=bearer(secret))).body
        (pod,) = (await guarded.call("GET", "/v1/pods", headers=bearer(secret))).body["items"]
        assert stats["pods"] == [pod]
        assert (pod["serves"], pod["only"]) == (serves, only)
        assert [pod["lateness_ms"]["max"] is None, stats["lateness_ms"]["max"] is None] == [late is None] * 2
        assert (stats["overdue_ms"] > 0) == (late is not None)
        assert pod["running"] == (None if late is None else 7)


async def test_a_probe_of_the_api_tells_only_who_sees_all_how_much_runs(server: EmbeddedServer, redis: Redis) -> None:
    """The API's metrics are as closed; those of the probe port are open."""
    await redis.ping()
    headers, of_all = new_key()
    some, of_some = new_key("mine")
    async with running_api(server.url, [mine], works=True, keys=f"{of_all.entry} {of_some.entry}") as api:
        figures = {"running", "queues_waiting"}
        for asked, told in ((headers, figures), (some, set()), ({}, set())):
            reply = await api.call("GET", "/readyz", headers=asked)
            assert figures & reply.body.keys() == told
        probes = probe_application(api.health)
        async with listening(probes, "127.0.0.1", 0) as url, api.session.get(f"{url}/readyz") as response:
            assert figures <= (await response.json()).keys()


async def test_a_retry_takes_no_place_that_the_key_does_not_have(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    headers, kept = new_key("mine", pending=1)
    async with running_api(server.url, [mine], keys=kept.entry) as api:
        for timer_id in ("one", "two"):
            await api.client.create("mine", timer_id, delay="1h")
            await api.client.cancel("mine", timer_id)
        assert (await api.call("POST", "/v1/timers/mine/one/retry", headers=headers)).status == 200
        refused = await api.call("POST", "/v1/timers/mine/two/retry", headers=headers)
        refused.problem(429, "too-many-pending")
        every = {"action": "retry", "filter": {"prefix": "mine"}}
        acted = await api.call("POST", "/v1/timers/actions", every, headers=headers)
        assert acted.body["refused"] == {"too-many-pending": 1}
        form = {"Origin": api.server.url, **headers, "Accept": "text/html"}
        async with api.session.post(f"{api.server.url}/ui/timers/mine/two/retry", headers=form, data={}) as page:
            assert (page.status, "the maximum of the key" in await page.text()) == (429, True)
        assert (await api.client.counts())["mine"][Status.SCHEDULED] == 1


async def test_a_key_for_prefixes_alone_is_limited_to_them(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    secret, kept = make_key(["*"], RIGHTS, most_prefixes=1)
    async with running_api(server.url, [mine, theirs], keys=kept.entry) as api:
        new = [{"prefix": prefix, "id": "x", "delay": "1h"} for prefix in ("mine", "theirs")]
        created = await api.call("POST", "/v1/timers", new[0], headers=bearer(secret))
        assert created.status == 201
        (await api.call("POST", "/v1/timers", new[1], headers=bearer(secret))).problem(429, "too-many-pending")


async def test_the_listeners_of_one_key_leave_places_for_others(
    server: EmbeddedServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LISTENERS_OF_KEY", 2)
    await redis.ping()
    (first, first_key), (second, second_key) = new_key(), new_key()
    async with (
        running_api(server.url, [mine], keys=f"{first_key.entry} {second_key.entry}") as api,
        AsyncExitStack() as open_streams,
    ):

        async def listen(headers: Mapping[str, str]) -> int:
            asked = api.session.get(f"{api.server.url}/v1/events", headers=headers)
            return (await open_streams.enter_async_context(asked)).status

        assert [await listen(first) for _ in range(3)] == [200, 200, 503]
        assert await listen(second) == 200


async def test_a_key_for_some_prefixes_sees_no_numbers_of_the_fleet_on_the_overview(guarded: Api) -> None:
    seen = {}
    for name, secret in (("some", SECRETS["read"]), ("all", ALL_SECRET)):
        headers = {**bearer(secret), "Accept": "text/html"}
        async with guarded.session.get(f"{guarded.server.url}/", headers=headers) as page:
            assert page.status == 200
            seen[name] = await page.text()
    for told in ("Fired in the last minute", "Late in the last hour", "Workers", "Last hour", "Last day"):
        assert told in seen["all"]
        assert told not in seen["some"]
