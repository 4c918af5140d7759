"""What no interruption can tear: only locks that are written in C where a signal can raise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import django_redlock

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
EXEMPT = {"testing/server.py", "testing/embedded.py"}  # they start servers, for tests


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
