"""Other lock clients and we keep each other out: their programs in processes of their own.

Five real nodes, or one for the clients that know no more. Every test that sees somebody kept out
sees the same client let in where nothing stands in its way.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from dev.benchmarks.peers import CLIENTS, SINGLE, Peer, PeerUnavailable
from dev.benchmarks.peers.environments import has_node
from dev.benchmarks.peers.process import NODE_CLIENTS
from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, redlock
from django_redlock.inspection.survey import LockStatus, survey
from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes
from tests.support.waiting import eventually

CANNOT_EXTEND = {"redlock-py", "redlock-ng asyncio"}
NAME, OTHER = "shared", "another"
LONG = 20.0  # a ttl in seconds that outlives a test
PATIENCE = 5.0  # seconds that a node may take; the tests are about keys
OURS = 2.0  # what the alias of the nodes gives us; renewed while a lease is held


def start(client: str, urls: Sequence[str]) -> Peer:
    """A program of the client; without one the test is skipped, but not where all must run."""
    try:
        return Peer(client, urls)
    except PeerUnavailable as error:
        if os.environ.get("CI") and (client not in NODE_CLIENTS or has_node()):
            raise
        pytest.skip(str(error))


@dataclass
class Shared:
    """One client and we, with the same nodes in mind."""

    client: str
    peer: Peer
    nodes: Sequence[EmbeddedNode]
    prefix: str

    @property
    def key(self) -> str:
        return f"{self.prefix}lock:{NAME}"

    @property
    def other_key(self) -> str:
        return f"{self.prefix}lock:{OTHER}"

    def values(self) -> list[bytes | None]:
        """What each node has under the key."""
        return [self._ask(node, "GET") for node in self.nodes]

    def complete(self) -> list[bytes | None]:
        """The same when every node has something: clients do not wait for more than a majority."""
        eventually(lambda: None not in self.values(), what="a value on every node")
        return self.values()

    def gone(self) -> None:
        """See that no node has the key any more."""
        eventually(lambda: set(self.values()) == {None}, what="released on every node")

    def left(self) -> list[float]:
        """Seconds until the key expires on each node that has it."""
        return [found / 1000 for node in self.nodes if (found := self._ask(node, "PTTL")) >= 0]

    def lose(self) -> None:
        """Delete the keys behind their owner's back."""
        for node in self.nodes:
            self._ask(node, "DEL")

    def _ask(self, node: EmbeddedNode, verb: str) -> Any:
        with closing(node.client(socket_timeout=5)) as client:
            return client.execute_command(verb, self.key)


@pytest.fixture(params=CLIENTS)
def shared(request: pytest.FixtureRequest, redlock_nodes: EmbeddedNodes) -> Iterator[Shared]:
    """Each client in turn, over as many nodes as it can have, and the default alias over these."""
    client: str = request.param
    nodes = redlock_nodes[:1] if client in SINGLE else redlock_nodes[:]
    # This one writes "lock:" before its keys, so ours must begin like that.
    prefix = "" if client == "python-redis-lock" else "redlock:"
    urls = [node.url for node in nodes]
    alias = redlock_nodes.settings(KEY_PREFIX=prefix, NODE_TIMEOUT=PATIENCE) | {"NODES": urls}
    if client.startswith("redlock-ng"):  # it would give up after 0.1 s
        urls = [
            f"{url}?socket_timeout={PATIENCE}&socket_connect_timeout={PATIENCE}" for url in urls
        ]
    with start(client, urls) as peer, override_settings(REDLOCK={"default": alias}):
        # From now on each of our locks is on every node: none is still being connected.
        eventually(lambda: survey(conf.backend("default")).voting == len(nodes))
        both = Shared(client, peer, nodes, prefix)
        both.lose()
        yield both
        both.lose()


def test_a_peer_keeps_us_out(shared):
    """What a peer holds is taken, for as long as its ttl has left; another name is free."""
    start = time.monotonic()
    assert shared.peer.acquire(shared.key, LONG)
    assert redlock(NAME).try_acquire() is None
    with pytest.raises(LockTaken) as info:
        redlock(NAME).acquire()
    left = info.value.retry_after
    assert left is not None
    assert LONG - (time.monotonic() - start) <= left <= LONG
    assert info.value.holder is None
    with redlock(OTHER):
        pass
    assert shared.peer.release()
    with redlock(NAME):
        pass


def test_we_keep_a_peer_out(shared):
    """What we hold a peer does not get, and its attempt takes nothing from us."""
    with redlock(NAME) as lease:
        before = shared.complete()
        assert not shared.peer.acquire(shared.key, LONG)
        assert shared.values() == before
        lease.extend()
        assert shared.peer.acquire(shared.other_key, LONG)
        assert shared.peer.release()
    assert shared.peer.acquire(shared.key, LONG), (before, shared.values(), shared.left())


def test_a_peer_does_not_touch_our_lock(shared):
    """A peer that believes in a lock which is ours by now neither prolongs nor releases it."""
    assert shared.peer.acquire(shared.key, LONG)
    shared.complete()
    shared.lose()
    with redlock(NAME) as lease:
        before = shared.complete()
        if shared.client not in CANNOT_EXTEND:
            assert not shared.peer.extend(LONG)
        shared.peer.release()
        assert shared.values() == before
        assert max(shared.left()) <= OURS
        lease.extend()


def test_a_peer_prolongs_and_releases_its_own(shared):
    """What a peer does not do to our keys it does to its own."""
    assert shared.peer.acquire(shared.key, LONG)
    shared.complete()  # some return with a majority: what comes behind must not find the rest free
    if shared.client not in CANNOT_EXTEND:
        assert shared.peer.extend(LONG * 2)
        eventually(lambda: min(shared.left()) > LONG, what="prolonged on every node")
    assert shared.peer.release()
    shared.gone()


def test_we_do_not_touch_a_peers_lock(shared):
    """A lease of ours that a peer's lock replaced can be neither prolonged nor released."""
    lease = redlock(NAME, renew=False).acquire()
    shared.complete()
    shared.lose()
    assert shared.peer.acquire(shared.key, LONG)
    before = shared.complete()
    with pytest.raises(LeaseLost):
        lease.extend()
    lease.release()
    assert shared.values() == before
    assert min(shared.left()) > OURS
    shared.lose()
    lease = redlock(NAME, renew=False).acquire()
    assert shared.complete() != before
    lease.extend()
    lease.release()
    shared.gone()


def test_a_peer_that_died_is_outlived(shared):
    """When a peer dies, who waits gets the name at the end of its ttl, and not before."""
    start = 0.0

    def acquired() -> bool:  # a lock that took a second to acquire is none, says its client
        nonlocal start
        start = time.monotonic()
        return bool(shared.peer.acquire(shared.key, 1))

    eventually(acquired)
    shared.peer.close()
    with redlock(NAME, wait=10):
        assert time.monotonic() - start >= 0.99


def test_a_peer_outlives_us(shared):
    """When our lease runs out, a peer gets the name, and not before."""
    start = time.monotonic()
    lease = redlock(NAME, ttl=1, renew=False).acquire()
    eventually(lambda: shared.peer.acquire(shared.key, LONG), within=10)
    assert time.monotonic() - start >= 0.99
    assert lease.remaining() <= 0


def test_status_shows_a_peers_lock(shared):
    """Asked for by its name, a peer's lock is held by another client; only ours is in a list."""
    assert shared.peer.acquire(shared.key, LONG)
    shared.complete()
    (lock,) = survey(conf.backend("default"), [NAME]).locks
    assert (lock.kind, lock.holder, lock.fence) == (LockStatus.HELD, "", None)
    assert lock.on == lock.of == len(shared.nodes)
    left = [cell.left for cell in lock.cells if cell is not None and cell.left is not None]
    assert OURS < min(left) <= max(left) <= LONG
    assert "another client" in status(NAME)
    assert json.loads(status(NAME, json=True))["aliases"]["default"]["locks"][0]["holder"] == ""
    assert survey(conf.backend("default")).locks == ()
    value = shared.values()[0].decode()
    assert value not in status(NAME)
    assert value not in status(NAME, json=True)
    assert shared.peer.release()
    shared.gone()
    with redlock(NAME) as lease:
        (lock,) = survey(conf.backend("default")).locks
        assert (lock.kind, lock.name, lock.fence) == (LockStatus.HELD, NAME, lease.fence)
        assert "another client" not in status(NAME)


def test_a_peer_has_no_restart_guard(redlock_nodes):
    """Nodes that restarted empty give a peer what we hold, and would not give it to us."""
    alias = redlock_nodes.settings(NODE_TIMEOUT=PATIENCE)
    with (
        start("redlock-ng", redlock_nodes.urls) as peer,
        override_settings(REDLOCK={"default": alias}),
    ):
        lease = redlock(NAME, renew=False).acquire()
        for index in range(3):
            redlock_nodes.restart(index)
        with pytest.raises(NodesUnavailable, match="guard"):
            redlock(NAME).acquire()
        assert eventually(lambda: peer.acquire(f"redlock:lock:{NAME}", LONG))
        lease.release()
        peer.release()


def status(*names: str, **options: Any) -> str:
    """What redlock_status prints; it ends with 0, healthy."""
    out = io.StringIO()
    call_command("redlock_status", *names, stdout=out, **options)
    return out.getvalue()
