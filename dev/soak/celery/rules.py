"""Say from a history what must not have happened; ``history`` tells what its lines are.

A body that was killed has no end: it ran until its process was dead. One whose lease is lost was
told so and works on, for these bodies look at no lease; from then on its key may have another
holder, with a higher fence. A lease is lost where the nodes that granted it, perhaps only just a
majority, are restarted: a renewal creates no key. A message has had its effect when a body that
saw it has ended, and which body that is depends on the mode of its key:

    while_running   one with its own number
    until_started   one of the key that began after it was asked for
    until_finished  one of the key whose lock was not yet free when it was asked for

Celery's transport for Redis takes a message out of the queue first, and writes down that it is
not acknowledged then. One whose worker is killed in between is gone: no worker has ever had it,
and no lock can help. What is lost or blocked by such a message is no complaint.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALLOWED = 1.0  # seconds within which a node does what was on its way to it
SHOWN = 5  # complaints of one rule


@dataclass
class Body:
    """A body that ran.

    Attributes:
        end: when it ended; None: it was killed, or nobody knows.
        free: when its key was free, and its result stored; None: nobody noted it.
        dead: when its process was dead; infinite: it did not die as far as one knows.
        lost: when its lease was lost; infinite: it was not.
    """

    key: str
    number: int
    run: str
    pid: int
    group: int
    fence: int | None
    begin: float
    end: float | None = None
    free: float | None = None
    dead: float = math.inf
    lost: float = math.inf

    @property
    def holds_until(self) -> float:
        """Until when nobody else may have its key."""
        return min(self.over, self.lost)

    @property
    def over(self) -> float:
        """When it did nothing any more."""
        return self.dead if self.end is None else self.end

    @property
    def until(self) -> float:
        """When its key was free at the latest, of a body that has ended."""
        assert self.end is not None
        return self.end if self.free is None else self.free


class Complaint(NamedTuple):
    """What must not have happened."""

    rule: str
    text: str


@dataclass
class History:
    """The lines of a history, in order."""

    lines: Sequence[dict[str, Any]]
    bodies: dict[str, list[Body]] = field(default_factory=lambda: defaultdict(list))
    kinds: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for line in self.lines:
            self.kinds[line["what"]].append(line)
        self._read_bodies()
        for line in self.told("lost"):
            for body in self.all():
                if (body.pid, body.fence) == (line["pid"], line["fence"]):
                    body.lost = line["until"]

    def _read_bodies(self) -> None:
        latest: dict[int, Body] = {}
        for line in sorted(self.lines, key=lambda line: line["at"]):
            what, pid = line["what"], line.get("pid")
            if what == "begin":
                names = ("key", "number", "run", "pid", "group", "fence")
                told: dict[str, Any] = {name: line[name] for name in names}
                latest[line["pid"]] = body = Body(**told, begin=line["at"])
                self.bodies[body.key].append(body)
            elif what in {"end", "returned"} and pid in latest:
                body = latest[pid]
                if body.run == line["run"] and what == "end":
                    body.end = line["at"]
                elif body.run == line["run"]:
                    body.free = line["at"]
            elif what == "dead":
                self._die(line)

    def _die(self, line: dict[str, Any]) -> None:
        for body in self.all():
            if body.pid in line["pids"] or body.group == line.get("group"):
                body.dead = min(body.dead, line["at"])

    def all(self) -> Iterator[Body]:
        """Yield the bodies of all keys."""
        for bodies in self.bodies.values():
            yield from bodies

    def told(self, what: str) -> list[dict[str, Any]]:
        """Return the lines of a kind."""
        return self.kinds[what]

    def sent(self, *, probe: bool = False) -> list[dict[str, Any]]:
        """Return the messages that were asked for, or those that were sent at the end."""
        return [line for line in self.told("sent") if line["probe"] is probe]

    @property
    def probed(self) -> float:
        """When the last messages were sent, one for each key."""
        return min((line["before"] for line in self.sent(probe=True)), default=math.inf)


# -- messages without effect ----------------------------------------------------------------------


def _has_effect(message: dict[str, Any], bodies: Sequence[Body], before: float) -> bool:
    mode, asked = message["key"].partition("-")[0], message["before"]
    for body in bodies:
        if body.end is None or body.begin >= before:
            continue
        if mode == "while_running":
            if body.number == message["number"]:
                return True
        elif (body.begin if mode == "until_started" else body.until) >= asked:
            return True
    return False


def lost(history: History) -> list[dict[str, Any]]:
    """Return the messages that had no effect before the probes were sent."""
    probed, bodies = history.probed, history.bodies
    return [
        message
        for message in history.sent()
        if not _has_effect(message, bodies[message["key"]], probed)
    ]


def keys_without_a_run(history: History) -> list[str]:
    """Return the keys that no body ran for after their last message."""
    last = {message["key"]: message for message in history.sent()}
    without = {message["number"] for message in lost(history)}
    return [key for key, message in last.items() if message["number"] in without]


def stuck(history: History) -> list[dict[str, Any]]:
    """Return the messages of the end, one for each key, for which nothing ran."""
    return [
        message
        for message in history.sent(probe=True)
        if not _has_effect(message, history.bodies[message["key"]], math.inf)
    ]


def vanished(history: History) -> set[str]:
    """Return the task ids of messages that were sent, or put off, and that no worker then had."""
    sent = {(message["id"], 0) for message in history.told("sent") if not message["duplicate"]}
    sent |= {(line["id"], line["times"]) for line in history.told("put off")}
    taken = {(line["id"], line.get("times", 0)) for line in history.told("taken")}
    return {task_id for task_id, _ in sent - taken}


# -- rules ----------------------------------------------------------------------------------------


def overlaps(history: History) -> Iterator[str]:
    """Yield the bodies of a key that began while an earlier one still had it."""
    for key, bodies in history.bodies.items():
        earlier: Body | None = None  # the one that has it for longest
        for body in sorted(bodies, key=lambda body: body.begin):
            if earlier is not None and body.begin < earlier.holds_until:
                lasted = (
                    "is not known to be over" if math.isinf(earlier.holds_until) else "was not over"
                )
                yield f"{key}: {body.number} began at {body.begin:.3f}, {earlier.number} {lasted}"
            if earlier is None or body.holds_until > earlier.holds_until:
                earlier = body


def fences(history: History) -> Iterator[str]:
    """Yield the bodies that have no higher fence than an earlier one of the key."""
    for key, bodies in history.bodies.items():
        highest = 0
        for body in sorted(bodies, key=lambda body: body.begin):
            if body.fence is not None and body.fence <= highest:
                yield f"{key}: {body.number} has the fence {body.fence}, after {highest}"
            highest = max(highest, body.fence or 0)


def again(history: History) -> Iterator[str]:
    """Yield the messages that ran when their completion record had been written."""
    records = {line["run"]: line["at"] for line in reversed(history.told("record"))}
    for body in history.all():
        later = body.begin - records.get(body.run, math.inf)
        if later > 0:
            yield f"{body.key}: {body.number} ran again {later:.3f} s later"


def without_effect(history: History) -> Iterator[str]:
    """Yield the messages that had no effect, also where there was a later one."""
    gone = vanished(history)
    for message in lost(history):
        if message["id"] not in gone:
            yield f"{message['key']}: {message['number']}, a duplicate: {message['duplicate']}"


def too_long(history: History) -> Iterator[str]:
    """Yield the locks of the dead that outlived one ttl, and what nobody ran in the end."""
    ttl = next((line["ttl"] for line in history.told("rig")), 0.0)
    dead = {pid: line["at"] for line in history.told("dead") for pid in line["pids"]}
    for line in history.told("held"):
        longer = line["until"] - dead[line["pid"]] - ttl
        if longer > ALLOWED:
            yield f"{line['key']}: held by a dead process for {longer:.3f} s more than a ttl"
    for line in history.told("left"):
        if line["kind"] == "lock":
            yield f"{line['key']}: on {line['nodes']} nodes at the end"
    for line in history.told("undrained"):
        yield f"{line['messages']} messages were left"
    gone = vanished(history)
    for message in stuck(history):
        if message["id"] not in gone:
            yield f"{message['key']}: a message that was sent in the end did not run"


def marks(history: History) -> Iterator[str]:
    """Yield the marks that are left and keep messages out, of messages that have run.

    A mark on a minority keeps nothing out. It is there until ``queue_ttl`` when a worker was killed
    that was still to remove it from a node that hung.
    """
    gone = vanished(history)
    for line in _left(history, enough=True):
        if line["id"] not in gone:
            yield f"{line['key']}: on {line['nodes']} nodes at the end"


def _left(history: History, *, enough: bool) -> list[dict[str, Any]]:
    """Return the marks that are left on a majority of the nodes, or those on a minority."""
    majority = next((line["majority"] for line in history.told("rig")), 1)
    found = [line for line in history.told("left") if line["kind"] == "mark"]
    return [line for line in found if (line["nodes"] >= majority) is enough]


def unknown(history: History) -> Iterator[str]:
    """Yield the bodies of which the history does not tell how they ended."""
    for body in history.all():
        if body.end is None and math.isinf(body.dead):
            yield f"{body.key}: {body.number}, process {body.pid}, has neither ended nor died"


RULES: dict[str, Callable[[History], Iterator[str]]] = {
    "two bodies at once": overlaps,
    "a fence that does not increase": fences,
    "ran again after its record": again,
    "a message without effect": without_effect,
    "stuck for longer than a ttl": too_long,
    "a mark that is left": marks,
    "an end that is not known": unknown,
}


def judge(history: History) -> list[Complaint]:
    """Return everything that must not have happened."""
    return [Complaint(rule, text) for rule, find in RULES.items() for text in find(history)]


def figures(history: History) -> dict[str, int]:
    """Return what has happened, in numbers."""
    bodies = list(history.all())
    runs = {body.run for body in bodies}
    sent = history.sent()
    return {
        "messages": len(sent),
        "duplicates not sent": sum(line["duplicate"] for line in sent),
        "bodies": len(bodies),
        "bodies killed": sum(body.end is None for body in bodies),
        "run again": len(bodies) - len(runs),
        "that no worker had": len(vanished(history)),
        "marks left on a minority of the nodes": len(_left(history, enough=False)),
        "leases lost": len(history.told("lost")),
        "completion records": len(history.told("record")),
        "processes killed": sum(len(line["pids"]) for line in history.told("dead")),
        "nodes killed": sum(line["does"] == "kill" for line in history.told("node")),
        "nodes hung": sum(line["does"] == "hang" for line in history.told("node")),
    }
