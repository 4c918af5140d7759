"""The mark of a message, from before it is sent to the run that removes it.

A run removes its own mark and no other: that of a message that was sent meanwhile has another nonce
and another id. It does so when it has the lock, and from then on the lock is the mark.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer
from django_redlock.locks.lock import Lock

logger = logging.getLogger("django_redlock")
ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}").fullmatch


def short_id(task_id: str) -> str:
    """Return the task id, or a digest of it, as nodes keep it; see ``core.completion.set_mark``."""
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
        votes = backend.run(completion.remove(backend.policy, self.key, self.nonce, task_id=whose))
        heard = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
        if heard < backend.policy.majority:
            logger.warning(
                "the mark %s may stay for a while: %d of %d nodes have answered",
                self.key,
                heard,
                len(votes),
            )
        return any(vote.answer is Answer.YES for vote in votes)


def mark_of(policy: Policy, task: str, lock: Lock) -> Mark:
    """Return the mark of the messages of a task whose run takes this lock, whichever set it."""
    return Mark(lock.alias, completion.mark_key(policy, task, lock.names), "")
