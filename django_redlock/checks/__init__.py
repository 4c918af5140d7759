"""System checks of ``REDLOCK``: what is wrong or risky, and what to do. They contact no node.

ids         of the checks
settings    what ``manage.py check`` reports
deployment  what ``manage.py check --deploy`` reports as well
nodes       how many nodes there are, which of them are one server, passwords in their URLs
timing      seconds that do not fit together
caches      caches in the database of a node
network     what others can read on the way to a node
"""

from __future__ import annotations

from .deployment import check_deployment
from .ids import (
    E001,
    E003,
    W001,
    W002,
    W003,
    W004,
    W005,
    W012,
    W013,
    W014,
    W015,
    W016,
    W017,
    W018,
    W019,
    W020,
    W023,
)
from .settings import check_settings

__all__ = [
    "E001",
    "E003",
    "W001",
    "W002",
    "W003",
    "W004",
    "W005",
    "W012",
    "W013",
    "W014",
    "W015",
    "W016",
    "W017",
    "W018",
    "W019",
    "W020",
    "W023",
    "check_deployment",
    "check_settings",
]
