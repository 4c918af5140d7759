"""A client of a lock, as a process: it does what it is told by lines of JSON, and answers each.

    python -m museum.client_program '{"recipe": "museum.recipes.setnx:SetnxDel", ...}'

    {"do": "acquire", "wait": 2}    {"held": true}
    {"do": "read"}                  {"value": 3}
    {"do": "write"}                 {"done": true}; one more than it has read
    {"do": "extend"}                {"held": true}
    {"do": "believe"}               {"held": true}; whether it has the lock by what it knows
    {"do": "release"}               {}; it comes to the point "release" before it sends anything
    {"do": "look"}                  {"value": 3}; it reads, and does not note it
    {"do": "halt", "at": "..."}     {}; it stops itself (SIGSTOP) when it comes to this point
    {"do": "work", "times": 20}     {"done": 20}; acquires, reads, writes, releases
    {"do": "call", "what": "..."}   {}; a method that only this recipe has

What the recipe raises is answered as {"error": "..."}. Also programs of other environments run this
module, so it imports nothing but the standard library and this folder.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from . import history
from .history import History
from .recipes.interface import Hold, Place
from .store import FileStore

WORK_WAIT = 60.0  # seconds for which a client that works waits for its turn


class Client:
    """A client: its recipe, what the lock guards, and what it has read."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._notes = History(told["history"], told["who"])
        self._halts: set[str] = set()
        place = Place(
            urls=told["urls"],
            name=told["name"],
            ttl=told["ttl"],
            timeout=told["timeout"],
            store=told["store"],
            point=self._point,
            lost=self._lose,
        )
        module, _, name = told["recipe"].partition(":")
        self._recipe = getattr(importlib.import_module(module), name)(place)
        self._store = getattr(self._recipe, "store", None) or FileStore(place.store)
        self._hold: Hold | None = None
        self._seen = 0

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
        return self._note_hold(self._or_fails(lambda: self._recipe.acquire(wait)))

    def _extend(self) -> dict[str, Any]:
        return self._note_hold(self._or_fails(self._recipe.extend), history.LOST)

    def _note_hold(self, hold: Hold | None, otherwise: str = history.REFUSED) -> dict[str, Any]:
        self._hold = hold
        if hold is None:
            self._notes.note(otherwise)
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

    def _look(self) -> dict[str, Any]:
        return {"value": self._store.read()}

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

    def _work(self, times: int, think: float = 0.0) -> dict[str, Any]:
        done = 0
        while done < times:
            if not self._acquire(WORK_WAIT)["held"]:
                break
            self._read()
            time.sleep(think)
            done += self._write()["done"]
            self._release()
        return {"done": done}

    def _call(self, what: str) -> dict[str, Any]:
        self._or_fails(getattr(self._recipe, what))
        return {}

    def _or_fails(self, act: Any) -> Any:
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
    """Do as told until the input ends."""
    told = json.loads(sys.argv[1])
    client = Client(told)
    if told["warm"]:
        client.warm_up()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = client.do(asked.pop("do"), **asked)
        except Exception as error:  # noqa: BLE001 - it is told, with its type
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
