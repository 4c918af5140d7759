"""Nodes, in memory and real, for tests of what people are shown of them."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from typing import Any

import redis
from django.core.management import call_command
from django.test import override_settings

from django_redlock import conf
from django_redlock.nodes.memory import MemoryNodes
from django_redlock.testing import EmbeddedNodes

A, B = "a" * 32, "b" * 32
_number = count()


def check(*args: str, **options: Any) -> tuple[int, str]:
    """Run ``redlock_check``; the exit code and what it printed."""
    return _ran("redlock_check", *args, **options)


def status(*args: str, **options: Any) -> tuple[int, str]:
    """Run ``redlock_status``; the exit code and what it printed."""
    return _ran("redlock_status", *args, **options)


def counted_votes(*, afresh: bool = True) -> tuple[int, int, int]:
    """How many nodes of ``default`` vote: by ``redlock_check``, ``redlock_status``, the admin page.

    Args:
        afresh: whether each is asked in a process, as it were, that knows nothing of the nodes.
    """
    found = []
    for ask in (_by_check, _by_status, _by_admin):
        if afresh:
            conf.forget()
        found.append(ask())
    return found[0], found[1], found[2]


def _by_check() -> int:
    found: int = json.loads(check("--json")[1])["aliases"]["default"]["voting"]
    return found


def _by_status() -> int:
    nodes = json.loads(status("--json")[1])["aliases"]["default"]["nodes"]
    return sum(node["voting"] for node in nodes)


def _by_admin() -> int:
    from django_redlock.admin import PageQuery, look  # it needs the apps

    shown = re.search(r"\((\d+) of \d+ nodes vote", look(PageQuery(), 50)["summary"])
    assert shown
    return int(shown[1])


def _ran(command: str, *args: str, **options: Any) -> tuple[int, str]:
    out, code = io.StringIO(), 0
    try:
        call_command(command, *args, stdout=out, **options)
    except SystemExit as end:
        code = int(str(end.code))
    return code, out.getvalue()


@contextmanager
def in_memory(*aliases: str) -> Iterator[None]:
    """Settings with five nodes in memory for each alias."""
    made = {
        alias: {"NODES": [f"memory://status-{next(_number)}" for _ in range(5)]}
        for alias in aliases
    }
    with override_settings(REDLOCK=made):
        yield


def group(alias: str) -> MemoryNodes:
    """The nodes in memory of an alias."""
    found = conf.backend(alias).group
    assert isinstance(found, MemoryNodes)
    return found


def put(memory: MemoryNodes, name: str, value: str, *nodes: int, seconds: int = 600) -> None:
    """Write a lock's key to nodes in memory, for ten minutes."""
    for i in nodes:
        due = memory.nodes[i].clock() + seconds * 1000
        memory.nodes[i].keys[f"redlock:lock:{name}"] = (value, due)
        memory.nodes[i].held[name] = due


def take(memory: MemoryNodes, *names: str) -> None:
    """Let somebody hold these names on all nodes, for ten minutes."""
    for name in names:
        put(memory, name, f"{A}:5:a", *range(5))


def take_before(memory: MemoryNodes, **seconds: float) -> None:
    """The same of names that have been held for so many seconds, by the host web-1."""
    now = int(time.time() * 1e6)
    for name, age in seconds.items():
        put(memory, name, f"{A}:{now - int(age * 1e6)}:web-1", *range(5))


def queue(memory: MemoryNodes, task: str, name: str, task_id: str, *nodes: int) -> None:
    """Write the mark of a queued task to nodes in memory, for ten minutes."""
    for i in nodes:
        node = memory.nodes[i]
        due = node.clock() + 600 * 1000
        node.keys[f"redlock:mark:{task}:{name}"] = (f"{B}:9:{task_id}", due)
        node.marks[f"{task}:{name}"] = due


def finish(memory: MemoryNodes, task: str, task_id: str, *nodes: int) -> None:
    """Write the completion record of a task to nodes in memory, for ten minutes."""
    for i in nodes:
        node = memory.nodes[i]
        name, due = f"run:{task}:number-of-{task_id}", node.clock() + 600 * 1000
        node.keys[f"redlock:lock:{name}"] = (f"done::host:1({task}):{task_id}", due)
        node.records[name] = due


def some_tasks(memory: MemoryNodes) -> None:
    """Let a task run, one wait, one have finished, and one be marked on two nodes."""
    stop_clocks(memory)
    put(memory, "account:7", f"{A}:5:host:1(reports.sync):id-running", *range(5))
    queue(memory, "reports.sync", "account:8", "id-queued", *range(5))
    queue(memory, "reports.sync", "account:9", "id-partial", 0, 1)
    finish(memory, "reports.sync", "id-finished", *range(5))


def stop_clocks(memory: MemoryNodes) -> None:
    """Let the seconds that a key has left stay what they are, however slow the machine is."""
    now = memory.nodes[0].clock()
    for node in memory.nodes:
        node.clock = lambda: now


@contextmanager
def clients(nodes: EmbeddedNodes) -> Iterator[list[redis.Redis]]:
    """A client of each node."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(node.client())) for node in nodes]


@contextmanager
def evicting(node, policy: str, limit: str = "200mb"):
    """A node that makes room by this policy."""
    with closing(node.client()) as client:
        try:
            client.config_set("maxmemory", limit)
            client.config_set("maxmemory-policy", policy)
            yield client
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")
