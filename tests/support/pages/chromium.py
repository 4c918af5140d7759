"""The browser of the tests: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Final

import pytest

CHROMIUM: Final = shutil.which("chromium")
QUIETLY: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def why_not() -> str:
    """What is missing, and how to get it; "" if nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "no playwright: pip install -e . --group dev"
    return "" if CHROMIUM else "no chromium: apt-get install chromium"


def need(what: str, missing: str) -> None:
    """Skip the test if something is missing; fail where CI is set.

    Args:
        what: must be tried in a real browser.
        missing: what is, and how to get it; "" if nothing is.
    """
    if missing and os.environ.get("CI"):
        pytest.fail(f"{what} must be tried in a real browser: {missing}")
    if missing:
        pytest.skip(f"{what.upper()} WAS NOT TRIED IN A REAL BROWSER: {missing}")
