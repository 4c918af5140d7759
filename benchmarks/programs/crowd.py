"""Processes that all want one name, forked by a client's program: each waits, holds, releases.

Asked {"style", "name", "processes", "hold", "seconds": for which each begins new turns}, it says
{"waiting": how many} as soon as all have connected and had turns to warm up. At the next line
they begin. When each has had its last turn, it answers {"start": ``time.monotonic`` then,
"turns": by process, each [asked, had, released] on that clock, "processor": seconds of all
processes in that time, "failed": turns that were not had, "error": the first reason}.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

WAIT = 30.0  # seconds that anybody waits; more than all turns together take
GRACE = 60.0  # seconds, beyond those of the turns, after which a process is given up
REHEARSALS = 2  # turns to warm up: connections are open, those for waiting too
AHEAD = 0.05  # seconds between the message and the start, until which all have read it


class Crowd(NamedTuple):
    """Wait for a name, so many seconds at most; release what that returned. None: not had.

    Called in the forked processes only: what is open before the fork is not shared.
    """

    acquire: Callable[[str, float], Any]
    release: Callable[[Any], object]


def gather(
    crowd: Crowd, asked: Mapping[str, Any], waiting: Callable[[int], object]
) -> dict[str, Any]:
    """Let them have their turns; before, ``waiting`` is told how many there are, and may block."""
    fork = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    for _ in range(asked["processes"]):
        ours, theirs = fork.Pipe()
        fork.Process(target=_take_part, args=(crowd, asked, theirs), daemon=True).start()
        theirs.close()  # so that a process which dies is heard
        ends.append(ours)
    for end in ends:
        _hear(end, GRACE)
    waiting(len(ends))
    start = time.monotonic() + AHEAD
    for end in ends:
        end.send(start)
    answers = [_hear(end, asked["seconds"] + GRACE) for end in ends]
    return {
        "start": start,
        "turns": [answer["turns"] for answer in answers],
        "processor": sum(answer["processor"] for answer in answers),
        "failed": sum(answer["failed"] for answer in answers),
        "error": next((answer["error"] for answer in answers if answer["error"]), ""),
    }


def _hear(end: Connection, seconds: float) -> Any:
    if not end.poll(seconds):
        raise TimeoutError("a process of the crowd does not answer")
    return end.recv()


def _take_part(crowd: Crowd, asked: Mapping[str, Any], end: Connection) -> None:
    """One process, from its connections to its last turn."""
    _turns(crowd, f"{asked['name']}:rehearsal", asked["hold"], lambda had: had < REHEARSALS)
    end.send("ready")
    start = end.recv()
    time.sleep(max(0.0, start - time.monotonic()))
    over = start + asked["seconds"]
    end.send(_turns(crowd, asked["name"], asked["hold"], lambda _: time.monotonic() < over))


def _turns(crowd: Crowd, name: str, hold: float, more: Callable[[int], bool]) -> dict[str, Any]:
    turns: list[tuple[float, float, float]] = []
    failed, error, worked = 0, "", time.process_time()
    while more(len(turns) + failed):
        try:
            began = time.monotonic()
            lease = crowd.acquire(name, WAIT)
            had = time.monotonic()
            if lease is None:
                raise TimeoutError(name)  # noqa: TRY301 - counted like what the library raises
            time.sleep(hold)
            freed = time.monotonic()
            crowd.release(lease)
            turns.append((began, had, freed))
        except Exception as raised:  # noqa: BLE001 - each library has its own
            failed += 1
            error = error or f"{type(raised).__name__}: {raised}"[:200]
    spent = time.process_time() - worked
    return {"turns": turns, "processor": spent, "failed": failed, "error": error}
