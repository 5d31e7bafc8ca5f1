"""A type checker finds the typing errors of processor authors and callers before anything runs, and knows what
`timers.ledger` returns for each kind of transaction."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.nursery import ROOT

HEAD: Final = """
from collections.abc import Iterator
from datetime import timedelta
from timers import BlockingTimerClient, Context, Delay, Done, NewTimer, NewTimerFields, Page, Rearm, Results, Retry
from timers import Timer, TimerAnswer, TimerClient, processor


async def view_of_a_web_framework(timers: TimerClient, id: str) -> TimerAnswer:
    return (await timers.get("mail", id)).to_json()


def rows(delay: Delay) -> Iterator[NewTimerFields]:
    for number in range(3):
        yield {"prefix": "mail", "id": str(number), "delay": delay, "payload": {"number": number}}


async def arm(timers: TimerClient, blocking: BlockingTimerClient) -> Results:
    await timers.batch({"prefix": "mail", "id": str(number), "delay": "1h"} for number in range(3))
    blocking.batch(rows(90))
    return await timers.batch(rows("1d"))


async def calls(timers: TimerClient, blocking: BlockingTimerClient, context: Context, timer: Timer) -> None:
"""

RIGHT: Final = """
    await timers.create("mail", "a", delay="24h", payload={"user": 1}, retry={"max_attempts": 3, "base": "1s"})
    await timers.create("mail", due_at="2030-01-01T00:00:00Z", tags=["vip"], metadata={"a": "b"}, if_exists="keep")
    await timers.create("mail", "a", repeat={"cron": "0 9 * * *", "timezone": "Europe/Berlin"}, missed={"grace": "1m"})
    await timers.create("mail", "a", retry={"backoff": ["5s", timedelta(minutes=1)]}, timeout=30)
    await timers.batch([{"prefix": "mail", "delay": 5}, {"prefix": "mail", "id": "b", "due_at": 1_900_000_000_000}])
    await timers.change("mail", "a", delay="1h", payload=None, repeat=None)
    await timers.reschedule("mail", "a", due_at="2030-01-01T00:00:00Z")
    page: Page = await timers.list(prefix="mail", status="failed", limit=10)
    await timers.list(status=timer.status)
    await timers.act("cancel", {"prefix": "mail", "status": "scheduled"}, dry_run=True)
    await timers.act("purge", {"status": [timer.status, "failed"]})
    await context.timers.create("mail", "b", delay="1h")
    await context.timers.cancel("mail", "b", purge=True)
    (await context.timers.arm(NewTimer.parse({"prefix": "mail", "delay": 5}))).timer.due_at.isoformat()
    blocking.create("mail", "a", delay=timedelta(days=1))
    for found in blocking.iterate(prefix="mail"):
        print(found.due_at.isoformat(), found.status.value, page.next_cursor)
"""

SLIPS: Final = (
    "from timers import TimerCleint",
    'await timers.create("mail", "a", dealy="1h")',
    'await timers.create("mail", "a", delay="1h", paylod={})',
    'await timers.create("mail", "a", delay="1h", due_at="2030-01-01T00:00:00Z")',
    'await timers.create("mail", "a")',
    'await timers.create("mail", "a", delay=object())',
    'await timers.create("mail", 42, delay="1h")',
    'await timers.create("mail", "a", delay="1h", if_exists="replce")',
    'await timers.create("mail", "a", delay="1h", missed="later")',
    'await timers.create("mail", "a", delay="1h", missed={"grce": "1m"})',
    'await timers.create("mail", "a", delay="1h", retry={"max_attempt": 3})',
    'await timers.create("mail", "a", delay="1h", retry={"backoff": 5})',
    'await timers.create("mail", "a", delay="1h", repeat={"evry": "1d"})',
    'await timers.create("mail", "a", delay="1h", metadata={"a": 1})',
    'await timers.create("mail", "a", delay="1h", tags="vip")',
    'await timers.batch([{"prefix": "mail", "dely": "1h"}])',
    'await timers.batch([{"id": "a", "delay": "1h"}])',
    'await timers.change("mail", "a", paylod=1)',
    'await timers.reschedule("mail", "a", delay=None, due="1h")',
    'await timers.list(statuz="failed")',
    'await timers.list(status="faild")',
    'await timers.act("cancle", {"prefix": "mail"})',
    'await timers.act("cancel", {"prefx": "mail"})',
    'await timers.cancel("mail", "a", version="3")',
    'await context.timers.create("mail", "b", dealy="1h")',
    'blocking.create("mail", "a", dealy="1h")',
    'blocking.list(status="faild")',
    'blocking.get("mail")',
    'blocking.change("mail", "a", paylod=1)',
    "timer.payloads",
    "timer.due_at + 5",
    'processor("mail", concurency=3)',
    'processor("mail", rate=50)',
    'processor("mail", timeout=object())',
    'Rearm(aftr="1h")',
    'Retry("asleep", after="1h", snoze=True)',
    "Done(note=3)",
)

TRANSACTIONS: Final = """
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

SLIPS_IN_TRANSACTIONS: Final = (
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

PROGRAMS: Final = {"calls.py": (HEAD + RIGHT, SLIPS), "transactions.py": (TRANSACTIONS, SLIPS_IN_TRANSACTIONS)}
"""By file: what is right, and the lines behind it, each with an error."""

MYPY: Final = ("mypy", "--strict", "--cache-dir", str(ROOT / ".cache" / "mypy"))
"""As users run it. What it knows of this package and of those that it uses is kept for the next run."""

CHECKERS: Final = (
    (*MYPY, "--hide-error-context"),
    ("basedpyright", "--level", "error", "--pythonpath", sys.executable),
)


@pytest.mark.parametrize("checker", CHECKERS, ids=["mypy", "pyright"])
def test_a_misspelt_keyword_passed_the_type_checker(checker: tuple[str, ...], tmp_path: Path) -> None:
    for name, (right, slips) in PROGRAMS.items():
        (tmp_path / name).write_text(right + "".join(f"    {slip}\n" for slip in slips))
    command = [sys.executable, "-m", *checker, *PROGRAMS]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    for name, (_, slips) in PROGRAMS.items():
        assert lines_with_errors(ended.stdout, tmp_path / name) == set(slips), ended.stdout + ended.stderr


def lines_with_errors(output: str, path: Path) -> set[str]:
    text = path.read_text().splitlines()
    found = [line.split(":") for line in output.splitlines() if f"{path.name}:" in line and "error" in line]
    return {text[int(parts[1]) - 1].strip() for parts in found}
