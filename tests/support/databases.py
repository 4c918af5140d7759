"""Databases for tests: a file of SQLite, and servers of the system's packages.

A server has a folder of its own and listens on a socket in it, on no port. It runs as the user
of its package where the tests run as root, which PostgreSQL refuses. A machine that loses its
power would damage the data: unless ``durable`` is asked for, nothing waits for the disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from django.db import connections

from django_redlock.testing.server import DEAD, process_state
from tests.support.processes import account, as_user, process
from tests.support.waiting import eventually

SQLITE, POSTGRESQL, MARIADB = KINDS = ("sqlite", "postgresql", "mariadb")
START: Final = 60.0  # seconds until a server takes connections, on a busy machine
PATIENCE: Final = 20  # seconds that SQLite waits for another writer
WAITERS: Final = {  # what shows statements that wait for a lock; SQLite cannot tell
    POSTGRESQL: "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    MARIADB: "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
Settings = dict[str, Any]


def why_not(kind: str) -> str:
    """Why a database of this kind cannot be started here; empty: it can."""
    if kind == POSTGRESQL and _postgresql("initdb") is None:
        return "no initdb: apt-get install --no-install-recommends postgresql"
    if kind == MARIADB and _mariadb("mariadbd") is None:
        return "no mariadbd: apt-get install --no-install-recommends mariadb-server"
    return ""


@contextmanager
def database(kind: str, *, durable: bool = False) -> Iterator[Settings]:
    """A database that nobody else knows; yields its entry for ``DATABASES``.

    With ``durable`` a COMMIT waits for the disk, as the database does where nobody says otherwise.
    """
    home = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
    try:
        with STARTED[kind](home, durable=durable) as settings:
            yield settings
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def connected(settings: Settings, alias: str) -> Iterator[str]:
    """Give a database a place in Django's ``connections``; yields its alias."""
    use_drivers()
    connections.settings[alias] = {**settings}
    connections.configure_settings(connections.settings)
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def use_drivers() -> None:
    """Let Django find PyMySQL by the name of the driver that it knows."""
    import pymysql

    pymysql.install_as_MySQLdb()


@contextmanager
def _sqlite(home: Path, *, durable: bool) -> Iterator[Settings]:
    pragmas = ["PRAGMA journal_mode = WAL"]  # as the documentation of Django advises
    pragmas += [] if durable else ["PRAGMA synchronous = OFF"]
    yield {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(home / "db.sqlite3"),
        "OPTIONS": {"timeout": PATIENCE, "init_command": "; ".join(pragmas)},
    }


@contextmanager
def _postgres(home: Path, *, durable: bool) -> Iterator[Settings]:
    user = _unprivileged(home, "postgres")
    data = home / "data"
    _run(home, user, _postgresql("initdb"), "-D", data, "-U", "redlock", "-A", "trust", "-N")
    options = {
        "listen_addresses": "",
        "unix_socket_directories": home,
        "shared_buffers": "16MB",
        "max_connections": 60,
        "deadlock_timeout": "50ms",
    }
    if not durable:
        options |= dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "off")
    command = [_postgresql("postgres"), "-D", data]
    command += [each for pair in options.items() for each in ("-c", "{}={}".format(*pair))]
    with _server(command, home, user) as pid:
        yield {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "redlock",
            "HOST": str(home),
        }
        with suppress(ProcessLookupError):  # killed, it would leave a segment of shared memory
            os.kill(pid, signal.SIGINT)
        with suppress(AssertionError):
            eventually(lambda: process_state(pid) in DEAD, within=10)


@contextmanager
def _maria(home: Path, *, durable: bool) -> Iterator[Settings]:
    user = _unprivileged(home, "mysql")
    data, first = home / "data", home / "first.sql"
    first.write_text("CREATE DATABASE IF NOT EXISTS redlock CHARACTER SET utf8mb4;\n")
    first.chmod(0o644)
    own = ["--no-defaults", f"--datadir={data}"]
    method = "--auth-root-authentication-method=normal"
    _run(home, user, _mariadb("mariadb-install-db"), *own, method, "--skip-test-db")
    options = {
        "skip-networking": 1,
        "socket": home / "socket",
        "pid-file": home / "pid",
        "init-file": first,
        "innodb-buffer-pool-size": "16M",
        "innodb-log-file-size": "16M",
        "innodb-lock-wait-timeout": PATIENCE,
        "max-connections": 60,
    }
    if not durable:
        options |= dict.fromkeys(("innodb-flush-log-at-trx-commit", "innodb-doublewrite"), 0)
    command = [_mariadb("mariadbd"), *own]
    command += ["--{}={}".format(*pair) for pair in options.items()]
    with _server(command, home, user):
        yield {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "redlock",
            "USER": "root",
            "HOST": str(home / "socket"),
            "OPTIONS": {"ssl_disabled": True},  # PyMySQL loads certificates for each connection
        }


STARTED: Mapping[str, Callable[..., Any]] = {
    SQLITE: _sqlite,
    POSTGRESQL: _postgres,
    MARIADB: _maria,
}


@contextmanager
def _server(command: list[Any], home: Path, user: str | None) -> Iterator[int]:
    """A server, when it takes connections; its socket appears first."""
    log, sockets = home / "server.log", ("socket", ".s.PGSQL.5432")
    ready = ("ready to accept connections", "ready for connections")
    with process(list(map(str, command)), _environment(home), log, user=user) as pid:

        def state() -> str:
            if process_state(pid) in DEAD:
                return "dead"
            said = log.read_text(errors="replace")
            up = any((home / name).exists() for name in sockets)
            return "up" if up and any(each in said for each in ready) else ""

        assert eventually(state, within=START, what=str(log)) == "up", log.read_text()[-3000:]
        yield pid


def _run(home: Path, user: str | None, *command: Any) -> None:
    done = subprocess.run(
        list(map(str, command)),
        cwd=home,
        env=_environment(home),
        capture_output=True,
        text=True,
        check=False,
        **as_user(user),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _unprivileged(home: Path, user: str) -> str | None:
    """Give the folder to the package's user where we are root; return the user, or None."""
    if os.geteuid() != 0:
        return None
    os.chown(home, *account(user))
    return user


def _environment(home: Path) -> dict[str, str]:
    # A MariaDB that starts deletes the temporary tables in its TMPDIR, also those of another one.
    own = {"HOME": str(home), "TMPDIR": str(home)}
    return own | {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}


def _found(folders: Iterable[Path], name: str) -> Path | None:
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def _postgresql(name: str) -> Path | None:
    """A program of the newest PostgreSQL; Debian has them in no folder of the PATH."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    newest = sorted(folders, key=lambda path: float(path.parent.name), reverse=True)
    return _found(newest, name)


def _mariadb(name: str) -> Path | None:
    """A program of MariaDB; the server is in a folder that is root's alone to have in the PATH."""
    return _found([Path("/usr/sbin"), Path("/usr/libexec")], name)
