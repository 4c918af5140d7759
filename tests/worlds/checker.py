"""What must be true in every world, whatever happens in it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django_redlock.protocol import Grant


class Violation(AssertionError):  # noqa: N818 - what a world shows, not a fault of it
    """A promise of the lock was broken."""


@dataclass(slots=True)
class Belief:
    """One client's opinion that it holds names, on the exact clock of the world."""

    client: str
    grant: Grant
    until: float


class Checker:
    """Told of everything that a client may believe; raises ``Violation``.

    Beliefs begin and grow only when a grant or an extension returns, and otherwise only end,
    so looking at these moments is looking after every event.

    Args:
        exclusive: whether clocks are good enough for mutual exclusion.
        reachable: whether nothing keeps clients from asking all nodes.
    """

    def __init__(self, *, exclusive: bool, reachable: bool) -> None:
        self._exclusive = exclusive
        self._reachable = reachable
        self._beliefs: defaultdict[str, list[Belief]] = defaultdict(list)
        self._tokens: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._highest: defaultdict[str, int] = defaultdict(int)
        self._floors: dict[str, dict[str, int]] = {}

    def attempt(self, nonce: str, names: tuple[str, ...]) -> None:
        """An attempt begins: its token must be above all that were handed out by now."""
        self._floors[nonce] = {name: self._highest[name] for name in names}

    def granted(self, client: str, grant: Grant, now: float, until: float) -> Belief:
        """A client begins to believe."""
        if until <= now:
            raise Violation(f"{client} was handed a lease that is over")
        for name, floor in self._floors[grant.nonce].items():
            if grant.fence <= floor:
                raise Violation(
                    f"{client} began after token {floor} of {name} and got {grant.fence}"
                )
            if grant.fence in self._tokens[name]:
                other = self._tokens[name][grant.fence]
                raise Violation(f"{client} and {other} both got token {grant.fence} of {name}")
            self._tokens[name][grant.fence] = client
            self._highest[name] = max(self._highest[name], grant.fence)
        belief = Belief(client, grant, until)
        for name in grant.target.names:
            self._beliefs[name].append(belief)
        self._alone(belief, now)
        return belief

    def extended(self, belief: Belief, now: float, until: float) -> None:
        """A client believes for longer."""
        if belief.until <= now:
            raise Violation(f"{belief.client}'s lease had ended and came back")
        if until < belief.until:
            raise Violation(f"{belief.client}'s lease was shortened by extending it")
        belief.until = until
        self._alone(belief, now)

    def ended(self, belief: Belief) -> None:
        """A client stops believing."""
        belief.until = float("-inf")

    def unavailable(self, client: str) -> None:
        """A client was told that no majority could be asked."""
        if self._reachable:
            raise Violation(f"{client} was told of an outage, and there was none")

    def _alone(self, belief: Belief, now: float) -> None:
        if not self._exclusive:
            return
        for name in belief.grant.target.names:
            self._beliefs[name] = [each for each in self._beliefs[name] if each.until > now]
            for other in self._beliefs[name]:
                if other is not belief:
                    raise Violation(
                        f"{belief.client} and {other.client} both hold {name}, the latter for "
                        f"{other.until - now:.6f} s more"
                    )
