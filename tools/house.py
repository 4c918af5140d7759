"""Print how large the house is, and how long the way of one lock through it is.

    make house

Modules and lines are those of the package and of the tests. The way is that of an uncontended block
of a reused ``Lock`` on five nodes that are well, by a thread and by a task: every frame of the
package that ``sys.setprofile`` sees, in its files, functions and calls. A generator that goes on
counts as a call. Replies come early or late, so the numbers differ from block to block: those of
the median block are printed. Nothing enforces them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from types import FrameType

Function: TypeAlias = tuple[str, int, str]  # file, first line, name

ROOT: Final = Path(__file__).parents[1]
NODES: Final = 5
WARM: Final = 300  # blocks before the first that counts
BLOCKS: Final = 101


class Way:
    """Counts the calls of the package's functions in each of some blocks, in one thread.

    Attributes:
        blocks: how often each function was called, by block.
    """

    def __init__(self, package: Path) -> None:
        self.blocks: list[Counter[Function]] = []
        self._package = f"{package}/"

    @property
    def median(self) -> Counter[Function]:
        """The calls of the block that has as many as half of the others at most."""
        return sorted(self.blocks, key=Counter.total)[len(self.blocks) // 2]

    def start(self) -> None:
        """Begin to count, for the next block."""
        self.blocks.append(Counter())
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._package):
            place = code.co_filename, code.co_firstlineno, code.co_qualname
            self.blocks[-1][place] += 1


def in_a_thread(way: Way) -> None:
    """Take and give back one lock by the thread that calls this."""
    from django_redlock import redlock

    lock = redlock("house")
    for turn in range(WARM + BLOCKS):
        if turn >= WARM:
            way.start()
        with lock:
            pass
        sys.setprofile(None)


def in_a_task(way: Way) -> None:
    """Take and give back one lock by a task of an event loop."""
    from django_redlock import redlock

    async def main() -> None:
        lock = redlock("house")
        for turn in range(WARM + BLOCKS):
            if turn >= WARM:
                way.start()
            async with lock:
                pass
            sys.setprofile(None)

    asyncio.run(main())


def ways() -> dict[str, Counter[Function]]:
    """Return the median block by a thread and by a task."""
    import django
    from django.conf import settings

    import django_redlock
    from django_redlock.testing import EmbeddedNodes

    package, found = Path(django_redlock.__file__).parent, {}
    with EmbeddedNodes(NODES) as nodes:
        if not settings.configured:
            settings.configure(
                INSTALLED_APPS=["django_redlock"],
                REDLOCK={"default": {"NODES": nodes.urls, "RESTART_GUARD": False}},
            )
            django.setup()
        for name, take in (("with", in_a_thread), ("async with", in_a_task)):
            way = Way(package)
            take(way)
            found[name] = way.median
    return found


def size(folder: Path) -> str:
    """Return how many modules and lines a folder has, as text."""
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    lines = sum(text.count("\n") for text in texts)
    return f"{len(texts)} modules, {lines:,} lines"


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--each", action="store_true", help="print every function on the way")
    options = parser.parse_args()
    for folder in ("django_redlock", "tests"):
        print(f"{folder + '/':16} {size(ROOT / folder)}")
    for name, calls in ways().items():
        files = len({file for file, _, _ in calls})
        print(f"{name:16} {files} files, {len(calls)} functions, {calls.total()} calls")
        if options.each:
            for (file, line, function), times in calls.items():
                print(f"{times:6}  {Path(file).relative_to(ROOT)}:{line} {function}")


if __name__ == "__main__":
    main()
