"""Stand-ins for what takes its time: a bank, a big query, a slow line."""

import time

BANK = 0.3  # seconds
REPORT = 2.0
EXPORT = 2.0


def authorise_card() -> None:
    time.sleep(BANK)


def compute() -> None:
    time.sleep(REPORT)


def transmit(share: float) -> None:
    """Send a share of all there is to send."""
    time.sleep(EXPORT * share)
