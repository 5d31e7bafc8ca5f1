"""Completion in a shell: prefixes, ids of the given prefix, statuses, and nothing if Redis does not answer."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from redis import Redis

from tests.cli.commands import CommandLine, Process
from tests.waiting import eventually
from timers.embedded import EmbeddedServer

Complete = Callable[..., Sequence[str]]


@pytest.fixture
def complete(start: Callable[..., Process], server: EmbeddedServer) -> Complete:
    """What bash offers for the last word of a line."""

    def ask(*words: str, url: str = server.url) -> Sequence[str]:
        line = {"COMP_WORDS": " ".join(["timers", *words]), "COMP_CWORD": str(len(words))}
        ended = start(_TIMERS_COMPLETE="complete_bash", TIMERS_REDIS_URL=url, **line).end()
        assert ended.err == ""
        return ended.out.split()

    return ask


async def test_prefixes_ids_and_statuses_are_completed(timers: CommandLine, redis: Redis, complete: Complete) -> None:
    for timer_id in ("user-1", "user-2", "other"):
        assert (await asyncio.to_thread(timers, "create", "log", timer_id, "--in", "1h")).code == 0
    for line, offered in (
        (("get", "l"), ["log"]),
        (("get", "log", "user-"), ["user-1", "user-2"]),
        (("retry", "--status", "f"), ["failed"]),
        (("ls", "--prefix", "te"), ["test"]),
    ):

        async def completed(line: Sequence[str] = line, offered: Sequence[str] = offered) -> bool:
            """Completion offers nothing if a busy machine does not answer in time."""
            return (await asyncio.to_thread(complete, *line)) == offered

        await eventually(completed, f"{line} is completed with {offered}")


def test_nothing_is_offered_where_redis_is_away(complete: Complete) -> None:
    assert complete("pause", "lo", url="redis://127.0.0.1:1/0") == []
