"""What a recipe is given, and what it must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class Place:
    """Where a lock is used.

    Attributes:
        urls: of the servers, by the way that this client has to them.
        name: of the lock, and so of its key.
        ttl: seconds for which the lock is asked.
        timeout: seconds for which a reply of a server is waited for.
        store: the file with what the lock guards.
        point: a recipe calls it with words between two steps; a run may stop or kill it there.
        lost: a recipe calls it when it learns by itself that the lock is no longer its own.
    """

    urls: Sequence[str]
    name: str
    ttl: float
    timeout: float
    store: str
    point: Callable[[str], None] = lambda _: None
    lost: Callable[[], None] = lambda: None


class Hold(NamedTuple):
    """What a client knows when it has got the lock.

    Attributes:
        until: by ``time.monotonic()``, when it ends by what the client says; None: it says nothing,
            and so who has the lock believes that until it is released.
        fence: the number of the hold, where the recipe has one.
    """

    until: float | None = None
    fence: int | None = None


class Recipe(Protocol):
    """A lock as one client uses it. It may also have ``extend`` and a ``store`` of its own."""

    def acquire(self, wait: float) -> Hold | None:
        """Take the lock, within so many seconds; None: it is another's."""

    def release(self) -> None:
        """Give it back, as the recipe does."""


class Extendable(Protocol):
    """A recipe whose hold can be prolonged."""

    def extend(self) -> Hold | None:
        """Prolong the hold by its ttl; None: it is lost."""


class Store(Protocol):
    """What the lock guards: a number. A recipe with fences may have a store of its own."""

    def read(self) -> int:
        """Return the number."""

    def write(self, value: int) -> bool:
        """Write it; False: the store refuses this client."""
