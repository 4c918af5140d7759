"""The process that ends a command in time: before its lease can be over.

``child`` starts this file by its path, with all signals blocked, as the leader of a process group,
and then the command in that group. It gives this process two pipes: one with orders, each of which
says until when the command may run, and one on which this process says that it has begun.

It does not trust its parent to be alive: no news is bad news. When the time of the newest order is
over, it ends the group; when the orders end, because the parent was killed, it ends it at once, and
also when anything goes wrong here. It imports the standard library only, so it starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Final

ORDER: Final = struct.Struct("dd")  # when to send SIGTERM and SIGKILL, on the clock of leases
PAGE: Final = 4096  # bytes: a whole number of orders, and the unit in which a pipe has room
BEGUN, ASKED = b"b", b"a"  # what this process says: it watches; it has sent SIGTERM


def now() -> float:
    """Return the time on the clock of leases; see ``core.policy.boottime``."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def running(group: int) -> list[int]:
    """Return the processes of a group that run, zombies excluded.

    Where they cannot be listed and may not be signalled, return the number of the group.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        unlisted = [group]
    else:
        unlisted = []
    states = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, of = stat.read_bytes().rpartition(b")")[2].split()[:3]
            if int(of) == group:
                states[int(stat.parent.name)] = state
    return [pid for pid, state in states.items() if state not in b"ZX"] if states else unlisted


def refuses(pid: int) -> bool:
    """Return True if this user may not signal the process: it belongs to another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def newest(orders: int) -> tuple[float, float] | None:
    """Return the last order that has come; None: none has come since the last look.

    Raises:
        EOFError: the parent is gone, and with it the lease's renewal.
    """
    last = b""
    with contextlib.suppress(BlockingIOError):
        while text := os.read(orders, PAGE):
            last = text
        raise EOFError
    return ORDER.unpack(last[-ORDER.size :]) if last else None


def guard(orders: int, said: int) -> None:
    """Ask the group to end when the newest order says so; return when it is to be killed.

    Each step begins by reading the orders: this process may have stood still since the last one.
    """
    os.write(said, BEGUN)
    moments, asked = (0.0, 0.0), False
    while True:
        moments = newest(orders) or moments
        left = moments[asked] - now()
        if left > 0:
            select.select([orders], [], [], left)
        elif asked:
            return
        else:
            asked = True
            os.write(said, ASKED)
            os.killpg(0, signal.SIGTERM)  # blocked here
            name_refusals()


def name_refusals() -> None:
    """Say which processes of the group this user may not signal: the parent may say no more."""
    pids = [pid for pid in running(os.getpgrp()) if refuses(pid)]
    if pids and select.select([], [sys.stderr], [], 0)[1]:  # never wait for a reader
        text = f"redlock_run has no permission to end {listed(pids)}: it works on without the lock"
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


def listed(pids: list[int]) -> str:
    """Return the numbers of processes as text."""
    return f"the process{'es' if pids[1:] else ''} {', '.join(map(str, pids))}"


def main(orders: str, said: str) -> None:
    """Watch; whatever happens, the group does not go on without this process.

    Args:
        orders, said: numbers of descriptors; no read of orders waits.
    """
    try:
        guard(int(orders), int(said))
    except EOFError:
        name_refusals()
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
