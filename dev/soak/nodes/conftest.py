"""Three real nodes, and a lease of which one of them has not replied to the grant."""

from tests.nodes.conftest import held, three

__all__ = ["held", "three"]
