"""What no interruption can tear: locks and latches; and the jobs of objects that are forgotten.

Blocks that are torn are in ``tests/leases/test_blocks.py``.
"""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import django_redlock
from django_redlock import interruption
from django_redlock.core.protocol import Waiter
from django_redlock.interruption import Latch, ThreadWakeup, when_forgotten
from django_redlock.nodes.queue import LocalQueue
from tests.support.waiting import eventually

PACKAGE = Path(django_redlock.__file__).parent
# Written in Python: they take a lock of theirs in one call and release it in another.
FORBIDDEN = {
    "threading": {
        "Barrier",
        "BoundedSemaphore",
        "Condition",
        "Event",
        "Semaphore",
        "Thread",
        "Timer",
    },
    "queue": {"LifoQueue", "PriorityQueue", "Queue"},
    "concurrent": {"futures"},
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor", "Future"},
    "multiprocessing": {"Process", "Pool", "Queue", "Lock"},
}
EXEMPT = {f"testing/{name}.py" for name in ("server", "embedded", "embedded_node")}  # for tests


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


def forbidden(source: str) -> list[str]:
    """The names in this source that may not be used, by whatever way they come in."""
    found: list[str] = []
    modules: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
            found += [each.name for each in node.names if each.name.startswith("concurrent")]
        elif isinstance(node, ast.ImportFrom):
            names = FORBIDDEN.get(node.module or "", set())
            found += [f"{node.module}.{each.name}" for each in node.names if each.name in names]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if node.attr in FORBIDDEN.get(module, set()):
                found.append(f"{module}.{node.attr}")
    return found


@pytest.mark.slow
def test_the_package_uses_nothing_that_an_interruption_leaves_locked():
    """No Condition, Event, Semaphore, Barrier, Timer, Thread, Queue or future of threads."""
    used = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if str(path.relative_to(PACKAGE)) not in EXEMPT
        and (names := forbidden(path.read_text(encoding="utf-8")))
    }
    assert used == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import threading\nx = threading.Condition()", ["threading.Condition"]),
        ("import threading as t\nt.Event().wait()", ["threading.Event"]),
        ("from threading import Thread, Lock", ["threading.Thread"]),
        ("import queue\nqueue.Queue()", ["queue.Queue"]),
        ("from queue import SimpleQueue", []),
        ("import concurrent.futures", ["concurrent.futures"]),
        (
            "from concurrent.futures import ThreadPoolExecutor",
            ["concurrent.futures.ThreadPoolExecutor"],
        ),
        ("import threading, asyncio\nthreading.RLock(); asyncio.Event()", []),
    ],
)
def test_such_a_use_is_found(source, names):
    """The check can fail, and does not where it need not."""
    assert forbidden(source) == names


# -- waiting in a thread --------------------------------------------------------------------------


def interrupted_everywhere(work: Callable[[], object], then: Callable[[], object]) -> int:
    """Interrupt ``work`` at each call that it makes, then call ``then``; how many there were."""
    number = 0
    while True:
        number += 1
        left = number

        def profile(frame: FrameType, event: str, _: Any) -> None:
            nonlocal left
            if event in ("call", "c_return") and frame.f_code.co_filename == interruption.__file__:
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise Interruption

        sys.setprofile(profile)
        try:
            work()
        except Interruption:
            pass
        finally:
            sys.setprofile(None)
        then()
        if left > 0:
            return number - 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_latch_is_whole_after_any_interruption_of_a_wait():
    """Who waits for a latch may be interrupted anywhere: others wait, and are woken."""
    latch = Latch()

    def then() -> None:
        nonlocal latch
        woken: list[bool] = []
        other = threading.Thread(target=lambda: woken.append(latch.wait(60)))
        other.start()
        latch.set()
        other.join(60)
        assert woken == [True]
        latch = Latch()

    assert interrupted_everywhere(lambda: latch.wait(0.001), then) > 5


@pytest.mark.slow
@pytest.mark.alone
def test_a_latch_that_was_raised_in_part_wakes_all_the_same():
    """Raising a latch may be interrupted anywhere: raised again, it wakes the waiters."""
    latch = Latch()
    woken: list[bool] = []

    def wait() -> None:
        woken.append(latch.wait(60))

    def then() -> None:
        nonlocal latch
        latch.set()
        for thread in threads:
            thread.join(60)
        assert woken == [True, True]
        woken.clear()
        latch = Latch()

    threads: list[threading.Thread] = []

    def work() -> None:
        threads[:] = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        latch.set()

    assert interrupted_everywhere(work, then) > 3


@pytest.mark.slow
@pytest.mark.alone
def test_a_sleeper_is_woken_after_any_interruption():
    """Waking may be interrupted anywhere; the next call ends the sleep."""
    wakeup = ThreadWakeup()

    def then() -> None:
        wakeup.wake()
        sleeper = threading.Thread(target=wakeup.sleep, args=(60.0,))
        sleeper.start()
        sleeper.join(60)
        assert not sleeper.is_alive()

    assert interrupted_everywhere(wakeup.wake, then) > 2


# -- lines ----------------------------------------------------------------------------------------


def test_who_leaves_a_line_again_calls_the_next():
    """Where leaving a line was interrupted before the next was called, leaving again calls it."""
    lines, called, fails = LocalQueue(), [], [True]

    def call() -> None:
        if fails.pop():
            raise Interruption
        called.append(1)

    first, second = Waiter("queue"), Waiter("queue")
    assert lines.join(first, bool)
    assert not lines.join(second, call)
    with pytest.raises(Interruption):
        lines.leave(first)
    fails.append(False)
    lines.leave(first)
    assert called == [1]
    assert lines.is_first(second)
    lines.leave(first)  # called once is enough
    assert called == [1]


# -- when an object is forgotten ------------------------------------------------------------------


class Thing:
    """Something that can be forgotten."""


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_the_job_is_done(in_a_cycle):
    """At once where references are counted; in the background where garbage is collected."""
    done: list[int] = []
    thing = Thing()
    if in_a_cycle:
        vars(thing)["itself"] = thing
    when_forgotten(thing, lambda: done.append(threading.get_ident()))
    assert done == []
    del thing
    if in_a_cycle:
        gc.collect()
        eventually(lambda: done)
    assert [each == threading.get_ident() for each in done] == [not in_a_cycle]


def test_nobody_stands_behind_one_who_was_forgotten(monkeypatch):
    """Though an interruption kept the forgotten one from leaving its line."""
    lines, called, swallowed = LocalQueue(), [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: swallowed.append(what.exc_type))

    def interrupted(*_: object) -> None:
        raise Interruption

    first = Waiter("queue")
    with monkeypatch.context() as patch:
        patch.setattr(lines, "_remove", interrupted)
        assert lines.join(first, bool)
    second = Waiter("queue")
    assert not lines.join(second, lambda: called.append("second"))
    del first
    assert (swallowed, called) == ([Interruption], [])
    assert lines.is_first(second)
    assert called == ["second"]
    lines.leave(second)
    assert lines.join(Waiter("queue"), bool)
