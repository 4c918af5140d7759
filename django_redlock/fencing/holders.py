"""Who claims rows: the holder of a lease, or one elsewhere whose fence came with a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from django_redlock.leases.lease import Lease

HIGHEST: Final = 2**63 - 1  # of a FenceField


class Holder(Protocol):
    """A lease, or what is used like one."""

    @property
    def name(self) -> str | tuple[str, ...]:
        """The name of the lock, or the names."""

    @property
    def fence(self) -> int:
        """The fence of this holder."""

    def ensure(self) -> None:
        """Raise LeaseLost if it is known that the lease is over."""


@dataclass(frozen=True, slots=True)
class RemoteHolder:
    """A holder in another program, which has sent its fence: in a header, or in a message.

    It is believed: let only programs send one that may write the rows. Its lease is not asked; a
    row refuses it if a later holder has claimed it.

    Attributes:
        name: the lock's name, for errors.
        fence: what the holder has as ``lease.fence``; a text is read as a number, as of a header.

    Raises:
        ValueError: ``fence`` is no whole number from 0 to 2**63 - 1.
    """

    name: str | tuple[str, ...]
    fence: int

    def __post_init__(self) -> None:
        given: Any = self.fence
        text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
        if not (text.isascii() and text.isdigit() and int(text[:20]) <= HIGHEST):
            raise ValueError(f"fence must be a whole number from 0 to 2**63 - 1, not {given!r}")
        object.__setattr__(self, "fence", int(text))

    def ensure(self) -> None:
        """Do nothing: nobody here knows whether its lease is over."""


def check_holder(lease: object) -> None:
    """Refuse what has no fence.

    Raises:
        TypeError: it is neither a lease nor a ``RemoteHolder``.
    """
    if not isinstance(lease, Lease | RemoteHolder):
        raise TypeError(f"fenced() takes a lease, as of `with redlock(…) as lease`, not {lease!r}")
