"""A partner for the algorithm, which answers its questions with scripted votes.

A word is a node's answer: a number is a YES with that number, and the others are below. A lone word
is every node's; a list has one for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from django_redlock.core import acquire, hold
from django_redlock.core.commands import Acquire, Kept
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import (
    UNDO,
    Answer,
    BlockOnNode,
    Command,
    Effect,
    Grant,
    JoinQueue,
    Request,
    Sleep,
    Vote,
    Wakeup,
)
from django_redlock.core.reasons import ReasonCode, because
from tests.support.alone import Alone

NO = "no"  # somebody has it, everywhere the same
KEPT = "kept"  # the slot is reserved for the waiter that is woken next
LOST = "lost"  # sent, and never answered
UNSENT = "unsent"  # refused to connect, or has no vote


@dataclass
class Held:
    """A node's refusal, with what it tells; of several names for the one with this index."""

    left: float | None = None
    holder: str = ""
    owner: str = "0123456789abcdef"
    which: int = 0


@dataclass
class Seen:
    """What a look brings: seconds until the key is gone; 0: it is; None: it never is."""

    left: float | None


@dataclass
class Found:
    """What claiming brings: the word that lay in the queue, or none."""

    wakeup: str = ""


@dataclass
class Guarded:
    """A node that has no vote for so many seconds."""

    seconds: float


@dataclass
class Recorded:
    """A node's refusal, because the work is done, at a time that it may tell."""

    left: float | None = 60.0
    at: int | None = None
    holder: str = ""


WORD = "d" * 32  # a wake-up
SPLIT = [5, Held(owner="a"), Held(owner="b")]  # one node each
GONE = Held(owner="")  # there is no key


def vote(i: int, word: object, command: Command = Command.GRANT) -> Vote:  # noqa: PLR0911 - a case each
    """What a scripted word means: a number is a YES with that number, of waiters for a release.

    To an extension, a text of 1 and 0 says which tenancies are kept, 2 of which the names are free
    there; else it is all or none.
    """
    label = f"node{i}"
    if command is Command.EXTEND and (isinstance(word, int) or word == NO):
        word = "0" if word == NO else "1"
    if isinstance(word, str) and word.strip("012") == "":
        kept = [int(each == "1") for each in word]
        free = [place for place, each in enumerate(word) if each == "2"]
        return Vote(label, Answer.YES, result=Kept(kept, free))
    if isinstance(word, Seen):
        return Vote(label, Answer.YES, left=word.left)
    if isinstance(word, Found):
        return Vote(label, Answer.YES, result=word.wakeup)
    if isinstance(word, int):
        fence, woken = (0, word) if command is Command.RELEASE else (word, 0)
        return Vote(label, Answer.YES, fence, woken=woken)
    if isinstance(word, Held):
        return Vote(label, Answer.NO, 0, word.left, word.holder, word.owner, word.which)
    if isinstance(word, Recorded):
        found = Vote(label, Answer.NO, 0, word.left, word.holder, Held.owner, result=word.at)
        return found._replace(reason=because(ReasonCode.RECORDED))
    if word in (NO, KEPT):
        named = word == NO and command is Command.GRANT  # other refusals do not tell whose it is
        left = 0.05 if word == KEPT else None
        return Vote(label, Answer.NO, left=left, owner=Held.owner if named else "")
    reason, sent = because(ReasonCode.CONNECT_FAILED, text=str(word)), word != UNSENT
    if isinstance(word, Guarded):
        reason, sent = because(ReasonCode.RESTART_GUARD, seconds=word.seconds), False
    return Vote(label, Answer.UNKNOWN, reason=reason, sent=sent)


def nobody(_: int, __: hold.Outcome) -> None:
    """Hears an outcome and does nothing."""


@dataclass
class Table:
    """A clock that stands still unless told, values that count up, and what was asked.

    Attributes:
        hasty: whether votes stop coming in as soon as the asker has heard enough.
        first: whether nobody of this process stands before us in the line.
        wakeup: what has come for us by the time we leave.
        effects: everything that was wanted, in order.
    """

    size: int = 3
    hasty: bool = False
    now: float = 100.0
    first: bool = True
    wakeup: str = ""
    effects: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = itertools.count(1)
        self.policy = Policy(
            size=self.size,
            clock=lambda: self.now,
            wall=lambda: 5,
            nonce=lambda: f"{next(values):032x}",
            uniform=lambda low, high: high,
        )

    def acquire(self, *names: str, ttl: float = 10.0, wait: float = 0.0, **options: Any) -> Any:
        """Steps to take the names."""
        wanted = acquire.Names(self.policy, self.policy.target(names or ("a",)))
        return acquire.acquire(self.policy, wanted, label="me", ttl=ttl, wait=wait, **options)

    def grant(self, **changes: Any) -> Grant:
        """A tenancy that began now, for ten seconds."""
        target = self.policy.target(["a"])
        everyone = self.policy.everyone
        made = Grant(target, "f" * 32, 7, self.now + 9.898, self.now, 10.0, everyone)
        return made._replace(**changes)

    def held(self, *grants: Grant) -> list[hold.Holding]:
        """These tenancies, which no other thread can end."""
        return [Alone(self.policy, grant) for grant in grants]

    def talk(self, steps: Generator[Any, Any, Any], *answers: object, late: float = 0.0) -> Any:
        """Answer every question, and all standing, with the next words.

        A lone word is every node's. Each answer takes ``late`` seconds, and standing in vain as
        long as it was meant to. Undoing that has no words any more is answered.
        """
        script = iter(answers)
        value: Any = None
        try:
            while True:
                effect = steps.send(value)
                self.effects.append(effect)
                if isinstance(effect, Request):
                    self.now += late
                    undoing = effect.command in UNDO
                    value = self.votes(effect, next(script, 0) if undoing else next(script))
                elif isinstance(effect, BlockOnNode):
                    value = next(script)
                    assert isinstance(value, Wakeup)
                    self.now += 0 if value.wakeup or value.broken else effect.seconds
                else:
                    value = self._waiting(effect)
        except StopIteration as stop:
            return stop.value

    def _waiting(self, effect: Effect) -> bool | str | None:
        if isinstance(effect, Sleep):
            self.now += effect.seconds
        if isinstance(effect, JoinQueue):
            self.now += 0 if self.first else min(effect.seconds, 1e9)
            return self.first
        return self.wakeup

    def until(self, steps: Generator[Any, Any, Any], *answers: object) -> Any:
        """Begin, and answer as many effects; return the next one."""
        effect = steps.send(None)
        for each in answers:
            reply = self.votes(effect, each) if isinstance(effect, Request) else each
            effect = steps.send(reply)
        return effect

    def votes(self, ask: Request, words: object) -> list[Vote]:
        """What the nodes say, from the first one on."""
        each = words if isinstance(words, list) else [words] * self.size
        ballot: list[Vote | None] = [None] * self.size
        for i in set(range(self.size)) - (ask.to or self.policy.everyone):
            ballot[i] = Vote(f"node{i}", Answer.UNKNOWN, sent=False)
        for i in sorted(ask.to or self.policy.everyone):
            if not (self.hasty and ask.decided(ballot)):
                ballot[i] = vote(i, each[i], ask.command)
        return [heard or vote(i, LOST) for i, heard in enumerate(ballot)]

    @property
    def asked(self) -> list[Any]:
        """The questions, in order."""
        return [effect for effect in self.effects if isinstance(effect, Request)]

    @property
    def commands(self) -> list[str]:
        """What was asked, in order."""
        return [ask.command.value for ask in self.asked]

    @property
    def waited(self) -> list[float]:
        """The pauses, in order."""
        return [effect.seconds for effect in self.effects if isinstance(effect, Sleep)]

    @property
    def grants(self) -> list[Acquire]:
        """The attempts, in order."""
        return [ask for ask in self.asked if isinstance(ask, Acquire)]

    @property
    def blocks(self) -> list[BlockOnNode]:
        """The places at which the attempt blocked, in order."""
        return [effect for effect in self.effects if isinstance(effect, BlockOnNode)]


def to(ask: Request) -> set[int]:
    """The nodes that are asked; all are none in particular."""
    return set(ask.to or ())
