"""All that a lock needs to know of one alias: its nodes, its rules, its defaults.

Knows no Django: ``conf`` makes one from settings, and anybody else may make one by hand.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django_redlock.core.policy import check_seconds

from .concurrency.loops import running_loop
from .core.driver import arun, run
from .core.protocol import Request, Sleep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from django_redlock.core.policy import Policy

    from .core.protocol import BlockOnNode, Effect, JoinQueue, LeaveQueue, Steps, Vote, Wakeup
    from .transport.node import NodeStatus

T = TypeVar("T")
LABEL_BYTES = 200


class Group(Protocol):
    """The nodes of one alias, whatever they are."""

    def ask(self, ask: Request) -> Sequence[Vote]:
        """Put a question to the nodes and return one vote for each, in order."""

    def aask(self, ask: Request) -> Awaitable[Sequence[Vote]]:
        """The same for a task; what can be sent is on its way when this returns."""

    def queue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> bool | Wakeup | str:
        """Wait in line, stand or leave, by blocking; see the effects for what is returned."""

    def aqueue(
        self, effect: JoinQueue | BlockOnNode | LeaveQueue
    ) -> Awaitable[bool | Wakeup | str]:
        """The same for a task."""

    def states(self) -> Sequence[NodeStatus]:
        """What is known of each node, without asking."""

    def close(self) -> None:
        """Close idle connections."""


def process_label() -> str:
    """Who we are, for people: host and process."""
    return f"{_host()}:{os.getpid()}"


@functools.cache
def _host() -> str:
    return socket.gethostname().encode()[: LABEL_BYTES - 20].decode(errors="ignore")


def refuse_event_loop() -> None:
    """See that no event loop runs in this thread: a blocking call would stop it.

    Raises:
        RuntimeError: one does.
    """
    if running_loop() is not None:
        msg = "this would block the event loop: use 'async with', or aacquire, aadopt …"
        raise RuntimeError(msg)


def no_transaction() -> bool:
    """Without a database there is no transaction."""
    return False


@dataclass(frozen=True, slots=True)
class Backend:
    """One alias.

    Attributes:
        alias: its name.
        group: the nodes.
        policy: the rules they are used by.
        ttl: default seconds of a lease.
        wait: default seconds to wait for a name; 0 does not wait.
        renew: whether leases are prolonged while they are held.
        max_hold: seconds after which that stops, or None.
        label: the owner label to leave in the keys; never a secret.
        in_transaction: whether the caller is inside a database transaction.
        refuse_event_loop: raises where blocking would stop an event loop.
        sleep: how to let time pass.
    """

    alias: str
    group: Group
    policy: Policy
    ttl: float = 30.0
    wait: float = 0.0
    renew: bool = True
    max_hold: float | None = None
    label: Callable[[], str] = field(default=process_label)
    in_transaction: Callable[[], bool] = field(default=no_transaction)
    refuse_event_loop: Callable[[], None] = field(default=refuse_event_loop)
    sleep: Callable[[float], object] = field(default=time.sleep)

    def run(self, steps: Steps[T]) -> T:
        """Carry out steps of the algorithm on these nodes."""
        return run(steps, self._perform)

    def arun(self, steps: Steps[T]) -> Awaitable[T]:
        """The same in a task."""
        return arun(steps, self._aperform)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Request):
            return self.group.ask(effect)
        if isinstance(effect, Sleep):
            return self.sleep(effect.seconds)
        return self.group.queue(effect)

    def _aperform(self, effect: Effect) -> Awaitable[Any]:
        if isinstance(effect, Request):
            return self.group.aask(effect)
        if isinstance(effect, Sleep):
            return asyncio.sleep(effect.seconds)
        return self.group.aqueue(effect)

    def check_ttl(self, ttl: float) -> float:
        """The ttl, if these nodes may be asked for it.

        Raises:
            ValueError: above MAX_TTL, or so short that nothing is left of it.
        """
        ttl = check_seconds("ttl", ttl)
        if ttl > self.policy.max_ttl:
            msg = (
                f"ttl={ttl:g} is above MAX_TTL ({self.policy.max_ttl:g} s) of the alias "
                f"{self.alias!r}: lower it, or raise MAX_TTL on all processes first"
            )
            raise ValueError(msg)
        if self.policy.validity(ttl) <= 0:
            msg = f"ttl={ttl:g} is too short: the allowance for clock drift eats it up"
            raise ValueError(msg)
        return ttl

    def check_min_hold(self, min_hold: float) -> float:
        """The seconds for which a name stays taken, if these nodes may be asked for them.

        Raises:
            ValueError: above MAX_TTL.
        """
        if min_hold > self.policy.max_ttl:
            msg = (
                f"min_hold={min_hold:g} is above MAX_TTL ({self.policy.max_ttl:g} s) of the alias "
                f"{self.alias!r}: lower it, or raise MAX_TTL on all processes first"
            )
            raise ValueError(msg)
        return min_hold
