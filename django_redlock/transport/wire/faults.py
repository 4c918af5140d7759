"""Why a connection was closed.

The constants are made here, once: nothing may be called on the way to closing a connection.
"""

from __future__ import annotations

from typing import Final

from django_redlock.core.reasons import Reason, ReasonCode, because

CLOSED: Final = because(ReasonCode.CLOSED)
ENDED_BY_NODE: Final = because(ReasonCode.CONNECTION_CLOSED)
GUARD_OVER: Final = because(ReasonCode.GUARD_OVER)
INTERRUPTED: Final = because(ReasonCode.INTERRUPTED)
LEFT_QUEUE: Final = because(ReasonCode.LEFT_QUEUE)
SURPLUS: Final = because(ReasonCode.SURPLUS)
TAKES_NO_MORE: Final = because(ReasonCode.TAKES_NO_MORE)


def no_answer(seconds: float) -> Reason:
    """Return the reason of a node that has owed a reply for so many seconds."""
    return because(ReasonCode.NO_ANSWER, seconds=seconds)


def lost(error: OSError) -> Reason:
    """Return the reason of a connection that the operating system has ended."""
    return because(ReasonCode.CONNECTION_LOST, text=str(error.strerror or error))
