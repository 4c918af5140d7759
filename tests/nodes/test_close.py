"""``close`` ends what the package does in the background, and waits for that."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import django_redlock
from django_redlock import redlock
from django_redlock.leases.renewal import Watchdog
from django_redlock.nodes import background
from django_redlock.nodes.background import WorkerThreads, at_work, end, end_all
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LONG = 30.0  # seconds that nothing here takes


def test_a_clock_of_a_test_does_not_judge_whether_its_threads_end(monkeypatch):
    """``quiet`` waits, by the real clock, for a job that ends when the clock is real again."""
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: 100.0))
    WorkerThreads().do("lasts", lambda: eventually(lambda: vars(background)["time"] is time))


def test_a_job_that_lasts_is_asked_to_end_and_waited_for():
    """The job's thread has ended when ``end`` returns, and the next job runs as ever."""
    threads, rounds = WorkerThreads(), []

    def lasts() -> None:
        while threads.until == float("inf"):
            rounds.append(1)
            threads.pause(LONG)

    threads.do("lasts", lasts)
    eventually(lambda: rounds)
    assert threads in at_work()
    assert end([threads], LONG) == []
    assert threads not in at_work()
    threads.do("another", lambda: rounds.append(2))
    eventually(lambda: rounds == [1, 2])


def test_a_job_that_fails_is_logged_and_the_next_one_is_done(caplog):
    """Nobody waits for what a thread of the background does, so nobody else would hear of it."""
    threads, done = WorkerThreads(), threading.Event()
    threads.do("fails", partial(sorted, None))
    threads.do("fails", done.set)
    assert done.wait(LONG)
    assert [each.exc_info and each.exc_info[0] for each in caplog.records] == [TypeError]


def test_a_job_that_goes_on_is_named():
    """Who asks for the end hears of the work that is not over in time."""
    threads, enough = WorkerThreads(), threading.Event()
    threads.do("goes on", enough.wait)
    assert end([threads], 0.0) == ["goes on"]
    enough.set()
    assert end([threads], LONG) == []


def test_a_job_that_comes_when_all_have_ended_is_not_left(monkeypatch):
    """Collecting garbage submits one between two looks: nobody has waited for that one."""
    enough = threading.Event()

    class Late(WorkerThreads):
        looked = False

        def doing(self) -> list[str]:
            found = super().doing()
            if not self.looked:
                self.looked = True
                self.do("late", enough.wait)
            return found

    threads = Late()
    assert end([threads], LONG) == []
    assert threads.doing() == ["late"]
    looks: list[list[WorkerThreads]] = [[], [threads]]
    with monkeypatch.context() as patch:
        patch.setattr(background, "at_work", lambda: looks.pop(0))
        assert end_all(LONG) == []
    enough.set()


def test_a_job_whose_thread_never_began_is_done(monkeypatch):
    """An interruption lost the start of a thread: the end of all work makes up for it."""
    threads = WorkerThreads()
    done: list[int] = []

    start = background.start_thread

    def interrupted(function: Any, *args: Any) -> None:
        if function.__self__ is threads:
            raise KeyboardInterrupt
        start(function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(background, "start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            threads.offer("lost", partial(done.append, 1))
    assert (threads.doing(), done) == (["lost"], [])
    assert end([threads], LONG) == []
    assert done == [1]


def test_the_watchdog_ends_and_the_next_lease_starts_another():
    """A lease that was taken before the end is watched again, too."""
    watchdog = Watchdog()
    pool = watchdog._workers
    first, second = (redlock(name, renew=False).acquire() for name in ("first", "second"))
    watchdog.watch(first)
    assert pool.doing() == ["watch"]
    assert end([pool], LONG) == []
    watchdog.watch(second)
    assert pool.doing() == ["watch"]
    assert set(watchdog.schedule.leases()) == {first, second}
    assert end([pool], LONG) == []
    first.release()
    second.release()


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", None])
def test_a_timeout_that_is_none_is_refused(timeout):
    """The error names the argument."""
    with pytest.raises((TypeError, ValueError), match="timeout"):
        django_redlock.close(timeout)


class Away(NamedTuple):
    """Three nodes, and a lock that was released while the third could not be reached."""

    nodes: EmbeddedNodes
    proxy: Proxy
    group: NodeGroup


@pytest.fixture
def away(three: EmbeddedNodes) -> Iterator[Away]:
    """The third node is behind a proxy that lets nobody through."""
    with Proxy(three[2].port) as proxy:
        urls = [three[0].url, three[1].url, f"redis://127.0.0.1:{proxy.port}/0"]
        group = group_of(urls, LONG)
        lease = template(group)("name").acquire()
        eventually(lambda: all(keys_on(three)))
        proxy.cut()
        lease.release()
        yield Away(three, proxy, group)
    for node in three:
        node.client().flushdb()


@pytest.mark.slow
def test_what_can_be_released_is_released_before_it_returns(away):
    """A node that was away while a lock was released is asked once more."""
    away.proxy.heal()
    assert away.group.close(LONG) == []
    assert keys_on(away.nodes) == [[], [], []]


@pytest.mark.slow
def test_a_node_that_has_replied_with_an_error_is_asked_at_once(away):
    """Else the node would rest for up to two seconds first."""
    away.group.nodes[2].undos._from = math.inf
    away.proxy.heal()
    assert away.group.close(LONG) == []
    assert keys_on(away.nodes) == [[], [], []]


@pytest.mark.slow
def test_a_node_that_is_away_is_not_waited_for(away):
    """Its names are free when their ttl is over; ``close`` says that all work has ended."""
    assert away.group.close(LONG) == []
    assert [len(keys) for keys in keys_on(away.nodes)] == [0, 0, 1]
    assert len(away.group.nodes[2].undos.kept) == 1  # whoever asks the node next sends it


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("patient_nodes")
def test_no_thread_is_left_and_a_fork_is_safe():
    """After ``close`` the process has its one thread; child and parent lock as ever."""
    assert django_redlock.close(0)  # there is nothing to end yet
    for number in range(20):
        with redlock(f"name:{number}"):
            pass
    assert django_redlock.close(LONG)
    eventually(lambda: len(list(Path("/proc/self/task").iterdir())) == 1)  # the system's part
    child = os.fork()
    if not child:
        status = 1
        try:
            with redlock("child") as lease:
                status = 0 if lease.fence > 0 else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with redlock("parent"):
        pass
    assert django_redlock.close(LONG)
