"""A process that forks while another thread holds every lock of the package; run by test_forks.

It looks for locks in everything that can be reached from the package's modules. One child says
which of them it cannot have, another one uses what takes them. With the argument "careless" there
is one more, which no child makes anew; with "in C" no hook of Python runs at the forks. Prints one
JSON line.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import django
from django.conf import settings
from django.core.signals import setting_changed
from django.db.models.signals import class_prepared, pre_save
from django.dispatch import Signal

from tests.nodes.forked_in_c import fork_in_c

PATIENCE = 30  # seconds, in which a child that hangs is certain to
LOCKS = (type(threading.Lock()), type(threading.RLock()))
OURS = "django_redlock"
MANY = (list, tuple, set, frozenset, deque, weakref.WeakSet)


def ours() -> list[types.ModuleType]:
    """All modules of the package that can be imported, with this Django."""
    import django_redlock

    inside = [each.name for each in pkgutil.walk_packages(django_redlock.__path__, f"{OURS}.")]
    if importlib.util.find_spec("django.tasks") is None:
        inside = [each for each in inside if not each.startswith(f"{OURS}.tasks.")]
    return [django_redlock, *map(importlib.import_module, inside)]


def parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing consists of, where it is one of ours or holds some."""
    if isinstance(thing, dict | weakref.WeakKeyDictionary):
        yield from ((f"[{key!r}]", value) for key, value in tuple(thing.items()))
    elif isinstance(thing, MANY):
        yield from ((f"[{place}]", each) for place, each in enumerate(tuple(thing)))
    elif isinstance(thing, types.MethodType):
        yield ".__self__", thing.__self__
    elif isinstance(thing, functools.partial):
        yield from ((".func", thing.func), (".args", thing.args))
    elif isinstance(thing, threading.Condition | threading.Event):
        inner = "_cond" if isinstance(thing, threading.Event) else "_lock"
        yield f".{inner}", getattr(thing, inner)
    elif is_ours(thing):
        for name in (*getattr(thing, "__dict__", ()), *getattr(thing, "__slots__", ())):
            yield f".{name}", getattr(thing, name, None)


def is_ours(thing: Any) -> bool:
    """Whether a module, a class, or the class of an object is the package's."""
    kind = thing if isinstance(thing, type | types.ModuleType) else type(thing)
    name = kind.__name__ if isinstance(kind, types.ModuleType) else kind.__module__
    return name.split(".")[0] == "django_redlock" or isinstance(thing, Signal)


def locks() -> dict[str, Any]:
    """All locks, by the way that leads to them."""
    found: dict[str, Any] = {}
    # Without Django's own.
    seen: dict[int, Any] = {id(each): each for each in (setting_changed, class_prepared, pre_save)}
    rest: deque[tuple[str, Any]] = deque((each.__name__, each) for each in ours())
    while rest:
        where, thing = rest.popleft()
        if isinstance(thing, LOCKS):
            found.setdefault(where, thing)
        elif id(thing) not in seen:
            seen[id(thing)] = thing
            rest.extend((where + name, part) for name, part in parts(thing))
    return found


def known() -> dict[str, Any]:
    """Some of them, of each kind."""
    from django_redlock import conf, signals
    from django_redlock.leases.renewal import watchdog

    memory: Any = conf.backend("default").group
    real: Any = conf.backend("real").group
    return {
        "conf": conf._making,
        "a signal": signals.lease_lost.lock,
        "the watchdog's threads": watchdog._workers._lock,
        "nodes in memory": memory._lock,
        "their lines": memory._waiters.local._changing,
        "a node's threads": real.nodes[0].threads._lock,
        "lines": real._waiters.local._changing,
    }


def have_held(found: dict[str, Any]) -> threading.Event:
    """Let another thread hold these locks until the event is set that is returned."""
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        locks = {id(each): each for each in found.values()}.values()
        taken = [lock for lock in locks if lock.acquire(timeout=1)]  # or somebody else holds it
        held.set()
        enough.wait()
        for lock in taken:
            lock.release()

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(PATIENCE)
    return enough


def use() -> bool:
    """Go the ways that take locks: settings, events, signals, metrics, waiting, the watchdog."""
    from django_redlock import conf, events, otel, redlock, signals

    conf.forget()
    events.subscribe(print, [events.EventKind.LOST])
    signals.lease_lost.connect(use, weak=False)
    otel.instrument()
    with redlock("name") as lease:
        took = redlock("name", wait=0.01).try_acquire() is None and lease.fence > 0
    conf.backend("real").group.states()
    return took


def forked(work: Any) -> Any:
    """What a forked child says of its work; None if it hangs."""
    read, write = os.pipe()
    pid = fork_in_c() if "in C" in sys.argv else os.fork()
    if not pid:
        try:
            signal.alarm(PATIENCE)
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        ready, _, _ = select.select([pipe], [], [], 2 * PATIENCE)
        told = pipe.read() if ready else ""
    os.waitpid(pid, 0)
    return json.loads(told) if told else None


def stuck(before: dict[str, Any]) -> list[str]:
    """The locks of the parent that a child still has, and cannot take, after a first use."""
    from django_redlock import redlock

    redlock("first").acquire()
    parents = set(map(id, before.values()))
    return [
        where
        for where, lock in locks().items()
        if id(lock) in parents and not lock.acquire(blocking=False)
    ]


def main() -> None:
    """See the module's docstring."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    settings.REDLOCK["real"] = {"NODES": ["redis://127.0.0.1:1/0"]}
    django.setup()
    from django_redlock import conf, redlock

    conf.backend("real")
    with redlock("warm"):
        pass
    if "careless" in sys.argv:
        conf.careless = threading.RLock()  # type: ignore[attr-defined]
    found = locks()
    missed = [
        name for name, lock in known().items() if not any(lock is each for each in found.values())
    ]
    enough = have_held(found)
    told = {"missed": missed, "stuck": forked(functools.partial(stuck, found)), "used": forked(use)}
    enough.set()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
