"""node-redlock 4.2.0 and 5.0.0-beta.2 with ioredis 5.11.1, unchanged. Both are in use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup

PROGRAM = Path(__file__).with_suffix(".js")


class NodeRedlock5:
    """A process of Node.js, which ``node_redlock.js`` describes: it acquires and releases."""

    package = "redlock"

    def __init__(self, setup: Setup) -> None:
        start = [setup.node_modules, self.package, setup.name, setup.milliseconds, setup.timeout]
        self.process = subprocess.Popen(
            ["node", str(PROGRAM), json.dumps([*start, list(setup.urls)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def acquire(self, wait: float) -> Hold | None:
        """Return what it is told: its ``expiration`` is a time of the wall clock."""
        until = self.ask({"do": "acquire", "wait": wait})
        return None if until is None else Hold(until)

    def release(self) -> None:
        self.ask({"do": "release"})

    def ask(self, command: dict[str, Any]) -> float | None:
        """Send a line, and return what is answered.

        Raises:
            RuntimeError: what the library raised, other than a refusal.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        until: float | None = answer["until"]
        return until


class NodeRedlock4(NodeRedlock5):
    """The same, with the version that npm calls the latest."""

    package = "redlock-4"


# -- what is counted -------------------------------------------------------------------------------

NODE_4 = Lock("node-redlock-4", "node-redlock 4.2.0", NodeRedlock4, servers=3, needs_node=True)
NODE_5 = Lock(
    "node-redlock-5", "node-redlock 5.0.0-beta.2", NodeRedlock5, servers=3, needs_node=True
)
WAITS_FOR_ALL = (
    "It waits for all servers, and ioredis 5.11.1 by default says after 20 attempts to connect,"
    " some 10 s, that one is down. Until then the ttl of 1 s is over."
)
SAME_CLOCK = "Its expiration is a time of its own wall clock, and is compared with the same clock."
PASSED = (
    "It gives its user a lock whose time is over, with an expiration that has passed, and no error."
    " Who does not look at that writes."
)
IN_ITS_WAY = (
    "It does not take its vote back before it asks again, and its own key is then in its way:"
    " nobody gets a majority before the ttl is over."
)
CELLS = [
    *NODE_4.holds(faults.turns),
    *NODE_4.holds(faults.stopped_acquiring, why=faults.IN_TIME),
    *NODE_4.holds(faults.votes_split, why=faults.TAKEN_BACK),
    NODE_4.breaks(faults.down, STUCK, why=WAITS_FOR_ALL),
    NODE_4.breaks(faults.clock_set_right, TWO, why=faults.WALL_CLOCK),
    *NODE_5.holds(faults.turns, faults.down),
    *NODE_5.holds(faults.clock_ahead, why=SAME_CLOCK),
    NODE_5.breaks(faults.stopped_acquiring, LOST, why=PASSED),
    NODE_5.breaks(faults.votes_split, STUCK, why=IN_ITS_WAY),
    NODE_5.breaks(faults.clock_set_right, TWO, why=faults.WALL_CLOCK),
    NODE_5.breaks(faults.restarted, TWO, LOST, why=faults.NO_GUARD),
]
