"""A lease that is given away while a renewal heals it: the handle is its adopter's alone."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import Context
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import LeaseLost, redlock
from django_redlock.core import hold
from django_redlock.leases.lease import Lease
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import PATIENTLY, eventually

pytestmark = pytest.mark.slow
QUEUE = 2  # the node on which the waiters queue, and which is healed


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes of the module's own, for one of them is paused."""
    with EmbeddedNodes(3) as nodes:
        yield nodes


class Given:
    """A lease on two of three nodes, a waiter that is blocked on the third, and a heal on its way.

    Attributes:
        handle: of the lease, given away before the heal arrived.
        waiters: leases that the waiter took.
    """

    def __init__(self, nodes: EmbeddedNodes) -> None:
        self._nodes = nodes
        self.name = next(
            name
            for name in map("job:{}".format, range(100))
            if zlib.crc32(name.encode()) % 3 == QUEUE
        )
        self._key = f"redlock:lock:{self.name}"
        self.waiters: list[Lease] = []
        self.handle = ""
        self._is_paused = threading.Event()
        self._give()

    def _give(self) -> None:
        with closing(self._nodes[QUEUE].client()) as client:
            client.set(self._key, "another attempt", px=60_000)
            lease = redlock(self.name, ttl=30, renew=False).acquire()
            self._waiter = threading.Thread(target=Context().run, args=(self._wait,), daemon=True)
            self._waiter.start()
            eventually(lambda: any(each["cmd"] == "blpop" for each in client.client_list()))
            client.delete(self._key)
        extension = threading.Thread(target=self._extend, args=(lease,))
        with with_edits(Patch(hold, "_healing", self._pausing)):
            extension.start()
            assert self._is_paused.wait(60)
        self.handle = lease.handle()
        self._nodes.resume(QUEUE)
        extension.join()

    def end(self) -> None:
        """Leave no name taken and no thread waiting."""
        for node in self._nodes:
            with closing(node.client()) as client:
                client.delete(self._key)
        self._waiter.join()
        self.waiters[0].release()

    def _wait(self) -> None:
        self.waiters.append(redlock(self.name, ttl=30, wait=60, renew=False).acquire())

    def _extend(self, lease: Lease) -> None:
        with pytest.raises(LeaseLost):  # it was given away meanwhile
            lease.extend()

    def _pausing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Pause the node before the heal is written to it."""

        def healing(*args: Any) -> Any:
            self._nodes.pause(QUEUE)
            self._is_paused.set()
            return real(*args)

        return healing


@pytest.fixture
def given(three: EmbeddedNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Given]]:
    """What gives a lease away while it is healed; the waiter does not look meanwhile."""
    monkeypatch.setattr("django_redlock.core.wait.LOOK_EVERY", (3600.0, 3600.0))
    monkeypatch.setattr("django_redlock.core.wait.NEWS", 7200.0)
    made: list[Given] = []

    def give() -> Given:
        made.append(Given(three))
        return made[-1]

    with override_settings(REDLOCK={"default": three.settings(**PATIENTLY)}):
        yield give
        for each in made:
            each.end()


def test_a_rolled_back_heal_gives_the_handle_to_nobody(given):
    """The lease had ended when the heal was answered. The rollback wakes no waiter."""
    one = given()
    adopted = redlock.adopt(one.handle)
    adopted.ensure()
    assert one.waiters == []
    adopted.release()


def test_a_rollback_that_wakes_is_caught(given):
    """Broken: the rollback wakes the next waiter by the giver's nonce, which opens the handle."""

    def waking(real: Callable[..., Any]) -> Callable[..., Any]:
        def undo(*args: Any, **facts: Any) -> Any:
            return real(*args, **facts | {"wake": None})

        return undo

    with with_edits(Patch(hold, "undo", waking)):
        one = given()
        eventually(lambda: one.waiters)
    with pytest.raises(LeaseLost):
        redlock.adopt(one.handle)
