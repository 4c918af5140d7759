"""The runs: what happens to the clients and servers of a recipe, as scripts of real faults."""

from .run import FAULTS, Run

__all__ = ["FAULTS", "Run"]
