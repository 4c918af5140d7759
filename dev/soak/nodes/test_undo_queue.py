"""What is to be undone while a node cannot be asked: for how long names rest."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import closing

import pytest

from django_redlock.nodes import connection as connection_module
from tests.nodes.test_undo_queue import connected, reached
from tests.support.loops import idle, loop_connections
from tests.support.waiting import eventually

__all__ = ["reached"]


def test_a_name_rests_no_longer_because_a_node_was_away(reached):
    """The seconds of `min_hold` count from the attempt, also where a node hears of it late."""
    lease = reached.redlock("rests", min_hold=20.0).acquire()
    eventually(lambda: reached.locks() == [1] * 3)  # a majority is enough to acquire
    began = time.monotonic()
    reached.cut((0,))
    lease.release()
    time.sleep(1.5)  # so much of the time is over when the node is back
    reached.heal()

    def left() -> float:
        with closing(reached.nodes[0].client()) as client:
            value = client.get("redlock:lock:rests") or b""
            assert isinstance(value, bytes)
            return float(client.pttl("redlock:lock:rests")) / 1000 if b"rest::" in value else 0.0

    resting = eventually(left)
    assert time.monotonic() - began + resting <= 20.2


@pytest.mark.parametrize("reached", [0.5], ids=["node timeout"], indirect=True)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
def test_a_node_that_was_never_asked_is_sent_no_release(reached, asynchronous, monkeypatch):
    """Locks that come and go beside a hung node leave nothing to be done for it."""
    # If this machine stands still, the silence of a node is not counted anew, so nobody asks it.
    monkeypatch.setattr(connection_module, "UNSEEN", math.inf)
    reached.nodes.pause(2)
    node = reached.group.nodes[2]

    async def in_a_loop() -> tuple[int, int]:
        async def turn() -> None:
            async with reached.redlock("turn"):
                pass

        while not node.down_reason:
            await turn()
        connection = loop_connections(reached.group)[2].connection
        assert connection is not None
        before = len(connection.owed) + len(node.undos.kept)
        for _ in range(100):
            await turn()
        return before, len(connection.owed) + len(node.undos.kept)

    def owed() -> int:
        return sum(len(connection.owed) for connection in (*node._stalled, *idle(node))) + len(
            node.undos.kept
        )

    def by_blocking() -> tuple[int, int]:
        while not node.down_reason:
            connected(reached.redlock)
        before = owed()
        for _ in range(100):
            connected(reached.redlock)
        return before, owed()

    try:
        before, after = asyncio.run(in_a_loop()) if asynchronous else by_blocking()
        assert after <= before
    finally:
        reached.nodes.resume(2)
    eventually(lambda: reached.locks() == [0, 0, 0])
