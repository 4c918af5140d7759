"""Print how long the way of one lock through the package is, in files, functions and calls.

    python -m dev.tools.way
    python -m dev.tools.way --each   # every function on the way

The way is that of an uncontended block of a reused ``Lock`` on five nodes that are well, by a
thread and by a task: every frame of the package that ``sys.setprofile`` sees. A generator that goes
on counts as a call. Replies come early or late, so the numbers differ from block to block: those of
the median block are printed. Nothing enforces them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import django
from django.conf import settings

import django_redlock
from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes

Function: TypeAlias = tuple[str, int, str]  # file, first line, name

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(django_redlock.__file__).parent
NODES: Final = 5
WARM: Final = 300  # blocks before the first that counts
BLOCKS: Final = 101


class Way:
    """Counts the calls of the package's functions in each of some blocks, in one thread.

    Attributes:
        blocks: how often each function was called, by block.
    """

    def __init__(self) -> None:
        self.blocks: list[Counter[Function]] = []

    def start(self) -> None:
        """Begin to count, for the next block, if there were enough to warm up."""
        self.blocks.append(Counter())
        if len(self.blocks) > WARM:
            sys.setprofile(self._called)

    def median(self) -> Counter[Function]:
        """The calls of the block that has as many as half of the others at most."""
        return sorted(self.blocks[WARM:], key=Counter.total)[BLOCKS // 2]

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            self.blocks[-1][code.co_filename, code.co_firstlineno, code.co_qualname] += 1


def in_a_thread(way: Way) -> None:
    """Take and give back one lock by the thread that calls this."""
    lock = redlock("way")
    for _ in range(WARM + BLOCKS):
        way.start()
        with lock:
            pass
        sys.setprofile(None)


async def in_a_task(way: Way) -> None:
    """Take and give back one lock by a task of an event loop."""
    lock = redlock("way")
    for _ in range(WARM + BLOCKS):
        way.start()
        async with lock:
            pass
        sys.setprofile(None)


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--each", action="store_true", help="print every function on the way")
    options = parser.parse_args()
    threads, tasks = Way(), Way()
    with EmbeddedNodes(NODES) as nodes:
        alias = {"NODES": nodes.urls, "RESTART_GUARD": False}
        settings.configure(INSTALLED_APPS=["django_redlock"], REDLOCK={"default": alias})
        django.setup()
        in_a_thread(threads)
        asyncio.run(in_a_task(tasks))
    for name, way in (("with", threads), ("async with", tasks)):
        calls = way.median()
        files = len({file for file, _, _ in calls})
        print(f"{name:17} {files:4} files, {len(calls)} functions, {calls.total()} calls")
        for (file, line, function), times in calls.items() if options.each else ():
            print(f"{times:6}  {Path(file).relative_to(ROOT)}:{line} {function}")


if __name__ == "__main__":
    main()
