"""What can go wrong with a lock.

    RedlockError          never raised itself; catch it to catch all of them
    ├── LockTaken         the name is held: try later, or do not
    ├── NodesUnavailable  no majority of the nodes could be asked: it is unknown
    └── LeaseLost         you held the name, and must stop believing so

*Taken* and *unavailable* are never confused: the first is a result, the second the lack
of one. Every error carries the lock's name and the votes of the nodes, as evidence, and
survives pickling, because task queues send errors between processes (a queue that sends JSON
makes them anew from their text alone). No error carries a password or a nonce.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .reasons import (
    LOOK_FURTHER,
    Reason,
    ReasonCode,
    because,
    by_node,
    code_of,
    describe,
    is_of_set_up,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .protocol import Vote


class RedlockError(Exception):
    """The base of all errors of this package.

    Attributes:
        reason: why, in a sentence.
        code: the same for programs; "" if the error was made of a sentence.
        data: what the sentence says besides, by name.
        name: the lock's name, or a tuple of names.
        votes: what each node said, in the order of the nodes; may be empty.
    """

    def __init__(
        self,
        reason: Reason | str,
        *,
        name: str | tuple[str, ...] = "",
        votes: Sequence[Vote] = (),
    ) -> None:
        if type(self) is RedlockError:
            msg = "RedlockError is only a base class: raise one of its subclasses"
            raise TypeError(msg)
        self.reason = describe(reason)
        super().__init__(self.reason)
        self.code = code_of(reason)
        self.data = reason.data if isinstance(reason, Reason) else {}
        self.name = name
        self.votes = tuple(votes)

    def __str__(self) -> str:
        names = (self.name,) if isinstance(self.name, str) else self.name
        return f"{', '.join(map(repr, names))}: {self.reason}" if self.name else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


class LockTaken(RedlockError):  # noqa: N818 - the contract's name: a result, not a fault
    """The name is held, or several attempts split the nodes between them.

    Attributes:
        retry_after: seconds until enough nodes have forgotten the holder if it neither renews nor
            releases; None when no node told.
        holder: the owner label that most nodes have (host, process …), or None when unknown.
    """

    def __init__(
        self,
        reason: Reason | str,
        *,
        name: str | tuple[str, ...] = "",
        votes: Sequence[Vote] = (),
        retry_after: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(reason, name=name, votes=votes)
        self.retry_after = retry_after
        self.holder = holder

    def explain(self, **more: str) -> None:
        """Add what the one who asked has found out; it belongs to the reason's data from now on."""
        self.data = {**self.data, **more}
        self.reason = describe(because(ReasonCode(self.code), **self.data))
        self.args = (self.reason,)


class NodesUnavailable(RedlockError):  # noqa: N818 - the contract's name
    """No majority of the nodes could be asked, so it is unknown whether the name is free.

    ``str()`` and ``votes`` give each node's reason: down, silent, under restart guard, …
    """

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *why_not(self.votes)])


class DuplicateTask(RedlockError):  # noqa: N818 - a result, not a fault
    """A message was not sent, because one for the same task and key waits or runs.

    Attributes:
        task_id: the id of that one.
    """

    def __init__(
        self,
        reason: Reason | str,
        *,
        name: str | tuple[str, ...] = "",
        votes: Sequence[Vote] = (),
        task_id: str = "",
    ) -> None:
        super().__init__(reason, name=name, votes=votes)
        self.task_id = task_id


class LeaseLost(RedlockError):  # noqa: N818 - the contract's name
    """The lease is over: its time ran out, or a majority of nodes no longer has it."""


for _error in (RedlockError, LockTaken, NodesUnavailable, DuplicateTask, LeaseLost):
    _error.__module__ = "django_redlock.errors"  # task queues store it with an error


def why_not(votes: Sequence[Vote]) -> list[str]:
    """Return why nodes did not agree, or were not heard, as sentences; equal reasons together.

    Where a node is not set up as the settings say, the last one says who tells more.
    """
    said = by_node([(vote.node, vote.reason) for vote in votes if vote.reason], len(votes))
    if any(is_of_set_up(vote.reason) for vote in votes):
        said.append(LOOK_FURTHER)
    return said


def _rebuild(kind: type[RedlockError], state: dict[str, Any]) -> RedlockError:
    error = kind.__new__(kind, state["reason"])
    error.__dict__.update(state)
    return error
