"""Release leases at the moment when a renewal heals them, and count the names that stay taken.

``make soak ARGS=healing`` does it a hundred thousand times.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self
from unittest import mock

import django
from django.conf import settings as django_settings

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock import redlock
from django_redlock.core import hold
from django_redlock.core.errors import RedlockError
from django_redlock.core.protocol import Request
from django_redlock.leases.lease import Lease
from django_redlock.testing import EmbeddedNodes

AT_ONCE = 50  # names that are wiped and looked at together
LONGEST = 0.002  # seconds by which one of the two begins before the other
OVERTAKES = 0.05  # seconds for which a heal lets a release pass
SOON = 20.0  # seconds in which what is rolled back is gone
TTL = 60.0  # seconds: a name that is left is still there by then


class Rush:
    """Leases on five nodes of which two have lost them; each is extended and released at once.

    Args:
        nodes: MAX_TTL allows a lease of a minute.
        soon: seconds in which what is rolled back is gone.

    Attributes:
        healed: how often a heal was sent.
        released: how many leases were released.
    """

    def __init__(self, nodes: EmbeddedNodes, soon: float = SOON) -> None:
        self.healed = self.released = 0
        self._soon = soon
        self._random = random.Random(5)
        self._stack = ExitStack()
        self._clients = [self._stack.enter_context(node.client()) for node in nodes]
        self._threads = self._stack.enter_context(ThreadPoolExecutor(2))
        self._released = threading.Event()
        self._number = 0

    def __enter__(self) -> Self:
        healing = hold._healing

        def counted(*args: Any) -> Request:
            self.healed += 1
            request = healing(*args)
            return replace(request, still=partial(self._overtaken, request.still))

        self._stack.enter_context(mock.patch.object(hold, "_healing", counted))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def left_after(self, releases: int) -> int:
        """Release so many leases beside heals; return how many names stay taken on a node.

        It ends with the first that do.
        """
        for _ in range(0, releases, AT_ONCE):
            names = [f"rush{self._next()}" for _ in range(AT_ONCE)]
            leases = [lease for name in names if (lease := self._acquired(name))]
            self.released += len(leases)
            keys = [f"redlock:lock:{lease.names[0]}" for lease in leases]
            for client in self._random.sample(self._clients, 2) * bool(keys):
                client.delete(*keys)
            for lease in leases:
                self._at_once(lease)
            if keys and (left := self._left(keys)):
                return left
        return 0

    @staticmethod
    def _acquired(name: str) -> Lease | None:
        """A lease; None where this machine is too slow for it."""
        with contextlib.suppress(RedlockError):
            return redlock(name, ttl=TTL, renew=False).acquire()
        return None

    def _overtaken(self, still: Callable[[], bool] | None) -> bool:
        """Answer, and let half of the releases pass between this answer and the heal's writing."""
        answer = still is None or still()
        if self._random.random() < 0.5:
            self._released.wait(OVERTAKES)
        return answer

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _at_once(self, lease: Lease) -> None:
        both = threading.Barrier(2)
        waits = self._random.uniform(-LONGEST, LONGEST)

        def extend() -> None:
            both.wait()
            time.sleep(max(0.0, waits))
            with contextlib.suppress(RedlockError):
                lease.extend()

        def release() -> None:
            both.wait()
            time.sleep(max(0.0, -waits))
            lease.release()
            self._released.set()

        self._released.clear()
        steps: tuple[Callable[[], None], ...] = (extend, release)
        for done in [self._threads.submit(step) for step in steps]:
            done.result()

    def _left(self, keys: list[str]) -> int:
        """How many names some node has; what is rolled back just now has a little time."""
        deadline = time.monotonic() + self._soon
        while True:
            taken = {
                i for client in self._clients for i, each in enumerate(client.mget(keys)) if each
            }
            if not taken or time.monotonic() > deadline:
                return len(taken)
            time.sleep(0.01)


def main() -> int:
    """Release very many leases beside heals, and print what stays taken."""
    parser = verdict.parser("dev.soak.faults.healing", __doc__)
    parser.add_argument("--releases", type=int, default=100_000)
    wanted = parser.parse_args()
    with EmbeddedNodes(5) as nodes:
        alias = nodes.settings(RESTART_GUARD=False, MAX_TTL=TTL, NODE_TIMEOUT=0.5)
        django_settings.configure(INSTALLED_APPS=["django_redlock"], REDLOCK={"default": alias})
        django.setup()
        with Rush(nodes) as rush:
            left = rush.left_after(wanted.releases)
    print(f"{rush.released:,} releases, {rush.healed:,} heals, {left} names left taken")
    return verdict.end(
        [f"{left} names are left taken"] * bool(left),
        Played(rush.released, wanted.releases, "releases"),
        Played(rush.healed, wanted.releases // 20, "heals"),
    )


if __name__ == "__main__":
    sys.exit(main())
