"""For every test: Ctrl-C as a terminal sends it."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A suite that a shell starts in the background ignores SIGINT, as all would that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
