"""Broken variants of the nonce, of undoing and of handing over."""

from __future__ import annotations

from typing import Final

from django_redlock.core import acquire, hold
from django_redlock.fanout.memory import node as memory_node
from django_redlock.fanout.memory.group import MemoryNode
from tests.simulation.network import Network

from . import nodes
from .edits import mutant

ONE_FOR_ALL: Final = """\
from dataclasses import replace
    first = policy.nonce()
    policy = replace(policy, nonce=lambda: first)
    give_up = policy.clock() + wait"""

SENDS_AGAIN: Final = """\
        self._excuse(ask)
        world.after(0.1, partial(self._write, channel, i, ask, hearer))
"""

ONCE: Final = (
    "tests/transport/test_late_connections.py"
    "::test_a_grant_that_is_lost_with_its_connection_is_not_put_again"
)

NONCE: Final = (
    mutant(
        "one-nonce",
        "A process uses one nonce for all that it locks.",
        "rough",
        20,
        (acquire, "attempt", "policy.nonce()", "f'{ord(label[1]):032x}'"),
    ),
    mutant(
        "same-nonce-retried",
        "A retry uses the nonce of the attempt before.",
        "rough",
        100,
        (
            acquire,
            "acquire",
            "give_up = policy.clock() + wait",
            ONE_FOR_ALL,
        ),
    ),
    mutant(
        "same-nonce-adopted",
        "Adopting keeps the nonce of the giver.",
        "handovers",
        10,
        (acquire, "attempt", "policy.nonce()", "old or policy.nonce()"),
    ),
    mutant(
        "adopts-anything",
        "A node gives the key to an adopter although the nonce is not the giver's any more.",
        "handovers",
        10,
        (memory_node, "_yields", 'value.startswith(f"{old}:") if old', "True if old"),
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
        (MemoryNode, "_release", 'self._mine(lock, f"{nonce}:")', "self.get(lock) is not None"),
    ),
    mutant(
        "compares-a-part",
        "A release compares one digit of the nonce.",
        "tenacious",
        150,
        (
            MemoryNode,
            "_release",
            'self._mine(lock, f"{nonce}:")',
            '(self.get(lock) or "").partition(":")[0].endswith(nonce[-1])',
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
        (acquire, "attempt", "if (touched or wakeup) and wake", "if wakeup and wake"),
        (acquire, "attempt", "elif touched:", "elif False:"),
    ),
    mutant(
        "forgets-the-silent",
        "A failed attempt is undone only on the nodes that said yes.",
        "rough",
        10,
        (
            acquire,
            "attempt",
            "vote.sent and vote.answer is not NO",
            "vote.answer is Answer.YES",
        ),
    ),
    mutant(
        "releases-a-majority",
        "A release goes to as many nodes as were needed.",
        "calm",
        20,
        (
            hold,
            "release",
            "grant.touched",
            "frozenset(sorted(grant.touched)[: policy.majority])",
        ),
    ),
    mutant(
        "another-connection",
        "A release overtakes its grant on another connection.",
        "rough",
        20,
        (
            Network,
            "_channel",
            "if ask.command in UNDO and (behind := self._owing(client, i, ask.nonce)):",
            "if behind := next((each for each in channels if not each.owed), None):",
        ),
        (
            Network,
            "_channel",
            "    for channel in channels:\n        if not channel.silent(now)",
            "    for channel in channels:\n        if ask.command not in UNDO",
        ),
        real="tests/transport/test_late_connections.py::test_a_release_stands_behind_its_grant",
    ),
    mutant(
        "resends",
        "A question that was lost is sent again behind the caller's back.",
        "rough",
        20,
        (
            Network,
            "_write",
            "        self._excuse(ask)\n",
            SENDS_AGAIN,
        ),
        real=ONCE,
    ),
    mutant(
        "deaf-to-cancel",
        "An attempt that is interrupted is not undone.",
        "rough",
        10,
        (
            acquire,
            "attempt",
            "yield undo(policy, target, nonce, to, touched=touched)",
            "pass",
        ),
    ),
    mutant(
        "drops-a-release",
        "A release that is interrupted is not sent again.",
        "contended",
        600,
        (hold, "release", "yield ask  # unknown", "pass  # unknown"),
    ),
    mutant(
        "goes-on-when-closed",
        "An attempt that Python closes still wants to undo.",
        "rough",
        40,
        (acquire, "attempt", "    except GeneratorExit:\n        raise\n", ""),
    ),
)
