"""The mark of a message, from before it is sent to the run that removes it.

A run removes its own mark and no other: that of a message that was sent meanwhile has another nonce
and another id. It does so when it has the lock, and from then on the lock is the mark.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.core import completion as core
from django_redlock.core.protocol import Answer

logger = logging.getLogger("django_redlock")
ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}").fullmatch


def short_id(task_id: str) -> str:
    """Return the task id, or a digest of it, as nodes keep it; see ``core.completion.publish``."""
    return task_id if ID(task_id) else _digest(task_id)


def short_name(name: str) -> str:
    """Return the name of a task, or a digest of it, for marks and owner labels."""
    return name if NAME(name) else _digest(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Mark(NamedTuple):
    """A mark on the nodes of an alias; ``nonce`` is "" where only its message's id is known."""

    alias: str
    key: str
    nonce: str

    def remove(self, *, task_id: str = "") -> bool:
        """Remove it, if it is there; a node that does not reply is asked again in the background.

        Args:
            task_id: removes any mark with this task id, whatever its nonce.

        Returns:
            Whether a node had it.

        A node that cannot be asked for longer than MAX_TTL keeps the mark until it expires.
        """
        try:
            backend = conf.backend(self.alias)
        except ImproperlyConfigured:
            logger.exception("the mark %s stays until it expires", self.key)
            return False
        if not self.key.startswith(f"{backend.policy.prefix}mark:"):
            return False  # no key of this kind is ours to delete
        whose = short_id(task_id) if task_id else ""
        votes = backend.run(core.remove(backend.policy, self.key, self.nonce, task_id=whose))
        heard = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
        if heard < backend.policy.majority:
            logger.warning(
                "the mark %s may stay for a while: %d of %d nodes have answered",
                self.key,
                heard,
                len(votes),
            )
        return any(vote.answer is Answer.YES for vote in votes)


class Marking:
    """The mark of a message that is to be sent: what it may have left is known at any moment.

    Args:
        task, task_id: of the message.
        life: seconds until the mark expires.
        of_run: whether a run of the task that holds one of the names counts as well.
    """

    def __init__(
        self,
        alias: str,
        names: Sequence[str],
        task: str,
        task_id: str,
        life: float,
        *,
        of_run: bool,
    ) -> None:
        self._backend = conf.backend(alias)
        policy = self._backend.policy
        self._alias, self._life = alias, life
        self._task, self._task_id = task, task_id
        self._key = core.mark_key(policy, task, names)
        self._locks = policy.target(names).keys if of_run else ()
        self._attempts: list[str] = []

    def mark(self) -> core.Outcome:
        """Set the mark on the nodes."""
        outcome = self._backend.run(
            core.publish(
                self._backend.policy,
                self._key,
                self._locks,
                task=short_name(self._task),
                task_id=short_id(self._task_id),
                ttl=self._life,
                begun=self._attempts.append,
            )
        )
        if not (outcome.certain or outcome.duplicate_of):
            told = (self._task, self._task_id)
            logger.warning("%s[%s] is sent unmarked: no majority of the nodes has marked it", *told)
        return outcome

    def made(self, nonce: str) -> Mark:
        """Return the mark of an attempt with this nonce."""
        return Mark(self._alias, self._key, nonce)

    def remove_of(self, task_id: str) -> bool:
        """Remove the mark of another message of this key; tell whether a node had it."""
        return self.made("").remove(task_id=task_id)

    def take_back(self) -> None:
        """Remove what was set, of a message that was not sent, also where that was interrupted."""
        if self._attempts:
            self.made(self._attempts[-1]).remove()


class Carried:
    """The mark that the message of a run has brought, if any.

    Args:
        copy_of: the task id of a message that may have had an earlier run. That run may have marked
            a message anew, to put it off, and died before it sent it. The broker delivers the old
            message again, with the old nonce; and nobody else knows of the new mark.
    """

    def __init__(self, mark: Mark | None, *, copy_of: str = "") -> None:
        self._mark = mark
        self._copy_of = copy_of

    def drop(self, *, only_own: bool = False) -> None:
        """Remove the mark, of a message whose body begins, or that ends without the lock.

        Args:
            only_own: whether the mark of another nonce stays, also where this message is a copy.
        """
        if self._mark is not None:
            self._mark.remove(task_id="" if only_own else self._copy_of)
            self._mark = None  # afterwards: at the end it is removed again if this was interrupted
