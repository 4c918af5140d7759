"""What must be true in every world, whatever happens in it."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass

from django_redlock.core.protocol import Grant
from django_redlock.nodes.memory import digest


class Broken(enum.Enum):
    """Which promise a world broke, as the docs say it."""

    ALONE = "two holders"
    TOKENS = "tokens not increasing"
    ALIVE = "a lease handed over dead"
    EXTENDED = "a lease revived or shortened"
    LEFT = "a key left behind"
    OUTAGE = "an outage told that was none"
    CLOSED = "a closed attempt that goes on"
    UPDATE = "an update lost"
    LATE = "a loss told late"
    UNTRUE = "a loss told that was none"
    WAITING = "nobody takes a free name"
    ORDER = "not in order of arrival"
    BLOCKED = "somebody left in a queue"
    RESTED = "a name taken before its `min_hold` is over"
    OVERSTAYED = "a lease kept beyond its `max_hold`"
    KEPT = "a lease renewed after it was taken away"
    STRANGER = "a lock taken from another holder than the one seen"


class Violation(AssertionError):  # noqa: N818 - what a world shows, not a fault of it
    """A promise of the lock was broken.

    Args:
        promise: which one.
        how: what happened.
    """

    def __init__(self, promise: Broken, how: str) -> None:
        super().__init__(how)
        self.promise = promise


@dataclass(slots=True, eq=False)
class Belief:
    """One client's opinion that it holds names, on the exact clock of the world."""

    client: str
    grant: Grant
    until: float


class Checker:
    """Told of everything that a client may believe; raises ``Violation``.

    Args:
        exclusive: whether two holders are a violation.
        reachable: whether nothing keeps clients from asking a majority.
    """

    def __init__(self, *, exclusive: bool, reachable: bool) -> None:
        self._exclusive = exclusive
        self.reachable = reachable
        self._beliefs: defaultdict[str, list[Belief]] = defaultdict(list)
        self._tokens: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._highest: defaultdict[str, int] = defaultdict(int)
        self._floors: dict[str, dict[str, int]] = {}
        self._rests: dict[str, float] = {}
        self._asked: dict[str, float] = {}  # by nonce, when its last extension was begun
        # By digests of nonces: from whom names are taken, which of them, and since when surely.
        self._takes: set[str] = set()
        self._deletes: set[tuple[str, str]] = set()
        self._taken: dict[str, float] = {}

    def look(self, now: float) -> None:
        """After every event: at most one holder believes.

        Raises:
            Violation: two do.
        """
        if not self._exclusive:
            return
        for name, beliefs in self._beliefs.items():
            if len(beliefs) > 1:
                beliefs[:] = [each for each in beliefs if each.until > now]
                sure = [each for each in beliefs if not self._is_deleted(name, each)]
                if len(sure) > 1:
                    first, second = sure[:2]
                    left = min(first.until, second.until) - now
                    how = f"{first.client} and {second.client} both hold {name}, for {left:.6f} s"
                    raise Violation(Broken.ALONE, how)

    def attempt(self, nonce: str, names: tuple[str, ...]) -> None:
        """An attempt begins: its token must be above all that were handed out by now."""
        self._floors[nonce] = {name: self._highest[name] for name in names}

    def granted(self, client: str, grant: Grant, now: float, until: float) -> Belief:
        """A client begins to believe."""
        if until <= now:
            raise Violation(Broken.ALIVE, f"{client} was handed a lease that is over")
        for name, floor in self._floors[grant.nonce].items():
            if grant.fence <= floor:
                how = f"{client} began after token {floor} of {name} and got {grant.fence}"
                raise Violation(Broken.TOKENS, how)
            if grant.fence in self._tokens[name]:
                other = self._tokens[name][grant.fence]
                how = f"{client} and {other} both got token {grant.fence} of {name}"
                raise Violation(Broken.TOKENS, how)
            self._tokens[name][grant.fence] = client
            self._highest[name] = max(self._highest[name], grant.fence)
            if now < self._rests.get(name, now):
                how = f"{client} got {name}, which rests until {self._rests[name]:.6f}"
                raise Violation(Broken.RESTED, how)
        return self.believes(client, grant, until)

    def rests(self, names: tuple[str, ...], until: float) -> None:
        """A majority was told that nobody may have these names before then."""
        for name in names:
            self._rests[name] = max(until, self._rests.get(name, until))

    def believes(self, client: str, grant: Grant, until: float) -> Belief:
        """The same for one who knows no tokens."""
        belief = Belief(client, grant, until)
        for name in grant.target.entries:
            self._beliefs[name].append(belief)
        return belief

    def extended(self, belief: Belief, now: float, until: float) -> None:
        """A client believes for longer."""
        if belief.until <= now:
            raise Violation(Broken.EXTENDED, f"{belief.client}'s lease had ended and came back")
        nonce = belief.grant.nonce
        if self._asked.get(nonce, now) > self._taken.get(digest(nonce), now):
            how = f"{belief.client}'s lease was taken away before it was asked to last longer"
            raise Violation(Broken.KEPT, how)
        if until < belief.until:
            how = f"{belief.client}'s lease was shortened by extending it"
            raise Violation(Broken.EXTENDED, how)
        belief.until = until

    def ended(self, belief: Belief) -> None:
        """A client stops believing."""
        belief.until = float("-inf")

    # -- taking a lock away -----------------------------------------------------------------------

    def takes(self, name: str, owner: str, *, deletes: bool) -> None:
        """Somebody begins to take a name from the holder with this digest.

        If its key is deleted, the holder may believe in the name beside the next one.
        """
        self._takes.add(owner)
        if deletes:
            self._deletes.add((name, owner))

    def taken(self, owner: str, now: float) -> None:
        """Somebody is told that a lock is taken away from this holder: nothing prolongs it now."""
        self._taken.setdefault(owner, now)

    def asks(self, nonce: str, now: float) -> None:
        """A holder begins to prolong its lease."""
        self._asked[nonce] = now

    def told_revoked(self, client: str, nonce: str) -> None:
        """A holder is told that its lock was taken away."""
        if not self.is_taken(nonce):
            raise Violation(Broken.STRANGER, f"{client} lost a lock that nobody took from it")

    def is_taken(self, nonce: str) -> bool:
        """Whether somebody has tried to take a lock from this holder."""
        return digest(nonce) in self._takes

    def _is_deleted(self, name: str, belief: Belief) -> bool:
        return bool(self._deletes) and (name, digest(belief.grant.nonce)) in self._deletes

    def unavailable(self, client: str) -> None:
        """A client was told that no majority could be asked."""
        if self.reachable:
            raise Violation(Broken.OUTAGE, f"{client} was told of an outage, and there was none")
