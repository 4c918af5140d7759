"""What five nodes may have of one name: each state once, with what every face has to show of it."""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from django_redlock.inspection import LockStatus
from django_redlock.nodes.memory import MemoryNodes
from tests.support.looked_at import A, B, finish, put, queue, stop_clocks

NAME = "invoice:42"
WEB1, WEB2, ANOTHER = f"{A}:123:web-1", f"{B}:124:web-2", "a value of another client"
RESTS = "rest::web-1"
DIGEST_OF_A = sha1(A.encode(), usedforsecurity=False).hexdigest()[:16]
REVOKED = f"revoked:{DIGEST_OF_A}:web-1, revoked by ops: hangs"
TASK = "reports.sync, id id-7"
EVERYWHERE = "01234"


class State(NamedTuple):
    """A state, and what is shown of it.

    Attributes:
        keys: values of the lock, each with the digits of the nodes that have it.
        mark, record: the nodes with a task's mark, or with its completion record.
        down: the nodes that do not reply.
        kind: what it is.
        on: how many nodes have the owner's value.
        holder: all that left keys, where nobody holds the name.
        fence: the number of the grant; "" if there is none.
        left: the seconds left, of the owner's keys.
        expires: the seconds after which a key of the lock expires on each node; None: never.
        letters: whose key each node has, where several have some.
    """

    keys: dict[str, str]
    kind: LockStatus
    on: int
    holder: str = ""
    fence: str = ""
    left: str = "600.0"
    down: str = ""
    expires: tuple[int | None, ...] = (600,) * 5
    letters: str = ""
    mark: str = ""
    record: str = ""

    def made(self, memory: MemoryNodes) -> None:
        """Bring nodes in memory into this state; their clocks stand still."""
        stop_clocks(memory)
        for value, nodes in self.keys.items():
            for node in map(int, nodes):
                put(memory, NAME, value, node, seconds=self.expires[node] or 600)
                if self.expires[node] is None:
                    memory.nodes[node].keys[f"redlock:lock:{NAME}"] = (value, None)
        queue(memory, "reports.sync", NAME, "id-7", *map(int, self.mark))
        finish(memory, "reports.sync", "id-7", *map(int, self.record))
        memory.down = {*map(int, self.down)}

    @property
    def name(self) -> str:
        """As it is shown."""
        return "run:reports.sync:number-of-id-7" if self.record else NAME

    @property
    def texts(self) -> tuple[str, ...]:
        """What to ask for: what nobody has is in no list."""
        return () if self.mark or self.record else (NAME,)

    @property
    def cells(self) -> list[str]:
        """What is shown of each node: the seconds there, and whose key; or that it has none."""
        found = "".join((*self.keys.values(), self.mark, self.record))
        left = ["never" if each is None else f"{each}.0" for each in self.expires]
        return [
            "?" if node in self.down else f"{each} {letter}".strip() if node in found else "–"
            for node, each, letter in zip(EVERYWHERE, left, self.letters or " " * 5, strict=True)
        ]


HELD, PARTIAL, UNCLEAR = LockStatus.HELD, LockStatus.PARTIAL, LockStatus.UNCLEAR
STATES = {
    "held": State({WEB1: EVERYWHERE}, HELD, 5, "web-1", "123"),
    "held by a majority": State({WEB1: "012"}, HELD, 3, "web-1", "123"),
    "held beside what is left on a minority": State(
        {WEB1: "012", WEB2: "34"}, HELD, 3, "web-1", "123", letters="AAABB"
    ),
    "held whatever the silent node has": State(
        {WEB1: "012", WEB2: "34"}, HELD, 3, "web-1", "123", down="3", letters="AAA?B"
    ),
    "held for different times": State(
        {f"{A}:121:web-1": "0", WEB1: "1", f"{A}:122:web-1": "2", WEB2: "3"},
        HELD,
        3,
        "web-1",
        "123",
        left="10.0 to 14.0",
        expires=(12, 10, 14, 99, 600),
        letters="AAAB ",
    ),
    "held for ever": State(
        {WEB1: EVERYWHERE}, HELD, 5, "web-1", "123", left="never expires", expires=(None,) * 5
    ),
    "held for ever on a node": State(
        {WEB1: EVERYWHERE},
        HELD,
        5,
        "web-1",
        "123",
        left="600.0 to never",
        expires=(600, 600, None, 600, 600),
    ),
    "held with a number that no node gives": State(
        {f"{A}:{'9' * 5000}:web-1": EVERYWHERE}, HELD, 5, "web-1"
    ),
    "held by another client": State({ANOTHER: EVERYWHERE}, HELD, 5, "another client"),
    "held by another client beside ours": State(
        {WEB1: "01", ANOTHER: "234"}, HELD, 3, "another client", letters="BBAAA"
    ),
    "partial": State({WEB1: "14"}, PARTIAL, 2, "web-1", "123"),
    "partial whatever the silent node has": State(
        {WEB1: "1"}, PARTIAL, 1, "web-1", "123", down="4"
    ),
    "split": State(
        {WEB1: "01", WEB2: "23", ANOTHER: "4"},
        LockStatus.SPLIT,
        2,
        "web-1 on 2, web-2 on 2, another client on 1",
        "123",
        letters="AABBC",
    ),
    "a silent node decides": State({WEB1: "012"}, UNCLEAR, 2, "web-1", "123", down="2"),
    "a silent node decides between two": State(
        {WEB1: "01", WEB2: "34"},
        UNCLEAR,
        2,
        "web-1 on 2, web-2 on 2",
        "123",
        down="2",
        letters="AA?BB",
    ),
    "free whatever two silent nodes have": State({}, LockStatus.FREE, 0, left="", down="01"),
    "three silent nodes decide": State({}, UNCLEAR, 0, left="", down="012"),
    "rests": State({RESTS: EVERYWHERE}, LockStatus.RESTING, 5, "web-1"),
    "revoked": State({REVOKED: EVERYWHERE}, LockStatus.REVOKED, 5, "web-1, revoked by ops: hangs"),
    "revoked on just a majority": State(
        {WEB1: "01", REVOKED: "234"}, LockStatus.REVOKED, 5, "web-1, revoked by ops: hangs", "123"
    ),
    "queued": State({}, LockStatus.QUEUED, 5, TASK, mark=EVERYWHERE),
    "queued by a majority": State({}, LockStatus.QUEUED, 3, TASK, mark="012"),
    "a mark of a minority": State({}, PARTIAL, 2, TASK, mark="01"),
    "a mark that a silent node decides on": State({}, UNCLEAR, 2, TASK, mark="014", down="4"),
    "finished": State({}, LockStatus.FINISHED, 1, "host:1(reports.sync):id-7", record="2"),
}
