"""Failovers behind the address of a node, under load."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.leases.lease import Lease
from tests.faults.test_failover import LONG, ROUNDS, in_charge, service
from tests.support.waiting import eventually

__all__ = ["service"]


class Holds:
    """Threads and a loop that take one lock again and again, and note when they believe in it."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.noted: list[tuple[float, float, int]] = []  # from, until, fence
        self.works: list[Future[None]] = []

    def _note(self, lease: Lease, began: float) -> None:
        """Note a hold at its end: a holder believes in it until then, or until its deadline."""
        left = time.monotonic() + lease.remaining()
        self.noted.append((began, min(time.monotonic(), left), lease.fence))

    def _thread(self) -> None:
        while not self.stop.is_set():
            with (
                suppress(NodesUnavailable, LockTaken, LeaseLost),
                redlock("contended", wait=1, renew=False) as lease,
            ):
                began = time.monotonic()
                time.sleep(0.001)
                self._note(lease, began)

    def _loop(self) -> None:
        async def take() -> None:
            while not self.stop.is_set():
                with suppress(NodesUnavailable, LockTaken, LeaseLost):
                    async with redlock("contended", wait=1, renew=False) as lease:
                        began = time.monotonic()
                        await asyncio.sleep(0.001)
                        self._note(lease, began)

        async def main() -> None:
            await asyncio.gather(take(), take())

        asyncio.run(main())

    def go_on(self) -> None:
        """Wait for many more."""
        enough = len(self.noted) + ROUNDS
        eventually(
            lambda: len(self.noted) >= enough or any(work.done() for work in self.works),
            within=LONG,
            what="locks",
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run for as long as the block."""
        with ThreadPoolExecutor(4) as pool:
            self.works = list(map(pool.submit, (self._thread, self._thread, self._loop)))
            try:
                yield
            finally:
                self.stop.set()
        for work in self.works:
            work.result()


def test_failovers_under_load(service):
    """Locks come back by themselves, no two holders believe in one, and tokens increase."""
    holds = Holds()
    with in_charge(service), holds.running():
        for _ in range(2):
            holds.go_on()
            service.fail_over()
        holds.go_on()
    noted = sorted(holds.noted)
    assert [later for sooner, later in pairwise(noted) if later[0] < sooner[1]] == []
    fences = [fence for _, _, fence in noted]
    assert fences == sorted(set(fences))
