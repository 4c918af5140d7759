"""Ask all nodes of all aliases at once, each in a thread, and end within a bounded time.

A socket has its timeout, and looking a name up has none: so nobody waits for the threads. One that
is late ends by itself, or with the process.
"""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.threads import start_thread
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.transport.examine import Told, examine

from .judging import judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Examination, Expected

LEAST: Final = 2.0  # seconds for each step of a conversation, however small NODE_TIMEOUT is …
MOST: Final = 10.0  # … or large
STEPS: Final = 3  # times that, for all: connecting, TLS, and silence


def examine_nodes(aliases: Sequence[Expected]) -> list[Examination]:
    """Examine the nodes of these aliases.

    It takes at most three times NODE_TIMEOUT, which counts as at least 2 s and at most 10 s here.
    """
    patience = min(MOST, max([LEAST, *(each.timeout for each in aliases)]))
    answers: queue.SimpleQueue[tuple[int, int, Told]] = queue.SimpleQueue()
    late = Told(refusal=because(ReasonCode.CONNECT_TIMEOUT))
    told = [[late] * len(each.addresses) for each in aliases]
    until = time.monotonic() + STEPS * patience

    def ask(which: int, place: int) -> None:
        alias = aliases[which]
        found = examine(
            alias.addresses[place],
            prefix=alias.prefix,
            skew=alias.skew,
            timeout=patience,
            guard=alias.guard,
        )
        answers.put((which, place, found))

    for which, alias in enumerate(aliases):
        for place in range(len(alias.addresses)):
            start_thread(ask, which, place)
    for _ in range(sum(map(len, told))):
        try:
            which, place, found = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        told[which][place] = found
    return [judge(alias, found) for alias, found in zip(aliases, told, strict=True)]
