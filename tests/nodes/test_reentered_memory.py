"""A node in memory, where a signal handler locks while the node looks at a key."""

from __future__ import annotations

from django_redlock.nodes.memory import MemoryNode


def test_a_key_that_a_handler_writes_meanwhile_stays():
    """The one before it has expired; not the new one is dropped for that."""
    node = MemoryNode()

    def clock() -> float:
        node.keys["name"] = ("new", 20.0)
        return 10.0

    node.clock = clock
    node.keys["name"] = ("old", 5.0)
    assert node.get("name") == "new"
    assert node.keys == {"name": ("new", 20.0)}


def test_a_key_that_a_handler_drops_meanwhile_is_gone():
    """Nothing is raised."""
    node = MemoryNode()

    def clock() -> float:
        node.keys.pop("name", None)
        return 10.0

    node.clock = clock
    node.keys["name"] = ("old", 5.0)
    assert node.pttl("name") == -2
