"""What a lock leaves to the garbage collector: nothing, so that none of its passes is a lock's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.support.loops import unguarded

# In a process of its own: what other tests have left would count as well.
COUNT = """
import asyncio, gc, json, sys
from tests.support.loops import group_of, template

def garbage():
    gc.collect()
    found = [type(each).__name__ for each in gc.garbage
             if type(each).__module__.startswith("django_redlock")]
    gc.garbage.clear()
    return found

redlock = template(group_of(sys.argv[1].split(","), 20))
gc.collect()
gc.disable()
gc.set_debug(gc.DEBUG_SAVEALL)
for _ in range(20):
    with redlock("name"):
        pass
by_a_thread = garbage()

async def main():
    async with redlock("name"):
        pass
    garbage()  # connecting a loop leaves some
    for _ in range(20):
        async with redlock("name"):
            pass
    alone = garbage()
    await crowd(bare)
    garbage()
    futures = await crowd(bare)
    gc.collect()
    gc.garbage.clear()
    locks = await crowd(lock)
    return alone + locks[:10] * (len(locks) > len(futures))

async def crowd(turn):
    await asyncio.gather(*(turn(str(number)) for number in range(1000)))
    gc.collect()
    found = [type(each).__name__ for each in gc.garbage]
    gc.garbage.clear()
    return found

async def bare(name):
    for _ in range(2):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future

async def lock(name):
    async with redlock(name):
        pass

print(json.dumps({"thread": by_a_thread, "task": asyncio.run(main())}))
"""
# A round that is over and its batch go on referring to each other.
BROKEN = """
from django_redlock.nodes.loops import Batch
from django_redlock.nodes.exchange import Exchange
def forget(self):
    self.over = True
def tidy(self):
    if not any(each.is_open for each in self.exchanges):
        self._connections.looks.open.pop(self, None)
Exchange.forget, Batch._tidy = forget, tidy
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


def left(nodes: EmbeddedNodes, before: str = "") -> dict[str, list[str]]:
    """The types of the package's objects that only the garbage collector frees."""
    command = [sys.executable, "-c", before + COUNT, ",".join(nodes.urls)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_lock_leaves_no_garbage(nodes):
    """All that a lock makes is freed when it is over; of a thread, what connecting makes, too.

    A thousand tasks leave no object of any type that as many bare futures do not leave.
    """
    assert left(nodes) == {"thread": [], "task": []}


@pytest.mark.slow
def test_a_cycle_is_noticed(nodes):
    """The check above can fail."""
    assert left(nodes, BROKEN)["task"] != []
