"""A process that forks as uWSGI does, in C and without a hook of Python; run by test_forks.

It holds a lease, and its children use the package. Arguments: the alias as JSON, the ports of its
nodes, how the children use it, "thread" or "task", and "careless" if they shall not notice the
fork. Prints one JSON line: what each child says, and what the parent still has.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from django.conf import settings

from tests.support.inherited import to_nodes

TTL = 2.0
SWITCH = sys.getswitchinterval()  # seconds after which a thread asks for the interpreter's lock


def is_renewed(left: float, now: float) -> bool | None:
    """Whether a lease that had so much time left has more now; None: it may still come."""
    return now > left if now > left or now <= 0 else None


def in_thread(lock: Any) -> bool:
    """Whether a lease of this process is renewed."""
    with lock as own:
        left = own.remaining()
        while (renewed := is_renewed(left, own.remaining())) is None:
            left = own.remaining()
            time.sleep(0.01)
    return renewed


async def in_task(lock: Any) -> bool:
    """The same, in an event loop."""
    async with lock as own:
        left = own.remaining()
        while (renewed := is_renewed(left, own.remaining())) is None:
            left = own.remaining()
            await asyncio.sleep(0.01)
    return renewed


def fork_in_c() -> int:
    """Fork at a moment when no other thread asks for the interpreter's lock.

    Else the child releases the lock for that thread, which the child has not got, and waits until
    the thread has taken the lock: for ever. What a fork of Python does in the child prevents that.
    """
    sys.setswitchinterval(5)  # so no thread asks for the lock any more …
    time.sleep(10 * SWITCH)  # … and the lock goes to those that have asked
    child: int = ctypes.PyDLL(None).fork()
    sys.setswitchinterval(SWITCH)
    return child


def main() -> None:
    """See the module's docstring."""
    settings.configure(REDLOCK={"default": json.loads(sys.argv[1])})
    from django_redlock import backend, conf, redlock

    if "careless" in sys.argv:
        backend.notice_fork = conf.notice_fork = lambda: None  # type: ignore[attr-defined]
    nodes: Any = [SimpleNamespace(port=int(port)) for port in sys.argv[2].split(",")]

    def work() -> dict[str, Any]:
        told: dict[str, Any] = {"remaining": lease.remaining()}
        own = redlock("own", ttl=TTL)
        told["renewed"] = asyncio.run(in_task(own)) if "task" in sys.argv else in_thread(own)
        told["shared"] = len(to_nodes(os.getpid(), nodes) & to_nodes(os.getppid(), nodes))
        told["taken"] = redlock("parents").try_acquire() is None
        told["holder"] = backend.process_label().endswith(f":{os.getpid()}")
        return told

    asyncio.run(in_task(redlock("warm", ttl=TTL)))
    lease = redlock("parents", ttl=TTL).acquire()
    before, told = to_nodes(os.getpid(), nodes), []
    for _ in range(2):
        read, write = os.pipe()
        child = fork_in_c()
        if child == 0:
            os.write(write, json.dumps(work()).encode())
            sys.exit()  # the interpreter shuts down, and closes what it has
        os.close(write)
        with os.fdopen(read) as pipe:
            told.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    if "careless" not in sys.argv:
        lease.extend()
    kept = len(nodes) <= len(before) == len(before & to_nodes(os.getpid(), nodes))
    lease.release()
    print(json.dumps({"children": told, "kept": kept}))


if __name__ == "__main__":
    main()
