"""Owns the table of users, which the web app and the pods share."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

_TABLE: Final = "CREATE TABLE IF NOT EXISTS users (name TEXT PRIMARY KEY, email TEXT NOT NULL, verified INT DEFAULT 0)"


class User(NamedTuple):
    """Who has signed up."""

    name: str
    email: str
    verified: bool


def add(name: str, email: str) -> None:
    """Somebody signs up; whoever is there already stays as they are."""
    with _open() as db:
        db.execute("INSERT OR IGNORE INTO users (name, email) VALUES (?, ?)", (name, email))


def verify(name: str) -> bool:
    """The address is theirs; False if there is no such user."""
    with _open() as db:
        return db.execute("UPDATE users SET verified = 1 WHERE name = ?", (name,)).rowcount == 1


def find(name: str) -> User | None:
    """The user, if there is one."""
    with _open() as db:
        row = db.execute("SELECT name, email, verified FROM users WHERE name = ?", (name,)).fetchone()
    return None if row is None else User(row[0], row[1], bool(row[2]))


@contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ.get("SIGNUP_DATABASE", "users.db"))) as db, db:
        db.execute(_TABLE)
        yield db
