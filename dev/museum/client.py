"""A client of a lock, as a process: it does what lines of JSON say, and answers each.

    python -m dev.museum.client '{"recipe": "dev.museum.rooms.setnx:SetnxDel", ...}'

    {"do": "acquire", "wait": 2}    {"held": true}
    {"do": "read"}                  {"value": 3}
    {"do": "write"}                 {"done": true}; one more than it has read
    {"do": "believe"}               {"held": true}; whether it has the lock by what it knows
    {"do": "release"}               {}; it comes to the point "release" before it sends anything
    {"do": "halt", "at": "..."}     {}; it stops itself (SIGSTOP) when it comes to this point
    {"do": "work", "times": 20}     {"done": 20}; acquires, reads, writes, releases; a lock that
                                    several may hold guards no number
    {"do": "call", "what": "..."}   {}; a method that only this recipe has

What the recipe raises is answered as {"error": "..."}. The environments of other libraries run this
module: it imports nothing but the standard library, redis, and this folder.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import history
from .cell import Hold, Setup
from .history import History

WORK_WAIT = 60.0  # seconds for which a client that works waits for its turn


class FileStore:
    """What locks guard: a number in a file, replaced as a whole by each write. It checks nothing.

    A store of a recipe refuses a write by returning False.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self) -> int:
        """Return the number; 0 before the first write."""
        return int(self._path.read_text(encoding="ascii")) if self._path.exists() else 0

    def write(self, value: int) -> bool:
        """Replace it."""
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        new.write_text(str(value), encoding="ascii")
        new.replace(self._path)
        return True


class Program:
    """The recipe of a client, what its lock guards, and what the client has read."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._notes = History(start["history"], start["client"])
        self._halts: set[str] = set()
        self._hold: Hold | None = None
        self._seen = 0
        setup = Setup(**start["setup"], point=self._point, lost=self._lose)
        self._is_limited = setup.limit > 1
        module, _, name = start["recipe"].partition(":")
        self._recipe = getattr(importlib.import_module(module), name)(setup)
        self._store = getattr(self._recipe, "store", None) or FileStore(setup.store)

    def do(self, verb: str, **how: Any) -> dict[str, Any]:
        """Do what one line says."""
        return getattr(self, f"_{verb}")(**how)  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Take the lock once and give it back, unnoted: now all is imported and connected."""
        with suppress(Exception):  # its servers may be out of reach, or the lock another's
            if self._recipe.acquire(0) is not None:
                self._recipe.release()

    def _acquire(self, wait: float) -> dict[str, Any]:
        self._notes.note(history.ASKS)
        self._hold = hold = self._or_fails(lambda: self._recipe.acquire(wait))
        if hold is None:
            self._notes.note(history.REFUSED)
        else:
            self._notes.note(history.HOLDS, until=hold.until, fence=hold.fence)
        return {"held": hold is not None}

    def _lose(self) -> None:
        self._hold = None
        self._notes.note(history.LOST)

    def _believe(self) -> dict[str, Any]:
        hold = self._hold
        is_over = hold is not None and hold.until is not None and hold.until <= time.monotonic()
        return {"held": hold is not None and not is_over}

    def _read(self) -> dict[str, Any]:
        self._seen = self._or_fails(self._store.read)
        self._notes.note(history.READS, value=self._seen)
        return {"value": self._seen}

    def _write(self) -> dict[str, Any]:
        value = self._seen + 1
        done = self._or_fails(lambda: self._store.write(value))
        self._notes.note(history.WRITES, value=value, done=done)
        if not done:
            self._lose()
        return {"done": done}

    def _release(self) -> dict[str, Any]:
        self._notes.note(history.RELEASES)
        self._point("release")
        self._or_fails(self._recipe.release)
        self._notes.note(history.RELEASED)
        return {}

    def _halt(self, at: str) -> dict[str, Any]:
        self._halts.add(at)
        return {}

    def _work(self, times: int) -> dict[str, Any]:
        done = 0
        while done < times and self._acquire(WORK_WAIT)["held"]:
            if not self._is_limited:
                self._read()
            time.sleep(0.002)
            done += self._is_limited or self._write()["done"]
            self._release()
        return {"done": done}

    def _call(self, what: str) -> dict[str, Any]:
        self._or_fails(getattr(self._recipe, what))
        return {}

    def _or_fails(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            self._notes.note(history.FAILS, why=f"{type(error).__name__}: {error}")
            raise

    def _point(self, where: str) -> None:
        if where in self._halts:
            self._halts.remove(where)
            self._notes.note(history.POINT, where=where)
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> int:
    """Do as the lines say until the input ends."""
    logging.disable()  # the history says what happens
    start = json.loads(sys.argv[1])
    program = Program(start)
    if start["warm"]:
        program.warm_up()
    print("{}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = program.do(command.pop("do"), **command)
        except Exception as error:  # noqa: BLE001 - it is answered, with its type
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
