"""A process in which blocks are left by the garbage collector; run by test_collected.

Prints one JSON line. The first argument has the URLs of nodes; the second is what to play:

    held     another thread has all locks but the innermost while garbage is collected
    fork     another thread collects garbage when a child is forked
    order    which lock is taken inside of which, while threads and tasks lock and wait

The third is a broken variant, or empty.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

# Of a pool of threads, of a local queue, of a lease; and what the watchdog sleeps on.
INNERMOST = ("threads._lock", "_workers._lock", "local._changing", "[3]._changing", "._silent")
PATIENCE = 30  # seconds, in which a thread that hangs is certain to


class Cycle:
    """What only the collector can free."""

    def __init__(self, *kept: object) -> None:
        self.kept = (*kept, self)


class Noted:
    """A re-entrant lock that notes which locks its thread has when it is taken.

    Attributes:
        pairs: the makers of the outer and the inner lock.
    """

    pairs: set[tuple[str, str]] = set()  # noqa: RUF012 - of all of them
    here = threading.local()
    make = staticmethod(threading.RLock)

    def __init__(self) -> None:
        frame = sys._getframe(1)
        owner = frame.f_locals.get("self")
        self.owner = frame.f_globals["__name__"] if owner is None else type(owner).__name__
        self._lock = self.make()
        self._is_owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, and note inside of what."""
        held: list[Noted] = vars(self.here).setdefault("held", [])
        if not self._is_owned():
            self.pairs.update((each.owner, self.owner) for each in held)
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            held.append(self)
        return taken

    def release(self) -> None:
        """Give it back."""
        vars(self.here)["held"].remove(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def started(urls: list[str]) -> Any:
    """The template of locks on these nodes, in a process with Django."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.conf import settings

    alias: Any = {"NODES": urls, "TTL": 5, "MAX_TTL": 5, "RESTART_GUARD": False}
    settings.REDLOCK["real"] = alias
    django.setup()
    from django_redlock import redlocks

    return redlocks["real"]


# -- held -----------------------------------------------------------------------------------------


def rows(redlock: Any, name: str) -> Iterator[None]:
    """A block that nobody leaves."""
    with redlock(name):
        yield


class Holder:
    """Releases its lease when it is forgotten."""

    def __init__(self, redlock: Any, name: str) -> None:
        self.lease = redlock(name).acquire()

    def __del__(self) -> None:
        self.lease.release()


def left(redlock: Any, done: list[str]) -> None:
    """Leave to the collector what it may find of ours."""
    from django_redlock.interruption import when_forgotten
    from django_redlock.leases.renewal import watchdog

    generator = rows(redlock, "generator")
    next(generator)
    Cycle(generator)
    Cycle(Holder(redlock, "holder"))

    async def work() -> None:
        async with redlock("task"):
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    coroutine = work()
    task = loop.create_task(coroutine)
    while "task" not in str(held_names()):
        loop.run_until_complete(asyncio.sleep(0.001))
    Cycle(task, coroutine)
    loop.close()

    def job() -> None:
        with watchdog._lock:
            done.append("job")

    thing = Cycle()
    when_forgotten(thing, job)


def redlock_group() -> Any:
    """The nodes."""
    from django_redlock import conf

    return conf.backend("real").group


def held_names() -> list[str]:
    """What this process holds."""
    from django_redlock.leases.renewal import watchdog

    return [str(lease.name) for lease in watchdog.held()]


def outer_locks() -> dict[str, Any]:
    """All locks of the package but the innermost; see ``Collector``."""
    from .held_locks import locks

    return {where: lock for where, lock in locks().items() if not where.endswith(INNERMOST)}


def is_free(redlock: Any, name: str) -> bool:
    """Whether nobody has the name."""
    lease = redlock(name).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def held(redlock: Any, variant: str) -> dict[str, Any]:
    """Collect garbage while another thread has all locks but the innermost."""
    from django_redlock import events
    from django_redlock.interruption import collector
    from tests.support.waiting import eventually

    from .held_locks import have_held

    done: list[str] = []
    told: list[bool] = []
    names = ("generator", "holder", "task")
    with redlock("warm"):
        pass
    gc.disable()
    if variant == "in-place":
        collector.runs_here = lambda: False
    left(redlock, done)
    events.subscribe(lambda event: told.append(collector.runs_here()), [events.EventKind.RELEASED])
    found = outer_locks()
    enough = have_held(found)
    thread = threading.Thread(target=gc.collect, daemon=True)
    thread.start()
    thread.join(PATIENCE if variant != "in-place" else 1)
    returned, ended = not thread.is_alive(), not set(names) & set(held_names())
    enough.set()
    thread.join()
    eventually(lambda: all(is_free(redlock, each) for each in names))
    eventually(lambda: {*done} == {"job"})
    return {"locks": sorted(found), "returned": returned, "ended": ended, "told": told}


# -- fork -----------------------------------------------------------------------------------------


def fork(redlock: Any, variant: str) -> dict[str, Any]:
    """Fork while another thread is in the middle of a collection."""
    from django_redlock.interruption import collector

    from .held_locks import forked

    begun, over = threading.Event(), threading.Event()

    def collect() -> None:
        collector.acquire()  # as Python does, see ``Collector.start``
        begun.set()
        over.wait()
        collector.release()

    def work() -> bool:
        if variant == "shared":
            collector.acquire = before
        gc.collect()
        redlock("child").acquire().release()
        return True

    before = collector.acquire
    thread = threading.Thread(target=collect)
    thread.start()
    begun.wait()
    worked = forked(work)
    over.set()
    thread.join()
    return {"worked": worked}


# -- order ----------------------------------------------------------------------------------------


def nest() -> None:
    """Take another lock inside of that of a lease."""
    from django_redlock.leases.lease import Lease
    from django_redlock.leases.renewal import watchdog

    tell_once = Lease.tell_once

    def nested(lease: Any) -> bool:
        with lease._changing, watchdog._lock:
            return tell_once(lease)

    vars(sys.modules[Lease.__module__])["Lease"].tell_once = nested


def by_a_thread(redlock: Any, name: str) -> None:
    """Lock, extend, and wait with others."""
    from django_redlock import LockTaken

    for turn in range(40):
        with redlock(f"{name}-{turn}") as lease:
            lease.extend()
        with suppress(LockTaken), redlock("shared", wait=0.2):
            pass


async def by_a_task(redlock: Any, name: str) -> None:
    """The same in a task."""
    from django_redlock import LockTaken

    for turn in range(20):
        async with redlock(f"{name}-{turn}") as lease:
            await lease.aextend()
        with suppress(LockTaken):
            async with redlock("shared", wait=0.2):
                pass


def order(redlock: Any, variant: str) -> dict[str, Any]:
    """Note the pairs of locks while threads and tasks lock and wait."""
    if variant == "nested":
        nest()

    async def tasks() -> None:
        await asyncio.gather(*(by_a_task(redlock, f"task-{each}") for each in range(5)))

    gc.disable()  # what it wants inside of others is the other play's
    threads = [
        threading.Thread(target=by_a_thread, args=(redlock, f"thread-{each}")) for each in range(6)
    ]
    for each in threads:
        each.start()
    asyncio.run(tasks())
    for each in threads:
        each.join()
    redlock_group().close()
    return {"pairs": sorted(Noted.pairs)}


def main() -> None:
    """See the module's docstring."""
    urls, play, variant = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
    if play == "order":
        threading.RLock = Noted  # type: ignore[assignment]
    redlock = started(urls)
    plays = {"held": held, "fork": fork, "order": order}
    print(json.dumps(plays[play](redlock, variant)))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
