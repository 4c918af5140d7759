"""What a name stands for: a row that holders read, and change a while later.

A holder that looked at its lease can be paused before it writes. ``naive`` writes then
overwrite what its successor did. With ``refusing``, the row refuses a write with a lower fence
than the last one; with ``claimed``, as the README does it, a holder puts its fence into the row
when it enters, and writes only while that stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checker import Broken, Violation


@dataclass(slots=True)
class Row:
    """One row, which counts its changes.

    Attributes:
        how: ``naive``, ``refusing`` or ``claimed``.
    """

    how: str
    version: int = 0
    fence: int = 0

    def enter(self, fence: int) -> int | None:
        """Claim, if that is how it is done, and read; None: refused."""
        if self.how == "claimed":
            if fence < self.fence:
                return None
            self.fence = fence
        return self.version

    def write(self, client: str, fence: int, read: int) -> bool:
        """Write what follows from what was read; whether the row took it.

        Raises:
            Violation: somebody else's change was overwritten.
        """
        if self.how == "claimed" and fence != self.fence:
            return False
        if self.how == "refusing":
            if fence < self.fence:
                return False
            self.fence = fence
        if self.version != read:
            lost = self.version - read
            raise Violation(Broken.UPDATE, f"{client} overwrote {lost} changes it had not read")
        self.version += 1
        return True
