"""Threads of our own, started so that an interruption cannot tear them.

``threading.Thread.start`` waits for the thread to say that it runs; an exception that a signal
handler raises in that wait leaves a thread that never runs its function (and prints a
traceback). ``_thread.start_new_thread`` is one step: it started, or it did not. Such threads
end with the process, without a word, as daemon threads do.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def start_thread(function: Callable[..., object], *args: Any) -> None:
    """Run ``function`` in a thread of its own.

    Raises:
        RuntimeError: no thread can be had, e.g. while the interpreter shuts down.
    """
    _thread.start_new_thread(function, args)
