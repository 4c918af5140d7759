"""For all tests here: nodes in memory. For some: databases under ATOMIC_REQUESTS."""

from tests.views.conftest import bills, memory, orders

__all__ = ["bills", "memory", "orders"]
