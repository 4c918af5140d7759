"""For how long a node has been silent, where that is to keep requests from it.

A reply that is overdue by far, when somebody looks for the first time, says little about the node:
if this process did not run (a virtual machine is moved, a container is frozen), the nodes beside it
did not either, and need a moment to answer. So such a silence is counted anew, once for each
request. A node that is really hung is silent again one node timeout later.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from .wire.faults import no_answer

if TYPE_CHECKING:
    from .connection import Connection

UNSEEN: Final = 4  # node timeouts: a request and its undo take two of them, and then look


def silence(connection: Connection, now: float, timeout: float) -> float:
    """Return the seconds for which the node has owed a reply; at most ``timeout``: it may be asked.

    Args:
        timeout: NODE_TIMEOUT, in seconds.
    """
    owed = connection.owed
    if not owed:  # as nearly always
        return 0.0
    silent = connection.silent_for(now)
    if silent > UNSEEN * timeout and connection.excused != owed[0].since:
        connection.excused, connection.heard = owed[0].since, now
        return 0.0
    return silent


def close_as_silent(connection: Connection) -> None:
    """Close the connection because a reply is overdue."""
    connection.close(no_answer(connection.silent_for(time.monotonic())))
