"""What can go wrong with a lock.

    RedlockError          never raised itself; catch it to catch all of them
    ├── LockTaken         somebody holds the name: try later, or do not
    ├── NodesUnavailable  no majority of the nodes could be asked: nobody knows
    └── LeaseLost         you held the name, and must stop believing so

*Taken* and *unavailable* are never confused: the first is an answer, the second the lack
of one. Every error carries the lock's name and the votes of the nodes, as evidence, and
survives pickling, because task queues send errors between processes (a queue that sends JSON
makes them anew from their text alone). No error carries a password or a nonce.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .protocol import Vote


class RedlockError(Exception):
    """The base of all errors of this package.

    Attributes:
        name: the lock's name, or a tuple of names.
        votes: what each node said, in the order of the nodes; may be empty.
    """

    def __init__(
        self, reason: str, *, name: str | tuple[str, ...] = "", votes: Sequence[Vote] = ()
    ) -> None:
        if type(self) is RedlockError:
            msg = "RedlockError is only a base class: raise one of its subclasses"
            raise TypeError(msg)
        super().__init__(reason)
        self.reason = reason
        self.name = name
        self.votes = tuple(votes)

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}" if self.name else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


class LockTaken(RedlockError):  # noqa: N818 - the contract's name: an answer, not a fault
    """The name is held by somebody, or several callers split the nodes between them.

    Attributes:
        retry_after: seconds until enough nodes let go by themselves if the holder neither
            renews nor releases; None when no node told.
        holder: the owner label most nodes named (host, process …), or None when unknown.
    """

    def __init__(
        self,
        reason: str,
        *,
        name: str | tuple[str, ...] = "",
        votes: Sequence[Vote] = (),
        retry_after: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(reason, name=name, votes=votes)
        self.retry_after = retry_after
        self.holder = holder


class NodesUnavailable(RedlockError):  # noqa: N818 - the contract's name
    """No majority of the nodes could be asked, so nobody can say whether the name is free.

    ``str()`` and ``votes`` say for each node why: down, silent, under restart guard, …
    """

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *why_not(self.votes)])


class LeaseLost(RedlockError):  # noqa: N818 - the contract's name
    """The lease is over: its time ran out, or a majority of nodes no longer has it."""


for _error in (RedlockError, LockTaken, NodesUnavailable, LeaseLost):
    _error.__module__ = "django_redlock.errors"  # task queues store it with an error


def why_not(votes: Sequence[Vote]) -> list[str]:
    """For each node that says why it did not agree, or could not be heard: that."""
    return [f"{vote.node}: {vote.why}" for vote in votes if vote.why]


def _rebuild(kind: type[RedlockError], state: dict[str, Any]) -> RedlockError:
    error = kind.__new__(kind, state["reason"])
    error.__dict__.update(state)
    return error
