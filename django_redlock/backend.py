"""Hold what a lock needs of one alias: its nodes, its policy, its defaults.

A backend needs no Django: ``conf`` makes one from settings, and a program may make its own.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from django_redlock.core.policy import check_seconds, meant_seconds
from django_redlock.interruption import collector, in_steps, why_not_here
from django_redlock.nodes.background import notice_fork, running_loop

from .core.errors import NodesUnavailable
from .core.protocol import UNDO, Answer, LeaveQueue, Request, Sleep, Vote
from .core.reasons import ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from django_redlock.core.policy import Policy
    from django_redlock.nodes.node import NodeStatus

    from .core.protocol import BlockOnNode, Effect, JoinQueue, Steps, Wakeup

T = TypeVar("T")
LABEL_BYTES = 200
TESTING: Final = "django_redlock.testing"
backends: Final[dict[str, Backend]] = {}  # by alias, those that ``conf`` has made


class Group(Protocol):
    """The nodes of one alias, real or in memory."""

    def ask(self, ask: Request) -> Sequence[Vote]:
        """Send a request to the nodes and return one vote for each, in order."""

    def aask(self, ask: Request) -> Awaitable[Sequence[Vote]]:
        """Send a request as ``ask`` does, for a task; when this returns, it is on its way."""

    def queue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> bool | Wakeup | str:
        """Carry out an effect of a wait queue; its class says what is returned."""

    def aqueue(
        self, effect: JoinQueue | BlockOnNode | LeaveQueue
    ) -> Awaitable[bool | Wakeup | str]:
        """Carry out an effect as ``queue`` does, for a task."""

    def waiting(self) -> Mapping[str, int]:
        """Return how many waiters this process has, by template, without a request."""

    def states(self) -> Sequence[NodeStatus]:
        """Return what is known of each node, without a request."""

    def close(self, timeout: float = ...) -> list[str]:
        """Close idle connections, and end what goes on in the background; see ``NodeGroup``."""


class Transaction(Protocol):
    """A database transaction, as the block of ``Lock.atomic`` uses it.

    ``committed`` tells whether it is known to be committed; ``commit`` may raise behind that.
    """

    committed: bool

    def begin(self, block: Callable[[], object]) -> None:
        """Begin it; ``block`` returns None once the block is gone that is to end it."""

    def commit(self) -> None:
        """Commit it, or roll back if the body wants that; ``roll_back`` is called if it raises."""

    def roll_back(self) -> None:
        """Roll back, unless it has ended; may be called again, and in the middle of anything."""


def process_label() -> str:
    """Return the owner label of this process: host and process id."""
    return _label_of(os.getpid())


@functools.cache
def _label_of(process: int) -> str:
    host = socket.gethostname().encode()[: LABEL_BYTES - 20].decode(errors="ignore")
    return f"{host}:{process}"


def refuse_event_loop() -> None:
    """Check that no event loop runs in this thread: a blocking call would stop it.

    Raises:
        RuntimeError: an event loop runs.
    """
    if running_loop() is not None:
        msg = "this would block the event loop: use 'async with', or aacquire, aadopt …"
        raise RuntimeError(msg)


def no_transaction() -> bool:
    """Return False: without a database there is no transaction."""
    return False


def in_tests() -> bool:
    """Return whether the testing kit is imported; pytest loads its plugin."""
    return TESTING in sys.modules


def sleep(seconds: float) -> None:
    """Let seconds pass, by what ``time.sleep`` is now: gevent may patch it after the import."""
    time.sleep(seconds)


def no_database(_: str | None = None) -> Transaction:
    """Refuse to make a transaction: there is no database.

    Raises:
        RuntimeError: always.
    """
    msg = "Lock.atomic needs a database: use a lock of an alias in Django's setting REDLOCK"
    raise RuntimeError(msg)


async def _done(result: T) -> T:
    return result


@dataclass(frozen=True, slots=True)
class Backend:
    """An alias: its nodes, its policy and its defaults.

    Raises:
        ValueError: ``ttl`` is above MAX_TTL, or too short.

    Attributes:
        alias: its name.
        group: the nodes.
        policy: the constants of the group.
        ttl: default seconds of a lease.
        wait: default seconds to wait for a name; 0 does not wait.
        renew: whether leases are renewed while they are held.
        max_hold: seconds after which renewals stop; None: never.
        max_waiting_requests: how many requests of one process may wait at a time; None: any number.
        label: returns the owner label to leave in the keys; never a secret.
        in_transaction: returns whether the caller is inside a database transaction.
        atomic: returns a transaction of a database, given its alias; None is the default one.
        refuse_event_loop: raises where blocking would stop an event loop.
        sleep: called with seconds, to let them pass in a thread.
        strict: returns whether a mistake that would be logged is raised, as in tests.
    """

    alias: str
    group: Group
    policy: Policy
    ttl: float = 30.0
    wait: float = 0.0
    renew: bool = True
    max_hold: float | None = None
    max_waiting_requests: int | None = None
    label: Callable[[], str] = field(default=process_label)
    in_transaction: Callable[[], bool] = field(default=no_transaction)
    atomic: Callable[[str | None], Transaction] = field(default=no_database)
    refuse_event_loop: Callable[[], None] = field(default=refuse_event_loop)
    sleep: Callable[[float], object] = field(default=sleep)
    strict: Callable[[], bool] = field(default=in_tests)

    def __post_init__(self) -> None:
        self.check_ttl(self.ttl)

    def run(self, steps: Steps[T], value: Any = None) -> T:
        """Carry out steps of the algorithm on these nodes, by blocking calls.

        An exception that a signal handler raises is thrown into the generator, which yields what
        to undo; then it goes on to the caller. Hence the inner loop: its jump back, where Python
        looks for signals, lies inside the ``try``.

        Args:
            value: what is sent to the steps first.

        Raises:
            RuntimeError: the garbage collector runs in this thread, or the thread is asking the
                nodes for another lock.
        """
        if why_not := why_not_here():
            raise RuntimeError(why_not)
        step: Callable[[Any], Effect] = steps.send
        while True:
            try:
                while True:
                    value = self._perform(step(value))
                    step = steps.send
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            except BaseException as error:  # rule: undo on every interruption, see ``acquire``
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the generator's own
                    raise
                step, value = steps.throw, error

    async def arun(self, steps: Steps[T]) -> T:
        """Carry out steps as ``run`` does, in a task.

        A cancellation is thrown into the generator, too. Each effect is sent before it is awaited,
        so a request that undoes is on its way even if a second cancellation ends the waiting.
        """
        if why_not := why_not_here():
            raise RuntimeError(why_not)
        step: Callable[[Any], Effect] = steps.send
        value: Any = None
        while True:
            try:
                while True:
                    value = await self._aperform(step(value))
                    step = steps.send
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            except BaseException as error:  # rule: as in ``run``
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    raise
                step, value = steps.throw, error

    def run_elsewhere(self, steps: Steps[None]) -> None:
        """Begin steps where no node may be asked, and go on in the background."""
        with suppress(StopIteration):  # there is nothing to ask the nodes, or no thread to do it
            effect = steps.send(None)
            if not collector.hand_over(lambda: self.run(steps, self._perform(effect))):
                steps.send(self._unperformed(effect))

    def _perform(self, effect: Effect) -> Any:
        if sys.is_finalizing():
            return self._unperformed(effect)
        notice_fork()
        if isinstance(effect, Request):
            return in_steps(self.group.ask, effect)
        if isinstance(effect, Sleep):
            return self.sleep(effect.seconds)
        return in_steps(self.group.queue, effect)

    def _aperform(self, effect: Effect) -> Awaitable[Any]:
        if sys.is_finalizing():
            return _done(self._unperformed(effect))
        notice_fork()
        if isinstance(effect, Request):
            return in_steps(self.group.aask, effect)
        if isinstance(effect, Sleep):
            return asyncio.sleep(effect.seconds)
        return in_steps(self.group.aqueue, effect)

    def _unperformed(self, effect: Effect) -> list[Vote] | str:
        """Return at once what a release goes on with, when the interpreter shuts down.

        Other threads have ended then, and may have left locks locked; sockets may be closed. The
        name is free after its ttl.

        Raises:
            NodesUnavailable: it is no release, and cannot go on.
        """
        reason = because(ReasonCode.EXITING)
        if isinstance(effect, LeaveQueue):
            return ""
        if isinstance(effect, Request) and effect.command in UNDO:
            labels = [each.label for each in self.group.states()]
            return [Vote(each, Answer.UNKNOWN, reason=reason, sent=False) for each in labels]
        raise NodesUnavailable(reason)

    def check_ttl(self, ttl: float) -> float:
        """Return the ttl, if it is valid for this alias.

        Raises:
            ValueError: it is above MAX_TTL, or so short that the drift leaves no validity.
        """
        ttl = check_seconds("ttl", ttl)
        if ttl > self.policy.max_ttl:
            msg = (
                f"ttl={ttl:g}{meant_seconds(ttl)} is above MAX_TTL "
                f"({self.policy.max_ttl:g} s) of the alias "
                f"{self.alias!r}: lower it, or raise MAX_TTL on all processes first"
            )
            raise ValueError(msg)
        if self.policy.validity(ttl) <= 0:
            msg = f"ttl={ttl:g} is too short: the allowance for clock drift eats it up"
            raise ValueError(msg)
        return ttl

    def check_min_hold(self, min_hold: float) -> float:
        """Return ``min_hold``, if it is valid for this alias.

        Raises:
            ValueError: it is above MAX_TTL.
        """
        if min_hold > self.policy.max_ttl:
            msg = (
                f"min_hold={min_hold:g}{meant_seconds(min_hold)} is above MAX_TTL "
                f"({self.policy.max_ttl:g} s) of the alias "
                f"{self.alias!r}: lower it, or raise MAX_TTL on all processes first"
            )
            raise ValueError(msg)
        return min_hold
