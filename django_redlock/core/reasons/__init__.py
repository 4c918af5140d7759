"""Why a node gave no vote, or why there is no lock: codes with data, and their sentences.

Votes and errors carry the codes; pages, logs and the command show the sentences.

codes       the enumeration
sentences   code -> sentence
reason      a code with its data; makes its sentence, and puts equal reasons of nodes together
"""

from __future__ import annotations

from .codes import ReasonCode
from .reason import (
    Reason,
    action,
    because,
    by_node,
    code_of,
    describe,
    is_of_set_up,
    is_silent,
    printable,
)
from .sentences import CHECKS, LOOK_FURTHER

__all__ = [
    "CHECKS",
    "LOOK_FURTHER",
    "Reason",
    "ReasonCode",
    "action",
    "because",
    "by_node",
    "code_of",
    "describe",
    "is_of_set_up",
    "is_silent",
    "printable",
]
