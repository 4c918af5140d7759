"""A child of a fork whose parent was collecting garbage."""

from __future__ import annotations

from tests.nodes.test_collected import played


def test_a_child_that_waits_for_its_parents_collection_is_noticed():
    """The check of ``test_a_child_collects_garbage_also_where_its_parent_did`` can fail."""
    assert played("fork", "shared") == {"worked": None}
