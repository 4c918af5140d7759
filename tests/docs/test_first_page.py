"""The table of the README: what other locks do, played on a real node and a real database.

What this package does is in ``docs/explanation/promises.md`` with its tests; that of celery-once
is played by ``make soak ARGS="celery --others"``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
import redis
from redis.lock import Lock

from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import README
from tests.support.databases import POSTGRESQL, database, why_not
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def cells(row: str) -> list[str]:
    """The cells of a row of the table, from its first words."""
    (line,) = (line for line in README.read_text().splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of a node."""
    with EmbeddedNodes(1) as nodes, redis.Redis.from_url(nodes.urls[0]) as found:
        yield found


def test_redis_py_renews_nothing_and_forgets_nobody(client):
    """With a timeout the lock ends under its holder; without one it outlives the holder."""
    assert cells("the lock stays mine while I work")[1].startswith(
        "no: it ends after its `timeout`"
    )
    lock = client.lock("short", timeout=0.05)
    assert lock.acquire(blocking=False)
    eventually(lambda: not client.exists("short"))  # nothing puts that off
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()
    assert client.lock("endless").acquire(blocking=False)
    assert client.ttl("endless") == -1


def test_waiters_of_redis_py_ask_again_and_again(client, monkeypatch):
    """Who asks first after the release gets it, not who came first."""
    assert cells("who waits gets it in order")[1].startswith("no: each asks again every 0.1 s")
    assert Lock.__init__.__defaults__[1] == 0.1  # type: ignore[index] # sleep=
    first, second = (client.lock("name", timeout=60) for _ in range(2))
    held = client.lock("name", timeout=60)
    assert held.acquire()
    assert not first.acquire(blocking=False)
    held.release()
    assert second.acquire(blocking=False)  # nobody is in line before it
    assert not first.acquire(blocking=False)


def test_redis_py_leaves_the_name_taken_after_a_lost_reply(client):
    """An error of its own, and a key of nobody."""
    assert cells("*taken* and *nobody knows* are two errors")[1].startswith("yes, but after a lost")
    lock, send = client.lock("name", timeout=60), Lock.do_acquire

    def lost(self: Lock, token: str) -> bool:
        send(self, token)
        raise redis.exceptions.TimeoutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lock, "do_acquire", lost)
        with pytest.raises(redis.exceptions.TimeoutError):
            lock.acquire()
    assert client.exists("name")
    assert not client.lock("name").acquire(blocking=False)


@pytest.mark.skipif(why_not(POSTGRESQL) != "", reason=why_not(POSTGRESQL))
def test_an_advisory_lock_lasts_as_long_as_its_connection():
    """Waiters are served in order, ``pg_locks`` shows the process, and its end frees the lock."""
    assert cells("the lock stays mine while I work")[2] == "while the connection lasts"
    assert cells("who waits gets it in order")[2] == "yes"
    assert cells("people on call")[2] == "see the process in `pg_locks`, and end it"
    served: list[int] = []
    with database(POSTGRESQL) as settings, ExitStack() as opened:

        def connection() -> psycopg.Connection[Any]:
            where = {"host": settings["HOST"], "user": settings["USER"]}
            made = psycopg.connect(dbname=settings["NAME"], autocommit=True, **where)
            return opened.enter_context(closing(made))

        def wait(own: psycopg.Connection[Any], number: int) -> None:
            own.execute("SELECT pg_advisory_lock(7)")
            served.append(number)
            own.execute("SELECT pg_advisory_unlock(7)")

        def pids(*, granted: bool) -> list[Any]:
            locks = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted = %s"
            return watcher.execute(locks, [granted]).fetchall()

        holder, watcher = connection(), connection()
        holder.execute("SELECT pg_advisory_lock(7)")
        threads = []
        for number in range(3):
            threads.append(threading.Thread(target=wait, args=(connection(), number)))
            threads[-1].start()
            eventually(lambda: len(pids(granted=False)) == len(threads))
        assert pids(granted=True) == [(holder.info.backend_pid,)]
        watcher.execute("SELECT pg_terminate_backend(%s)", [holder.info.backend_pid])
        for thread in threads:
            thread.join()
        assert served == [0, 1, 2]
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
