"""`rediss://`: all connections of a store are encrypted, including the subscriber's; a server must prove its name."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import authority
from tests.servers import start_server
from tests.store.acts import armed, claim, finished, put
from tests.waiting import eventually
from timers.client import open_store
from timers.doctor.examining import unreachable
from timers.errors import Unavailable
from timers.store.notifications import Notification, listen, parts
from timers.store.servers import connect
from timers.store.servers.connections import Connections
from timers.store.store import Store


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority `ca`, a `server` certificate for localhost that it signed, and an unrelated `other`."""
    return authority(tmp_path / "certificates", "DNS:localhost")


@pytest.fixture
async def port(certificates: Path, tmp_path: Path) -> AsyncIterator[int]:
    """The port of a server that listens with TLS only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    files = [
        f"--tls-{option}-file {certificates / name}" for option, name in (("cert", "server.crt"), ("key", "server.key"))
    ]
    options = f"--tls-port {number} {' '.join(files)} --tls-auth-clients no --bind 127.0.0.1".split()
    server = await start_server("redis", tmp_path / "data", *options)
    yield number
    await server.stop()


async def test_timers_are_armed_run_and_heard_of_over_tls(port: int, certificates: Path) -> None:
    connections = connect(f"rediss://localhost:{port}/5?ssl_ca_certs={certificates / 'ca.crt'}")
    store = await open_store(connections)
    heard = asyncio.Queue[Notification]()
    listening = asyncio.create_task(listen(parts(connections, 1)[0], lambda *said: heard.put_nowait(said)))
    assert (await heard.get())[0] == "subscribed"
    await armed(store, "a", due="+20")
    while await heard.get() != ("triggers", 0, "reminder", [b"a"]):
        await store.touch(0)
    (timer,) = await claim(store)
    assert await store.extend(0, [timer], pod="pod-1", lease_ms=5_000) == []
    assert (await finished(store, "b")).id == "b"
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await connections.close()


async def test_a_subscription_ends_at_once_at_a_server_that_hangs(port: int, certificates: Path) -> None:
    """It would not answer the end of TLS, and the wait for that would hide why the subscription ended."""
    connections = connect(f"rediss://localhost:{port}/5?ssl_ca_certs={certificates / 'ca.crt'}")
    subscribed = asyncio.Event()
    listening = asyncio.create_task(listen(parts(connections, 1)[0], lambda *_said: subscribed.set()))
    await subscribed.wait()
    server = (await connections.commands.info("server"))["process_id"]
    os.kill(server, signal.SIGSTOP)
    try:
        listening.cancel()
        (ended,) = await asyncio.gather(listening, return_exceptions=True)
    finally:
        os.kill(server, signal.SIGCONT)
    assert isinstance(ended, asyncio.CancelledError)
    await connections.close()


@pytest.mark.parametrize(("host", "authority"), [("localhost", "other.crt"), ("127.0.0.1", "ca.crt")])
async def test_a_server_that_cannot_prove_its_name_is_refused(
    port: int, certificates: Path, host: str, authority: str
) -> None:
    connections = connect(f"rediss://{host}:{port}/5?ssl_ca_certs={certificates / authority}")
    assert "correct ssl_ca_certs" in await repair_of(connections)


async def test_the_doctor_says_what_a_server_may_want_that_hangs_up(port: int) -> None:
    assert "wants rediss://" in await repair_of(connect(f"redis://localhost:{port}/5"))


async def repair_of(connections: Connections) -> str:
    """What the doctor advises, once nothing can be opened over these connections, which are closed then."""
    with pytest.raises(Unavailable) as refused:
        await open_store(connections)
    (server,) = await unreachable(Store(connections), refused.value)
    await connections.close()
    return server.repair or ""


async def test_renewed_certificates_are_read_without_a_restart(port: int, certificates: Path, tmp_path: Path) -> None:
    """The server's and its authority's have been replaced in their files, and all connections are cut."""
    connections = connect(f"rediss://localhost:{port}/5?ssl_ca_certs={certificates / 'ca.crt'}")
    store = await open_store(connections)
    await armed(store, "a")
    for renewed in authority(tmp_path / "renewed", "DNS:localhost").iterdir():
        renewed.replace(certificates / renewed.name)
    files = (("tls-cert-file", "server.crt"), ("tls-key-file", "server.key"))
    redis: Any = connections.commands
    await redis.execute_command("CONFIG SET", *chain(*((name, str(certificates / file)) for name, file in files)))
    await redis.execute_command("CLIENT KILL", "SKIPME", "no")

    async def reaches() -> bool:
        with suppress(Unavailable):  # the server has hung up, and this is how it is found out
            await put(store, "b")
            return await store.get_one("reminder", "b") is not None
        return False

    await eventually(reaches, "a script is answered")
    assert await connections.commands.ping()
    await connections.close()


async def test_certificates_that_nobody_has_renewed_are_read_once(port: int, certificates: Path) -> None:
    connections = connect(f"rediss://localhost:{port}/5?ssl_ca_certs={certificates / 'ca.crt'}")
    connection: Any = connections.dial()
    await connection.connect()
    read = connection.ssl_context.get()
    await connection.disconnect()
    await connection.connect()
    assert connection.ssl_context.get() is read
    await connection.disconnect()
    await connections.close()
