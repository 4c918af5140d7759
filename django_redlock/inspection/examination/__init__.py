"""Examine the nodes of a deployment: what is wrong or risky with each, and what to do.

asking      all nodes at once, within a bounded time
judging     what they told, beside what the settings expect; no I/O
results     findings and facts, by alias
"""

from __future__ import annotations

from .asking import examine_nodes
from .results import Examination, Expected, Finding, Level, NodeFacts

__all__ = ["Examination", "Expected", "Finding", "Level", "NodeFacts", "examine_nodes"]
