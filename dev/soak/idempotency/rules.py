"""What must not have happened, and how much of what has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .clients import REFUSED, UNAVAILABLE, Reply

SEVERAL: Final = "a key with more than one order"
NONE: Final = "a key without an order"
SILENT: Final = "a client without an answer"
DIFFERENT: Final = "a key with different answers"
UNTRUE: Final = "an answer that tells of no order"
ANEW: Final = "a second answer that is no replay"
AGAIN: Final = "a view that ran again after its answer"
STRANGE: Final = "an answer of another kind"
HASTY: Final = "a refusal without Retry-After"
LOCKED: Final = "a lock that is left"
ALIVE: Final = "a process that is left"
RULES: Final = (
    SEVERAL,
    NONE,
    SILENT,
    DIFFERENT,
    UNTRUE,
    ANEW,
    AGAIN,
    STRANGE,
    HASTY,
    LOCKED,
    ALIVE,
)
EXPECTED: Final = frozenset(map(str, (*REFUSED, UNAVAILABLE)))


class Order(NamedTuple):
    """A row of the database."""

    pk: int
    key: str
    token: str


@dataclass(frozen=True)
class History:
    """What there was to see.

    Attributes:
        keys: of all clients.
        answers: what each client got, by its key.
        orders: all rows at the end.
        counts: see ``Clients``.
        without: keys of clients that gave up.
        lines: of the journal: "begin" and "end" of the view, "kill", and "node".
        tells: whether a replay says that it is one.
        locks: names of locks that were left.
        processes: those of the server that were left.
    """

    keys: Sequence[str]
    answers: Mapping[str, Sequence[Reply]]
    orders: Sequence[Order]
    counts: Counter[str] = field(default_factory=Counter)
    without: frozenset[str] = frozenset()
    lines: Sequence[Mapping[str, Any]] = ()
    tells: bool = True
    locks: Sequence[str] = ()
    processes: Sequence[int] = ()


class Complaint(NamedTuple):
    """What must not have happened: a rule, and how it was broken."""

    rule: str
    text: str


def judge(history: History) -> list[Complaint]:
    """Return what must not have happened."""
    return [
        *_orders(history),
        *_answers(history),
        *_views(history),
        *_manners(history),
        *(Complaint(LOCKED, name) for name in history.locks),
        *(Complaint(ALIVE, str(pid)) for pid in history.processes),
    ]


def _orders(history: History) -> Iterator[Complaint]:
    sold = Counter(order.key for order in history.orders)
    for key in history.keys:
        if not sold[key]:
            yield Complaint(NONE, key)
        elif sold[key] > 1:
            yield Complaint(SEVERAL, f"{key}: {sold[key]} orders")
    yield from (Complaint(SEVERAL, f"{key}: of nobody") for key in sold.keys() - set(history.keys))


def _answers(history: History) -> Iterator[Complaint]:
    rows = set(history.orders)
    for key in history.keys:
        answers = history.answers.get(key, ())
        if key in history.without or not answers:
            yield Complaint(SILENT, f"{key}: {len(answers)} answers, and then none")
        kinds = {(reply.status, reply.body) for reply in answers}
        if len(kinds) > 1:
            yield Complaint(DIFFERENT, f"{key}: {sorted(kinds)[:3]}")
        for _, body in kinds:
            if _told(key, body) not in rows:
                yield Complaint(UNTRUE, f"{key}: {body!r}")
        # None where the first broke on its way; the next is a replay, then.
        first = [reply for reply in answers if not reply.replayed]
        if history.tells and len(first) > 1:
            yield Complaint(ANEW, f"{key}: {len(first)} of {len(answers)}")


def _told(key: str, body: bytes) -> Order | None:
    """The order that an answer tells of."""
    try:
        told = json.loads(body)
        return Order(told["id"], key, told["token"])
    except (ValueError, KeyError, TypeError):
        return None


def _views(history: History) -> Iterator[Complaint]:
    for line in history.lines:
        answers = history.answers.get(line.get("key", ""), ())
        if line["what"] == "begin" and answers:
            late = line["at"] - min(reply.seen for reply in answers)
            if late > 0:
                yield Complaint(AGAIN, f"{line['key']}: {late:.3f} s after it")


def _manners(history: History) -> Iterator[Complaint]:
    for what, number in history.counts.items():
        if what.isdigit() and what not in EXPECTED:
            yield Complaint(STRANGE, f"{what}: {number} times")
    if history.counts["hasty"]:
        yield Complaint(HASTY, f"{history.counts['hasty']} times")


def figures(history: History) -> dict[str, int]:
    """Return what has happened, for people."""
    counts, lines = history.counts, Counter(line["what"] for line in history.lines)
    done = Counter(line.get("does") for line in history.lines)
    found = Counter((each.rule, each.text.partition(":")[0]) for each in judge(history))
    broken = Counter(rule for rule, _ in found)
    strange = (int(what) for what in counts if what.isdigit() and what not in EXPECTED)
    return {
        "clients": len(history.keys),
        "requests sent": counts["sent"],
        "broken connections": counts["broken"],
        "workers killed": lines["kill"],
        "in the view": lines["begin"] - lines["end"],
        "nodes killed": done["kill"],
        "nodes hung": done["hang"],
        "replays": counts["replayed"],
        "409s": sum(counts[str(status)] for status in REFUSED),
        "503s": counts[str(UNAVAILABLE)],
        "others": sum(counts[str(status)] for status in strange),
        "orders": len(history.orders),
        "keys with more than one order": broken[SEVERAL],
        "keys with different answers": broken[DIFFERENT],
        "clients without an answer": broken[SILENT],
    }
