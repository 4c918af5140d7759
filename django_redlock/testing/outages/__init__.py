"""Outages of an alias's nodes, as this process sees them, for tests."""
