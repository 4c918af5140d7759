"""The watchdogs: they keep leases alive, and tell their holders when one is lost.

One thread for all leases of a process, and one timer in each event loop for those that were
taken there. A lease is prolonged at a third of its ttl, together with all others of its nodes
that are nearly due. At its own deadline, whatever the network does, it is told to be lost.

The thread neither asks the nodes nor calls ``on_lost`` itself: a node that hangs or a callback
that blocks would make it late for other leases. Both are jobs, one after the other for each
group of nodes and for all callbacks.

In a loop nothing blocks but the loop, so it needs no jobs, and no task either: a task would be
cancelled by ``asyncio.run`` before the holders' own clean-up, and complained about by a loop
that is closed without a word. The loop keeps its watchdog by the timer and nothing else does;
when a loop ends, leases that are still held go over to the thread.

A daemon thread, silent at exit; a forked child begins with no leases.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import algorithm
from .background import Crew, start_thread
from .errors import NodesUnavailable
from .protocol import Ask, boottime
from .rota import Rota, batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backend import Backend
    from .extending import Outcome
    from .lease import Lease
    from .protocol import Steps
    from .rota import Reference

logger = logging.getLogger("django_redlock")


class Renewal:
    """One message for many leases, and what comes of it."""

    def __init__(self, backend: Backend, batch: Sequence[Reference]) -> None:
        leases = (reference() for reference in batch)
        self.leases = [lease for lease in leases if lease is not None and lease.held]
        self.backend = backend
        self.asked = backend.policy.clock()

    def steps(self) -> Steps[list[Outcome]]:
        """What to ask."""
        grants = [lease.tenancy for lease in self.leases]
        return algorithm.extend_many(self.backend.policy, grants, [grant.ttl for grant in grants])

    def unknown(self) -> list[Outcome]:
        """The outcomes where asking itself has failed, in the handler of that."""
        logger.exception("renewing %d leases of %r failed", len(self.leases), self.backend.alias)  # noqa: LOG004
        reason = "the nodes could not be asked"
        return [NodesUnavailable(reason, name=lease.name) for lease in self.leases]

    def settle(self, outcomes: Sequence[Outcome]) -> list[Lease]:
        """Let each lease know; the ones whose holders must be told of a loss."""
        pairs = zip(self.leases, outcomes, strict=True)
        return [lease for lease, outcome in pairs if lease.renewed(outcome, self.asked)]


class Watchdog:
    """Looks after the leases of a process, those of event loops by a timer there."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases, as a forked child must: they are its parent's."""
        self._woken = threading.Condition(threading.RLock())
        self._rota = Rota()
        self._crew = Crew()
        self._sleeps_until = math.inf
        self._running = False
        # Weak both ways: a loop keeps its watchdog, and nothing keeps the loop.
        self._loops: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, weakref.ref[LoopWatchdog]
        ] = weakref.WeakKeyDictionary()

    def watch(self, lease: Lease) -> None:
        """Look after a lease until it ends."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            self._watch([lease])
            return
        reference = self._loops.get(loop)
        in_loop = reference() if reference else None
        if in_loop is None:
            in_loop = LoopWatchdog()
            self._loops[loop] = weakref.ref(in_loop)
            weakref.finalize(in_loop, self._inherit, in_loop.rota).atexit = False
        in_loop.watch(lease, loop)

    def _watch(self, leases: Sequence[Lease]) -> None:
        with self._woken:
            for lease in leases:
                self._rota.add(lease)
            self._wake()
            if leases and not self._running:
                try:
                    start_thread(self._run)
                    self._running = True
                except RuntimeError as error:  # the next lease tries again
                    logger.warning("no renewal, leases end with their ttl: %s", error)

    def _inherit(self, rota: Rota) -> None:
        """Look after what an event loop leaves. Called whenever, wherever: so it takes no lock."""
        if rota.next() < math.inf:
            try:
                start_thread(lambda: self._watch(rota.leases()))
            except RuntimeError:
                return  # the interpreter shuts down

    def _wake(self) -> None:
        if self._rota.next() < self._sleeps_until:
            self._woken.notify()

    def _run(self) -> None:
        while True:
            self._attend()  # a call of its own: no variable here keeps a lease alive

    def _attend(self) -> None:
        """Wait until there is something to do, and have it done."""
        with self._woken:
            left = self._rota.next() - boottime()
            if left > 0:
                self._sleeps_until = boottime() + left
                self._woken.wait(None if left == math.inf else min(left, threading.TIMEOUT_MAX))
                self._sleeps_until = -math.inf  # awake: no need to be woken
                return
            over, due = self._rota.take(boottime())
        self._tell([lease for lease in over if lease.over()])
        for backend, batch in batches(due):
            self._crew.do(id(backend.group), partial(self._renew, backend, batch))

    def _renew(self, backend: Backend, batch: Sequence[Reference]) -> None:
        renewal = Renewal(backend, batch)
        try:
            outcomes = backend.run(renewal.steps())
        except Exception:  # noqa: BLE001 - logged; the leases stand until their deadlines
            outcomes = renewal.unknown()
        lost = renewal.settle(outcomes)
        with self._woken:
            for lease in renewal.leases:
                self._rota.renew_later(lease)
            self._wake()
        self._tell(lost)

    def _tell(self, lost: Sequence[Lease]) -> None:
        for lease in lost:
            self._crew.do("tell", lease.tell_lost)


class LoopWatchdog:
    """Looks after the leases that were taken in one event loop, by its timers."""

    def __init__(self) -> None:
        self.rota = Rota()
        self._timer = math.inf  # when the next one fires; later ones are out of date
        self._waiting: dict[int, deque[tuple[Backend, Sequence[Reference]]]] = {}

    def watch(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        """Look after a lease until it ends."""
        self.rota.add(lease)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        when = self.rota.next()
        if when < self._timer:
            self._timer = when
            left = max(0.0, when - boottime())
            # An empty context: the one of whoever took the lock is no business of ours.
            loop.call_later(left, self._look, when, loop, context=contextvars.Context())

    def _look(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if when != self._timer:
            return
        self._timer = math.inf
        try:
            over, due = self.rota.take(boottime())
            self._tell([lease for lease in over if lease.over()])
            for backend, batch in batches(due):
                kind = id(backend.group)
                if kind in self._waiting:
                    self._waiting[kind].append((backend, batch))
                else:
                    self._waiting[kind] = deque([(backend, batch)])
                    self._ask_next(kind, loop)
        finally:
            self._set_timer(loop)

    def _ask_next(self, kind: int, loop: asyncio.AbstractEventLoop) -> None:
        """Put the next question to these nodes, or be done with them."""
        while self._waiting[kind]:
            backend, batch = self._waiting[kind].popleft()
            renewal = Renewal(backend, batch)
            steps = renewal.steps()
            try:
                question = next(steps)
                assert isinstance(question, Ask)  # an extension waits for nothing
                answered = asyncio.ensure_future(backend.group.aask(question), loop=loop)
            except StopIteration as stop:  # nothing to ask
                self._settle(renewal, stop.value, loop)
            except Exception:  # noqa: BLE001 - as in Watchdog._renew
                self._settle(renewal, renewal.unknown(), loop)
            else:
                heard = partial(self._heard, renewal, steps, kind, loop)
                answered.add_done_callback(heard, context=contextvars.Context())
                return
        del self._waiting[kind]

    def _heard(
        self,
        renewal: Renewal,
        steps: Steps[list[Outcome]],
        kind: int,
        loop: asyncio.AbstractEventLoop,
        answered: asyncio.Future[Any],
    ) -> None:
        outcomes: list[Outcome]
        try:
            steps.send(answered.result())
        except StopIteration as stop:
            outcomes = stop.value
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - as in Watchdog._renew
            outcomes = renewal.unknown()
        self._settle(renewal, outcomes, loop)
        self._ask_next(kind, loop)

    def _settle(
        self, renewal: Renewal, outcomes: list[Outcome], loop: asyncio.AbstractEventLoop
    ) -> None:
        lost = renewal.settle(outcomes)
        for lease in renewal.leases:
            self.rota.renew_later(lease)
        self._set_timer(loop)
        self._tell(lost)

    def _tell(self, lost: Sequence[Lease]) -> None:
        for lease in lost:
            lease.tell_lost()


watchdog: Final = Watchdog()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset)
