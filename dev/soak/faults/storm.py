"""Tasks that are cancelled at random moments of acquire, extend and release, and what is left."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django_redlock import LockTaken, current_lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.exchange import Exchange
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import keys_on
from tests.support.proxy import Proxy

T = TypeVar("T")
NAMES = 12  # fewer than tasks at a time: some are refused, some wait


class Forgetful(Exchange):
    """Takes the question of a cancelled task out of the stream; its answer comes all the same."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.answered is not None
        self.answered.add_done_callback(self._forget)

    def _forget(self, answered: asyncio.Future[Any]) -> None:
        if answered.cancelled():
            for connection in self.unheard.values():
                owed = connection.owed
                connection.owed = deque(each for each in owed if each is not self)


@dataclass
class Weather:
    """What a storm did.

    Attributes:
        cancelled, finished, refused: how many tasks ended so.
        strange: what else they raised.
        overlaps: how often two were inside for one name.
        left: keys that were still there a node timeout after the last task of a wave had ended.
        slowest: seconds from a wave's last cancellation to the end of all its tasks.
        problems: what was not well at the end; see ``afterwards``.
    """

    cancelled: int = 0
    finished: int = 0
    refused: int = 0
    strange: list[BaseException] = field(default_factory=list)
    overlaps: int = 0
    left: list[str] = field(default_factory=list)
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


class Storm:
    """Waves of tasks, each cancelled once or twice."""

    def __init__(
        self,
        redlock: LockTemplate,
        nodes: EmbeddedNodes,
        proxies: Sequence[Proxy],
        *,
        seed: int,
        timeout: float,
    ) -> None:
        self.redlock, self.nodes, self.proxies = redlock, nodes, proxies
        self.chance, self.timeout = random.Random(seed), timeout
        self.inside: dict[str, int] = {}
        self.weather = Weather()
        self._shared = {self._named(n): redlock(self._named(n)) for n in range(NAMES)}
        self._longest = 0.2  # seconds until a task is cancelled

    async def rage(
        self, cancellations: int, *, wave: int = 100, until: Callable[[], object] = bool
    ) -> Weather:
        """Go on until so many tasks were cancelled and some were not; or ``until`` says so.

        Where a machine is so slow that hardly any is not, they are given more time.
        """
        weather = self.weather
        while not (weather.left or until()):
            few = weather.finished <= weather.cancelled / 50
            if weather.cancelled >= cancellations * (10 if few else 1):
                break
            if few and weather.cancelled:
                self._longest *= 2
            await self._wave(wave)
        return weather

    async def _wave(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        turns: list[Callable[[], Awaitable[None]]] = [self._block, self._by_hand, self._list]
        tasks = [asyncio.ensure_future(self.chance.choice(turns)()) for _ in range(size)]
        for proxy in self.proxies:
            proxy.delay = self.chance.uniform(0.008, 0.016)  # seconds
        latest = 0.0
        for task in tasks:
            moment = self.chance.choice([0.0, self.chance.uniform(0, self._longest)])
            latest = max(latest, moment)
            loop.call_later(moment, task.cancel)
            if self.chance.random() < 0.4:  # again, while the first one is cleaned up after
                moment += self.chance.uniform(0, 0.03)
                latest = max(latest, moment)
                loop.call_later(moment, task.cancel)
        last = loop.time() + latest
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            self._count(result)
        self.weather.slowest = max(self.weather.slowest, loop.time() - last)
        await self._clear(loop.time() + self.timeout)

    def _count(self, result: BaseException | None) -> None:
        weather = self.weather
        if isinstance(result, asyncio.CancelledError):
            weather.cancelled += 1
        elif isinstance(result, LockTaken):
            weather.refused += 1
        elif result is None:
            weather.finished += 1
        else:
            weather.strange.append(result)

    async def _clear(self, until: float) -> None:
        """Wait for the nodes to be empty, till then at the most; note what is left."""
        loop = asyncio.get_running_loop()
        while True:
            late = loop.time() >= until
            left = await asyncio.to_thread(keys_on, self.nodes)
            if not any(left):
                return
            if late:
                self.weather.left = sorted({key for keys in left for key in keys})
                return
            await asyncio.sleep(0.002)

    # -- what the tasks do ----------------------------------------------------------------------

    async def _block(self) -> None:
        name = self._name()
        fresh = self.redlock(name, wait=self.chance.choice([0, 0, 0.05]))
        async with self.chance.choice([fresh, self._shared[name]]) as lease:
            assert current_lease() is lease
            await self._work(name)
            if self.chance.random() < 0.5:
                await lease.aextend()
            await self._work(name)

    async def _by_hand(self) -> None:
        name = self._name()
        lease = await self.redlock(name).atry_acquire()
        if lease is None:
            return
        try:
            await self._work(name)
            await lease.aextend()
        finally:
            await lease.arelease()

    async def _list(self) -> None:
        names = sorted({self._name(), self._name()})
        async with self.redlock(names) as lease:
            assert lease.names == tuple(names)
            await self._work(*names)

    def _name(self) -> str:
        return self._named(self.chance.randrange(NAMES))

    @staticmethod
    def _named(number: int) -> str:
        return f"storm:{number}"

    async def _work(self, *names: str) -> None:
        for name in names:
            self.inside[name] = self.inside.get(name, 0) + 1
            self.weather.overlaps += self.inside[name] != 1
        try:
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.01]))
        finally:
            for name in names:
                self.inside[name] -= 1
