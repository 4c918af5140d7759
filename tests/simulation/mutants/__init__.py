"""Broken variants of the code; the worlds must catch each.

Most change production: the algorithm, the replies, the policy, and the nodes in memory, which a
test holds against the Lua. Where the rule is one of the connections, the guard or the clock,
the change is in the simulation's own network, node or client, which stand for these, and the
variant names the test that fails where the real ones break the rule.
"""

from __future__ import annotations

from typing import Final

from .edits import Mutant, Patch, broken, hunt, with_edits
from .fencing import FENCES, GUARD
from .holding import HOLD, LEASE, VOTES
from .renewing import RENEWAL
from .revoking import REVOKING
from .undoing import NONCE, UNDO
from .waiting import WAITING

MUTANTS: Final = (
    *(*VOTES, *LEASE, *HOLD, *NONCE, *UNDO, *GUARD, *FENCES, *WAITING, *RENEWAL),
    *REVOKING,
)

__all__ = ["MUTANTS", "Mutant", "Patch", "broken", "hunt", "with_edits"]
