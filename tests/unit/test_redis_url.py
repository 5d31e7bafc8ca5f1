"""A mistake in the URL of Redis is said in one line that names it and what would be accepted."""

import asyncio
import re

import pytest

from timers.errors import ConfigurationError
from timers.store.servers import connect


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1/0?foo=1", "the option 'foo' is not accepted; expected options of redis-py's connections"),
        ("redis+cluster://127.0.0.1?foo=1", "the option 'foo' is not accepted; expected options"),
        ("redis://127.0.0.1?connection_class=x", "the option 'connection_class' is not accepted"),
        ("redis+sentinel://127.0.0.1/main?credential_provider=x", "the option 'credential_provider' is not accepted"),
        ("redis+cluster://127.0.0.1?event_dispatcher=x", "the option 'event_dispatcher' is not accepted"),
        ("redis+cluster://127.0.0.1?db=5", "db 5 cannot be used: .*; expected redis.cluster://HOST:PORT without a db"),
        ("rediss://127.0.0.1/0?ssl_cert_reqs=some", "cannot be used: Invalid SSL Certificate Requirements Flag: some"),
        ("rediss://someone:hidden", "cannot be used: expected a URL with a server"),
        ("rediss+cluster://127.0.0.1/5", "db 5 cannot be used: .*; expected rediss.cluster://HOST:PORT without a db"),
    ],
)
def test_a_part_that_is_not_accepted_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^TIMERS_REDIS_URL:? {said}") as refused:
        connect(url)
    assert "\n" not in str(refused.value)
    assert "hidden" not in str(refused.value)


async def test_an_encoding_changes_nothing() -> None:
    connections = connect("redis://127.0.0.1/0?encoding=ascii&encoding_errors=ignore")
    encoded: object = connections.dial().encoder.encode("é")  # type: ignore[no-untyped-call]
    assert encoded == "é".encode()
    await connections.close()


def test_sentinels_without_a_service_are_told_where_its_name_stands() -> None:
    said = re.escape("name of their service, as in redis+sentinel://127.0.0.1:26379/main/5")
    with pytest.raises(ConfigurationError, match=said):
        connect("redis+sentinel://127.0.0.1:26379")


async def test_a_server_that_does_not_know_cluster_is_named() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(b"-ERR unknown command 'CLUSTER'\r\n" * 2)
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = connect(f"redis+cluster://127.0.0.1:{port}")
    with pytest.raises(ConfigurationError, match=f"{port} is not a node of a cluster; .* use redis://127.0.0.1:{port}"):
        await connections.refresh()
    await connections.close()
    await ended.wait()
    server.close()
