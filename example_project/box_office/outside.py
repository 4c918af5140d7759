"""Simulate what takes time: a bank, a big query, a slow client, a printer."""

import time

BANK = 0.3  # seconds
REPORT = 2.0
EXPORT = 2.0
POSTERS = 2.0


def authorise_card() -> None:
    time.sleep(BANK)


def compute() -> None:
    time.sleep(REPORT)


def print_posters() -> None:
    time.sleep(POSTERS)


def transmit(share: float) -> None:
    """Send a share of the whole export."""
    time.sleep(EXPORT * share)
