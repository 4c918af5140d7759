"""Nodes in memory."""

from tests.views.conftest import memory

__all__ = ["memory"]
