"""Processes that wait for one name in turns; they are forked once and live for the whole run."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 30.0  # that anybody waits; more than all turns together take
GRACE = 60.0  # after which a process is given up
AHEAD = 0.02  # seconds from the message to the start, until which all have read it

Hold = Callable[[str, float], AbstractContextManager[object]]


class Waiters:
    """So many processes, each of which takes a name again and again while the others wait for it.

    Args:
        hold: given a name and how long to wait, a context manager that holds it. It is called in
            the forked processes only.
    """

    def __init__(self, count: int, hold: Hold) -> None:
        fork = multiprocessing.get_context("fork")
        self._ends: list[Connection] = []
        for _ in range(count):
            ours, theirs = fork.Pipe()
            fork.Process(target=_take_part, args=(hold, theirs), daemon=True).start()
            theirs.close()  # so that the end of a process is noticed
            self._ends.append(ours)

    def block(self, asked: Any) -> dict[str, object]:
        """Let them have ``pairs`` turns in all; the time of one is that of all by their number."""
        start = time.monotonic() + AHEAD
        turns = max(1, asked["pairs"] // len(self._ends))
        for end in self._ends:
            end.send((asked["name"], turns, start))
        answers = [self._hear(end) for end in self._ends]
        had = sum(answer["had"] for answer in answers)
        seconds = max(answer["ended"] for answer in answers) - start
        turn = seconds / had * 1e6 if had else None
        return {
            "acquire": turn,
            "pair": turn,
            "seconds": seconds,
            "processor": sum(answer["processor"] for answer in answers),
            "pairs": had,
            "failed": turns * len(answers) - had,
            "error": next((answer["error"] for answer in answers if answer["error"]), ""),
        }

    @staticmethod
    def _hear(end: Connection) -> Any:
        if not end.poll(GRACE):
            raise TimeoutError("a process that waits does not answer")
        return end.recv()


def _take_part(hold: Hold, end: Connection) -> None:
    """One process, until the one that forked it has ended."""
    while True:
        try:
            name, turns, start = end.recv()
        except EOFError:
            return
        time.sleep(max(0.0, start - time.monotonic()))
        end.send(_turns(hold, name, turns))


def _turns(hold: Hold, name: str, turns: int) -> dict[str, Any]:
    had, error, worked = 0, "", time.process_time()
    for _ in range(turns):
        try:
            with hold(name, SECONDS):
                pass
            had += 1
        except Exception as raised:  # noqa: BLE001 - counted, like in `serve`
            error = error or f"{type(raised).__name__}: {raised}"[:200]
    return {
        "had": had,
        "ended": time.monotonic(),
        "processor": time.process_time() - worked,
        "error": error,
    }
