"""Count how often one lock crosses from one room of the package to another.

    python -m tools.crossings

A room is what a reader keeps open to follow one thing: a module, or two or three that are read
together. Each call from a function of one room to a function of another is a crossing. Counted
are those of locks, taken and given back, on five nodes that are well and on connections that
exist: from the group of nodes down to the sockets and back, by a thread, and by a task of an
event loop. Their number differs from lock to lock, for replies come early or late: the median
of 200 locks is printed.
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

Crossing: TypeAlias = tuple[str, str, str]  # from a room, to a room, by calling this function

NODES: Final = 5
WARM: Final = 10
LOCKS: Final = 200
FLOORS: Final = ("fanout", "transport")  # where a crossing that counts begins or ends
# Modules that are read together, under the name of one of them. What an earlier version of the
# package called them stands here too, so that it can be counted (see --package).
TOGETHER: Final = {
    "transport/attempt": "transport/node",
    "transport/backlog": "transport/connection",
    "transport/pending": "transport/connection",
    "transport/wire/resp": "transport/connection",
    "transport/wire/refusals": "transport/wire/replies",
    "fanout/collectors": "fanout/votes",
    "fanout/blocking/request": "fanout/blocking",
    "fanout/blocking/connecting": "fanout/blocking",
    "fanout/blocking/sets": "fanout/blocking",
    "fanout/blocking/threads": "fanout/blocking",
    "fanout/aio/request": "fanout/aio",
    "fanout/aio/batch": "fanout/aio",
    "fanout/aio/loops": "fanout/aio",
    "fanout/aio/connection": "fanout/multiplexer",
    "fanout/aio/connections": "fanout/multiplexer",
    "fanout/aio/timers": "fanout/multiplexer",
    # before the package had folders
    "node": "transport/node",
    "opening": "transport/node",
    "channel": "transport/connection",
    "owed": "transport/connection",
    "resp": "transport/connection",
    "answers": "transport/wire/replies",
    "complaints": "transport/wire/replies",
    "undo_queue": "transport/undo_queue",
    "nodes": "fanout/group",
    "rounds": "fanout/blocking",
    "inquiry": "fanout/aio",
    "question": "fanout/votes",
    "anodes": "fanout/multiplexer",
    "alarms": "fanout/multiplexer",
    "interruption": "concurrency",
    "farewells": "concurrency",
    "latches": "concurrency",
    "event_loops": "concurrency",
    "background": "concurrency",
    "algorithm": "core",
    "undoing": "core",
    "extending": "core",
    "protocol": "core",
    "seconds": "core",
    "waiting": "core",
    "drivers": "core",
}
# Of the earlier module "node", what has become the pool of its connections.
OF_THE_POOL: Final = (
    *("take", "_take", "take_behind", "elsewhere", "_lent_owing", "lend", "take_back", "give"),
    *("_keep", "_remember", "settle", "_look_aside", "_owes", "undo_later"),
)


def room_of(frame: FrameType, package: str) -> str:
    """The room that a frame's function stands in; "" where it is not of the package."""
    path = frame.f_code.co_filename
    if not path.startswith(package):
        return ""
    name = path.removeprefix(package).removesuffix(".py")
    if name == "node" and frame.f_code.co_name in OF_THE_POOL:
        return "transport/pool"
    name = TOGETHER.get(name, name)
    return name.split("/")[0] if name.startswith(("core/", "concurrency/")) else name


class Crossings:
    """Counts crossings between its ``start`` and its ``end``, in one thread.

    Attributes:
        locks: those of each lock.
    """

    def __init__(self, package: Path) -> None:
        self.locks: list[Counter[Crossing]] = []
        self._package = f"{package}/"

    @property
    def median(self) -> Counter[Crossing]:
        """Those of the lock that has as many as half of the others at most."""
        return sorted(self.locks, key=Counter.total)[len(self.locks) // 2]

    def next(self) -> None:
        """Count for the next lock."""
        self.locks.append(Counter())

    def start(self) -> None:
        """Begin to count."""
        sys.setprofile(self._called)

    def end(self) -> None:
        """Count no more."""
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_back is None:
            return
        here, there = room_of(frame.f_back, self._package), room_of(frame, self._package)
        if here != there and any(
            room.startswith(FLOORS) for room in (here, there) if here and there
        ):
            self.locks[-1][here, there, frame.f_code.co_name] += 1


def in_a_thread(crossings: Crossings) -> None:
    """Locks taken and given back by the thread that calls this."""
    from django_redlock import redlock

    for turn in range(WARM + LOCKS):
        crossings.next()
        if turn == WARM:  # from now on the connections exist
            crossings.locks = crossings.locks[-1:]
            crossings.start()
        with redlock("crossings"):
            pass
    crossings.end()


def in_a_loop(crossings: Crossings) -> None:
    """The same by a task of an event loop."""
    from django_redlock import redlock

    async def main() -> None:
        for turn in range(WARM + LOCKS):
            crossings.next()
            if turn == WARM:
                crossings.locks = crossings.locks[-1:]
                crossings.start()
            async with redlock("crossings"):
                pass
        crossings.end()

    asyncio.run(main())


def count() -> dict[str, Counter[Crossing]]:
    """The crossings of the median lock, by who takes it."""
    import django
    from django.conf import settings

    import django_redlock
    from django_redlock.testing import EmbeddedNodes

    with EmbeddedNodes(NODES) as nodes:
        if not settings.configured:
            settings.configure(
                INSTALLED_APPS=["django_redlock"],
                REDLOCK={"default": {"NODES": nodes.urls, "RESTART_GUARD": False}},
            )
            django.setup()
        package = Path(django_redlock.__file__).parent
        found = {}
        for who, take in (("a thread", in_a_thread), ("a task", in_a_loop)):
            crossings = Crossings(package)
            take(crossings)
            found[who] = crossings.median
    return found


def main() -> None:
    """Print how many crossings one lock has, and which."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", type=Path, help="folder with another version of the package")
    parser.add_argument("--each", action="store_true", help="print every called function")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, str(options.package.resolve()))
    for who, found in count().items():
        print(f"{who}: {found.total()} crossings for a lock")
        rooms: Counter[tuple[str, ...]] = Counter()
        for (here, there, called), times in found.items():
            rooms[(here, there, called) if options.each else (here, there)] += times
        for crossing, times in rooms.most_common():
            print(f"{times:6}  {' -> '.join(crossing)}")


if __name__ == "__main__":
    main()
