"""Tell the watchers of nodes how long each answer took, and which were not given.

Without watchers, as by default, nothing here is called.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_redlock import events
from django_redlock.core.protocol import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import Vote
    from django_redlock.core.reasons import Reason
    from django_redlock.transport.node import Node
    from django_redlock.transport.pending import Asker


def tell(node: Node, seconds: float | None, why: Reason | None = None) -> None:
    """Tell how long a node took, or (None) why it gave no vote."""
    events.tell_of_node(events.NodeTiming(node.alias, node.label, seconds, why))


def timed(
    nodes: Sequence[Node], asker: Asker, hear: Callable[[int, Vote], object], *, late: bool
) -> Callable[[int, Vote], object]:
    """Return ``hear`` with a clock that starts now.

    Args:
        late: whether answers are also read at once when the request is over. Else they are read
            at the next use of the connection, which says nothing of the node.
    """
    sent = time.monotonic()

    def hear_and_tell(place: int, vote: Vote) -> None:
        node, over, seconds = nodes[place], asker.over, time.monotonic() - sent
        hear(place, vote)
        if vote.answer is Answer.UNKNOWN:
            if not over:
                tell(node, None, vote.reason)
        elif late or not over:
            tell(node, seconds)

    return hear_and_tell
