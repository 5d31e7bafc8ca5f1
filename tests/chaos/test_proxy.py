"""The proxy tells of each fault that it has made."""

import asyncio
from urllib.parse import urlsplit

from tests.chaos.proxy import Proxy
from tests.conftest import SharedServers
from timers.store import scripts


async def test_a_reply_that_comes_together_with_another_counts_as_lost(servers: SharedServers) -> None:
    server = await servers.of("redis")
    async with Proxy(server.url) as proxy:
        losing = proxy.lose_reply("arm")
        await asyncio.sleep(0)
        address = urlsplit(proxy.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        call = f"*3\r\n$7\r\nEVALSHA\r\n$40\r\n{scripts.digest('arm')}\r\n$1\r\n0\r\n"
        writer.write(f"*1\r\n$4\r\nPING\r\n{call}".encode())
        assert await reader.read() == b""
        assert await losing > 0
        writer.close()
