"""URLs of Sentinels: accounts, certificates, and one line for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Node
from tests.sentinels import SERVICE, Sentinel, Sentinels
from tests.waiting import eventually, patient
from timers import TimerClient
from timers.embedded import Family
from timers.errors import ConfigurationError, Unavailable
from timers.setting_values import redacted
from timers.store.servers import connect


async def answer(url: str) -> str:
    """How a client fails."""
    async with TimerClient(patient(url)) as client:
        with pytest.raises((ConfigurationError, Unavailable)) as caught:
            await client.stats()
    return str(caught.value)


async def test_a_wrong_form_is_answered_with_the_right_one(sentinels: Sentinels) -> None:
    sentinel, server = sentinels.sentinels[0].name, sentinels.nodes[0].name
    form = "TIMERS_REDIS_URL names a Sentinel; use redis+sentinel://HOST:PORT/SERVICE/DB (or rediss+sentinel://)"
    assert await answer(f"redis://{sentinel}/0") == form
    assert await answer(f"redis://{sentinel}/5") == form
    said = f"TIMERS_REDIS_URL names {server}, which is no Sentinel; use redis://{server}/DB (or rediss://)"
    assert said in await answer(f"redis+sentinel://{server}/{SERVICE}/0")
    said = f"the Sentinel at {sentinel} knows no service 'other'; it knows '{SERVICE}'"
    assert said in await answer(f"redis+sentinel://{sentinel}/other/0")
    assert "no Sentinel of 127.0.0.1:1 can be asked: " in await answer("redis+sentinel://127.0.0.1:1/timers/0")


async def test_servers_and_sentinels_have_accounts_of_their_own(family: Family, tmp_path: Path) -> None:
    node = Node(family, tmp_path / "node", "--requirepass", "for-servers")
    sentinel = Sentinel(family, tmp_path / "sentinel", node)
    with (tmp_path / "sentinel" / "sentinel.conf").open("a") as config:
        config.write(f"sentinel auth-pass {SERVICE} for-servers\nuser default off\nuser watch on >of-sentinels &* ")
        config.write(
            "+subscribe +ping +sentinel|master +sentinel|masters +sentinel|get-master-addr-by-name +sentinel|replicas\n"
        )
    await node.up()
    sentinel.up()
    given = f"redis+sentinel://:for-servers@{sentinel.name}/{SERVICE}/3?sentinel_username=watch&sentinel_password="
    connections = connect(patient(f"{given}of-sentinels"))

    async def answers() -> bool:
        try:
            found: Any = await connections.commands.client_info()
        except Exception:  # noqa: BLE001 (the Sentinel is starting)
            return False
        return bool(found["db"] == 3)

    await eventually(answers, "the Sentinel leads to the server")
    await connections.close()
    assert "invalid username-password pair" in await answer(f"{given}wrong")
    assert "wrong" not in await answer(f"{given}wrong")
    sentinel.down()
    node.down()


def test_both_passwords_are_redacted() -> None:
    url = "rediss+sentinel://user:one@a:1,b:2/main/5?sentinel_username=watch&sentinel_password=two&ssl_password=three"
    shown = redacted(url)
    assert shown == (
        "rediss+sentinel://user:***@a:1,b:2/main/5?sentinel_username=watch&sentinel_password=***&ssl_password=***"
    )


async def test_the_ports_that_sentinels_usually_have_may_be_left_out() -> None:
    connections: Any = connect("redis+sentinel://one,[::1],two:1/main")
    assert connections.sentinels.places == [("one", 26379), ("::1", 26379), ("two", 1)]
    assert connections.db == 0


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sentinel_fish"):
        connect("redis+sentinel://one/main/0?sentinel_fish=1")
