"""Nodes in memory, ``memory://``, for tests and for trying things out."""
