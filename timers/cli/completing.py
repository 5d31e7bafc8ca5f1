"""Owns what a shell completes: prefixes, ids and statuses. If they cannot be read in time, it completes nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import typer

from timers.cli.session import Session, run
from timers.core.fields import OWN_PREFIXES, is_own
from timers.core.model import Status
from timers.store.filters import Filter
from timers.store.listing import read_page

SECONDS: Final = 2.0
MOST: Final = 100


def statuses(incomplete: str) -> Sequence[str]:
    """The statuses that begin with this text, which may be a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{status.value}" for status in Status if status.value.startswith(last)]


def prefixes(incomplete: str) -> Sequence[str]:
    """The prefixes that begin with this text."""

    async def read(session: Session) -> Sequence[str]:
        asked = f"{OWN_PREFIXES}*" if is_own(incomplete) else None
        found = [view.prefix for view in await session.client.prefixes(asked)]
        return [prefix for prefix in found if prefix.startswith(incomplete)][:MOST]

    return _read(read)


def ids(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The ids that begin with this text, for the prefix given before it."""
    prefix = context.params.get("prefix")

    async def read(session: Session) -> Sequence[str]:
        wanted = Filter.parse({"prefix": prefix}).where(lambda timer: timer.id.startswith(incomplete))
        return [timer.id for timer in (await read_page(session.store, wanted, limit=MOST)).items]

    return _read(read) if prefix else []


def _read(read: Callable[[Session], Awaitable[Sequence[str]]]) -> Sequence[str]:
    async def in_time(session: Session) -> Sequence[str]:
        async with asyncio.timeout(SECONDS):
            return await read(session)

    try:
        return run(in_time)
    except Exception:  # noqa: BLE001 (an error would be written into the line that is being typed)
        return []
