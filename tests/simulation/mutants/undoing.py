"""Broken variants of the nonce, of undoing and of handing over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from django_redlock.core import acquire, hold
from django_redlock.core.protocol import UNDO as UNDOING
from django_redlock.core.protocol import Request
from django_redlock.nodes import memory
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.network import Connection, Hearer, Network

from . import nodes, rules
from .edits import mutant

ONCE: Final = (
    "tests/nodes/test_late_connections.py"
    "::test_a_grant_that_is_lost_with_its_connection_is_not_put_again"
)


def on_another_connection(real: Callable[..., Connection]) -> Callable[..., Connection]:
    """Send an undo where nothing is owed: on a connection that is idle, or on a new one."""

    def channel(self: Network, client: str, i: int, ask: Request) -> Connection:
        found = real(self, client, i, ask)
        if ask.command not in UNDOING or not found.owed:
            return found
        idle = (each for each in self._channels[client, i] if not each.owed)
        return next(idle, None) or self._opened(client, i)

    return channel


def sending_again(real: Callable[..., None]) -> Callable[..., None]:
    """Send a question that was lost once more."""

    def drop(self: Network, channel: Connection, i: int, ask: Request, hearer: Hearer) -> None:
        real(self, channel, i, ask, hearer)
        self.world.after(0.1, partial(self._write, channel, i, ask, hearer))

    return drop


NONCE: Final = (
    mutant(
        "one-nonce",
        "A process uses one nonce for all that it locks.",
        "rough",
        20,
        (acquire, "attempt", rules.with_nonce(lambda label, **_: f"{ord(label[1]):032x}")),
    ),
    mutant(
        "same-nonce-retried",
        "A retry uses the nonce of the attempt before.",
        "rough",
        100,
        (acquire, "acquire", rules.with_one_nonce),
    ),
    mutant(
        "same-nonce-adopted",
        "Adopting keeps the nonce of the giver.",
        "handovers",
        10,
        (acquire, "attempt", rules.with_nonce(lambda old="", **_: old)),
    ),
    mutant(
        "adopts-anything",
        "A node gives the key to an adopter although the nonce is not the giver's any more.",
        "handovers",
        10,
        (
            memory,
            "_yields",
            lambda real: lambda value, old, wakeup: bool(old) or real(value, old, wakeup),
        ),
    ),
    mutant(
        "gives-back-anything",
        "An adopter without a majority gives the giver's nonce to keys that are not its own.",
        "handovers",
        100,
        (MemoryNode, "_return", nodes.returning_anything),
    ),
    mutant(
        "deletes-anything",
        "A release deletes the key without comparing the nonce.",
        "rough",
        10,
        (MemoryNode, "_release", nodes.releasing(lambda value, nonce: True)),
    ),
    mutant(
        "compares-a-part",
        "A release compares one digit of the nonce.",
        "tenacious",
        150,
        (
            MemoryNode,
            "_release",
            nodes.releasing(lambda value, nonce: value.partition(":")[0].endswith(nonce[-1])),
        ),
    ),
    mutant(
        "rests-anything",
        "A release with `min_hold` replaces the key without comparing the nonce.",
        "tenacious",
        150,
        (MemoryNode, "_rest", nodes.resting_anything),
    ),
)

UNDO: Final = (
    mutant(
        "leaves-failures",
        "A failed attempt is not undone.",
        "calm",
        10,
        (
            acquire,
            "attempt",
            rules.undoing(
                lambda undo, thrown, facts: (
                    undo if thrown or (facts.get("wakeup") and undo.wake) else None
                )
            ),
        ),
    ),
    mutant(
        "forgets-the-silent",
        "A failed attempt is undone only on the nodes that said yes.",
        "rough",
        10,
        (acquire, "attempt", rules.forgetting_silence),
    ),
    mutant(
        "releases-a-majority",
        "A release goes to as many nodes as were needed.",
        "calm",
        20,
        (hold, "release", rules.releasing_a_majority),
    ),
    mutant(
        "another-connection",
        "A release overtakes its grant on another connection.",
        "rough",
        20,
        (Network, "_channel", on_another_connection),
        real="tests/nodes/test_links.py::test_a_release_goes_behind_its_grant",
    ),
    mutant(
        "resends",
        "A question that was lost is sent again behind the caller's back.",
        "rough",
        20,
        (Network, "_drop", sending_again),
        real=ONCE,
    ),
    mutant(
        "deaf-to-cancel",
        "An attempt that is interrupted is not undone.",
        "rough",
        10,
        (acquire, "attempt", rules.undoing(lambda undo, thrown, _: None if thrown else undo)),
    ),
    mutant(
        "drops-a-release",
        "A release that is interrupted is not sent again.",
        "contended",
        600,
        (hold, "release", rules.undoing(lambda undo, thrown, _: None if thrown else undo)),
    ),
    mutant(
        "goes-on-when-closed",
        "An attempt that Python closes still wants to undo.",
        "rough",
        40,
        (acquire, "attempt", rules.going_on_when_closed),
    ),
)
