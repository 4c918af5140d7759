"""Processes that all want one name, forked by a client's program: each waits, holds, releases.

They are forked once and live as long as the program; what is open before the fork is not shared.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

WAIT = 30.0  # seconds that anybody waits; more than all turns together take
GRACE = 60.0  # seconds, beyond those of the turns, after which a process is given up
AHEAD = 0.05  # seconds between the message and the start, until which all have read it


class Crowd:
    """Processes of one client, whose ``wait`` and ``release`` they call."""

    def __init__(self, client: Any, ttl: float) -> None:
        self._client, self._ttl = client, ttl
        self._ends: list[Connection] = []

    def grow(self, processes: int) -> None:
        """Fork until there are so many."""
        fork = multiprocessing.get_context("fork")
        while len(self._ends) < processes:
            ours, theirs = fork.Pipe()
            fork.Process(
                target=_take_part, args=(self._client, self._ttl, theirs), daemon=True
            ).start()
            theirs.close()  # so that the end of a process is noticed
            self._ends.append(ours)

    def turns(self, asked: Any) -> dict[str, Any]:
        """Let each have so many turns as ``asked`` says, or begin new ones for so many seconds.

        Returns:
            ``time.monotonic`` at the start and at the end; the turns of each process, [asked, had,
            released] on that clock; the processor seconds of all in that time; how many turns were
            not had, and the first reason.
        """
        self.grow(asked["processes"])
        ends = self._ends[: asked["processes"]]
        start = time.monotonic() + AHEAD
        for end in ends:
            end.send((asked, start))
        answers = []
        for end in ends:
            if not end.poll((asked["seconds"] or 0.0) + GRACE):
                raise TimeoutError("a process of the crowd does not answer")
            answers.append(end.recv())
        return {
            "start": start,
            "end": max(answer["end"] for answer in answers),
            "turns": [answer["turns"] for answer in answers],
            "processor": sum(answer["processor"] for answer in answers),
            "failed": sum(answer["failed"] for answer in answers),
            "error": next((answer["error"] for answer in answers if answer["error"]), ""),
        }


def _take_part(client: Any, ttl: float, end: Connection) -> None:
    """One process, until the one that forked it has ended."""
    with asyncio.Runner() as runner:  # whose loop is made after the fork, if at all
        while True:
            try:
                asked, start = end.recv()
            except EOFError:
                return
            time.sleep(max(0.0, start - time.monotonic()))
            end.send(_turns(client, asked, ttl, start, runner))


def _turns(
    client: Any, asked: Any, ttl: float, start: float, runner: asyncio.Runner
) -> dict[str, Any]:
    turns: list[tuple[float, float, float]] = []
    failed, error, worked = 0, "", time.process_time()
    most, seconds = asked["turns"], asked["seconds"]

    def done(result: Any) -> Any:
        return runner.run(result) if inspect.iscoroutine(result) else result

    while time.monotonic() < start + seconds if most is None else len(turns) + failed < most:
        try:
            began = time.monotonic()
            lease = done(client.wait(asked["name"], ttl, WAIT))
            had = time.monotonic()
            if lease is None:
                raise TimeoutError(asked["name"])  # noqa: TRY301 - counted like what is raised
            time.sleep(asked["hold"])
            freed = time.monotonic()
            done(client.release(lease))
            turns.append((began, had, freed))
        except Exception as raised:  # noqa: BLE001 - each library has its own
            failed += 1
            error = error or f"{type(raised).__name__}: {raised}"[:200]
    return {
        "turns": turns,
        "end": time.monotonic(),
        "processor": time.process_time() - worked,
        "failed": failed,
        "error": error,
    }
