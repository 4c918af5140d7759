"""A reason: its code and data, and how a sentence is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from .codes import ReasonCode
from .sentences import ACTIONS, BRIEF, IF_EMPTY, MORE, SENTENCES, SET_UP, SILENT

Datum: TypeAlias = "str | float | Reason"
SECONDS: Final = frozenset({"seconds", "ahead", "behind"})  # data by which reasons do not differ


class Reason(NamedTuple):
    """A code with its data; ``str`` makes the sentence.

    Attributes:
        code: which reason.
        items: its data, by name.
    """

    code: ReasonCode
    items: tuple[tuple[str, Datum], ...] = ()

    def __str__(self) -> str:
        return describe(self)

    @property
    def data(self) -> dict[str, Datum]:
        """Return its data, by name, as in its sentence."""
        return dict(self.items)


def because(code: ReasonCode, **data: Datum) -> Reason:
    """Make a reason with its data; quick, for it may be made for every vote."""
    return Reason(code, tuple(data.items()))


def code_of(reason: Reason | str | None) -> str:
    """Return the code, for programs; "" without a reason, or of a mere sentence."""
    return reason.code.value if isinstance(reason, Reason) else ""


def describe(reason: Reason | str | None, *, brief: bool = False) -> str:
    """Make the sentence of a reason; all sentences are made here.

    Args:
        reason: None or "" is no sentence. A sentence is itself: earlier versions stored such.
        brief: without the data that a table shows beside it.
    """
    if not isinstance(reason, Reason):
        return reason or ""
    sentence = BRIEF.get(reason.code) if brief else None
    data = {name: _shown(name, datum) for name, datum in reason.items}
    if sentence is None:
        sentence = SENTENCES[reason.code]
        for name in MORE.keys() & data:
            sentence += MORE[name]
    return sentence.format_map(data) if data else sentence


def action(reason: Reason) -> str:
    """Return what to do about a node with this reason; "" where its sentence says it."""
    return ACTIONS.get(reason.code, "")


def is_silent(reason: Reason | str | None) -> bool:
    """Tell whether perhaps no server runs at the address of a node with this reason."""
    return not isinstance(reason, Reason) or reason.code in SILENT


def is_of_set_up(reason: Reason | str | None) -> bool:
    """Tell whether the settings or the server have to be corrected before this node can vote."""
    return isinstance(reason, Reason) and reason.code in SET_UP


def _shown(name: str, datum: Datum) -> Datum:
    if isinstance(datum, str):
        return printable(datum) or IF_EMPTY.get(name, "")
    return datum


def by_node(said: Iterable[tuple[str, Reason | str]], of: int) -> list[str]:
    """Make a sentence of each reason of several nodes, with the nodes that have it.

    Reasons that differ only in their seconds are one, told with the most of these.

    Args:
        said: nodes and their reasons.
        of: how many nodes there are.
    """
    groups: dict[object, tuple[Reason | str, list[str]]] = {}
    for node, reason in said:
        alike = _without_seconds(reason)
        most, nodes = groups.setdefault(alike, (reason, []))
        groups[alike] = max(most, reason, key=_seconds), [*nodes, printable(node)]
    return [
        f"{len(nodes)} of {of} nodes: {describe(reason)} ({', '.join(nodes)})"
        if len(nodes) > 1
        else f"{nodes[0]}: {describe(reason)}"
        for reason, nodes in groups.values()
    ]


def _without_seconds(reason: Reason | str) -> object:
    if not isinstance(reason, Reason):
        return reason
    return reason.code, *(item for item in reason.items if item[0] not in SECONDS)


def _seconds(reason: Reason | str) -> float:
    seconds = reason.data.get("seconds") if isinstance(reason, Reason) else None
    return seconds if isinstance(seconds, int | float) else 0.0


def printable(text: str) -> str:
    """Return ``text`` for people: escape what is invisible, ends a row or turns the writing."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
