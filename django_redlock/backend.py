"""All that a lock needs to know of one alias: its nodes, its rules, its defaults.

Knows no Django: ``conf`` makes one from settings, and anybody else may make one by hand.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from .drivers import run
from .seconds import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .node import NodeState
    from .protocol import Ask, Policy, Steps, Vote

T = TypeVar("T")
LABEL_BYTES = 200


class Group(Protocol):
    """The nodes of one alias, whatever they are."""

    def ask(self, ask: Ask) -> Sequence[Vote]:
        """Put a question to the nodes and return one vote for each, in order."""

    def states(self) -> Sequence[NodeState]:
        """What is known of each node, without asking."""

    def close(self) -> None:
        """Close idle connections."""


def process_label() -> str:
    """Who we are, for people: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}".encode()[:LABEL_BYTES].decode(errors="ignore")


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
    sleep: Callable[[float], object] = field(default=time.sleep)

    def run(self, steps: Steps[T]) -> T:
        """Carry out steps of the algorithm on these nodes."""
        return run(steps, self.group.ask, self.sleep)

    def check_ttl(self, ttl: float) -> float:
        """The ttl, if these nodes may be asked for it.

        Raises:
            ValueError: above MAX_TTL, or so short that nothing is left of it.
        """
        if ttl > self.policy.max_ttl:
            msg = (
                f"ttl={ttl:g} is above MAX_TTL ({self.policy.max_ttl:g} s) of the alias "
                f"{self.alias!r}: lower it, or raise MAX_TTL on all processes first"
            )
            raise ValueError(msg)
        if self.policy.validity(check_seconds("ttl", ttl)) <= 0:
            msg = f"ttl={ttl:g} is too short: the allowance for clock drift eats it up"
            raise ValueError(msg)
        return ttl

    def check_min_hold(self, min_hold: float) -> float:
        """The seconds for which a name stays taken, if these nodes may be asked for them.

        Raises:
            ValueError: above MAX_TTL.
        """
        if min_hold > self.policy.max_ttl:
            msg = f"min_hold={min_hold:g} is above MAX_TTL ({self.policy.max_ttl:g} s)"
            raise ValueError(msg)
        return min_hold
