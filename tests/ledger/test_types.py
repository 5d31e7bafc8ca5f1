"""A type checker knows what `timers.ledger` returns for each kind of transaction, and finds misspelt fields."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_slips import CHECKERS, lines_with_errors

RIGHT = """
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import sqlite3

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from timers import BlockingContext, Context, Done, Rearm
from timers.ledger import Effects, arm, cancel, once, statement


async def awaited(tx: AsyncConnection, session: AsyncSession, context: Context[Any]) -> Rearm:
    made: str = await arm(tx, "mail", delay="24h", payload={"user": 1}, if_exists="replace")
    gone: str = await cancel(session, "mail", made)
    entered: AbstractAsyncContextManager[Effects] = once(tx, context)
    async with entered, once(session, context) as effects:
        done: Done = effects.ends(Done(gone))
        return effects.ends(Rearm(after="1d"))


def at_once(tx: Connection, session: Session, context: BlockingContext[Any]) -> None:
    made: str = arm(tx, "mail", "a", repeat={"cron": "0 9 * * *"}, missed="latest")
    gone: str = cancel(session, "mail", made)
    entered: AbstractContextManager[Effects] = once(tx, context)
    with entered, once(session, context) as effects:
        effects.ends(Done(gone))


def cursors(lite: sqlite3.Cursor, postgres: psycopg.Cursor) -> None:
    lite.execute(*statement("mail", "a", due_at="2030-01-01T00:00:00Z", paramstyle="qmark"))
    postgres.execute(*statement("mail", "a", action="cancel"))
    postgres.execute(*statement("mail", "a", action="reschedule", delay="1h"))
    postgres.execute(*statement("mail", "a", action="change", payload=None, tags=["a"]))


async def slips(tx: AsyncConnection, plain: Connection, context: BlockingContext[Any]) -> None:
"""

SLIPS = (
    'await arm(tx, "mail", "a", dealy="1h")',
    'await arm(tx, "mail", "a")',
    'await arm(tx, "mail", "a", delay="1h", due_at=5)',
    'await arm(plain, "mail", "a", delay="1h")',
    'await cancel(tx, "mail")',
    "once(tx, context)",
    'statement("mail", "a", action="cancle")',
    'statement("mail", "a", delay="1h", paramstyle="dollars")',
    'statement("mail", action="cancel")',
)


@pytest.mark.parametrize("checker", CHECKERS, ids=["mypy", "pyright"])
def test_types(checker: tuple[str, ...], tmp_path: Path) -> None:
    written = tmp_path / "calls.py"
    written.write_text(RIGHT + "".join(f"    {slip}\n" for slip in SLIPS))
    command = [sys.executable, "-m", *checker, written.name]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert lines_with_errors(ended.stdout, written) == set(SLIPS), ended.stdout + ended.stderr
