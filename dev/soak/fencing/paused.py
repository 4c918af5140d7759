"""A holder that is stopped between its read and its write, until its successor has read.

    python -m dev.soak.fencing.paused

is the holder: for each line it reads it takes the lock of a row, reads the row, says so, waits for
a further line and writes the row one higher. ``perform`` is the test: two of them, many rounds.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.fencing.outside import WITHIN, Process, heard, say, set_up

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

TTL = 0.08  # seconds: a round takes a little longer
LOOK = 0.02  # seconds for which a test sees that a claim goes on waiting
FENCED, PLAIN, COMPARED = "fenced", "plain", "compared"
WAITS: Final = "waits"


class Round(NamedTuple):
    """What came of one round.

    Attributes:
        writes: how many of the two writes were told to be done.
        value: of the row in the end, which was 0.
        waited: whether the successor read only after the paused one had written.
    """

    writes: int
    value: int
    waited: bool

    @property
    def lost(self) -> int:
        """How many writes that were told to be done had no effect."""
        return self.writes - self.value


@dataclass
class Play:
    """Rounds on a database.

    Attributes:
        way: how the holders read and write.
        atomic: whether a holder does so in a transaction.
        value: reads a row; ``row`` makes one and returns its key.
    """

    holders: list[Process]
    row: Callable[[], int]
    value: Callable[[int], int]
    way: str = FENCED
    atomic: bool = False
    read_at: float = 0.0

    def rounds(self, count: int) -> list[Round]:
        """Play so many; one whose first holder lost its lease too early is played again.

        On a slow machine that may come too often, and there are fewer.
        """
        done: list[Round] = []
        for _ in range(4 * count):
            if len(done) == count:
                break
            done += self.round(late=bool(len(done) % 2))
        return done

    def round(self, *, late: bool) -> Iterator[Round]:
        """Stop a holder after its read; it writes before its successor does, or after it."""
        paused, successor = self.holders
        key = self.row()
        if not self.take(paused, key) or self.read(paused) != "read":
            return
        paused.stop()
        try:
            taken = self.take(successor, key)
            waits = self.atomic and self.way == FENCED
            reading = self.read(successor, patiently=not waits) if taken else ""
            early = [self.write(successor)] if late and reading == "read" else []
        finally:
            paused.go_on()
        last = self.write(paused)
        waited = reading == WAITS
        if waited:
            reading = self.read(successor)
        if reading == "read":
            ends = [last, *(early or [self.write(successor)])]
            writes = sum(each["what"] == "wrote" for each in ends)
            yield Round(writes, self.value(key), waited and last["at"] < self.read_at)

    def take(self, holder: Process, key: int) -> bool:
        """Let it have the lock; return whether it has."""
        holder.tell(key=key, way=self.way, atomic=self.atomic)
        return bool(holder.hear("taken", "lost")["what"] == "taken")

    def read(self, holder: Process, *, patiently: bool = True) -> str:
        """What it says of its read; WAITS: nothing, for a while."""
        try:
            said = holder.hear("read", "lost", within=WITHIN if patiently else LOOK)
        except queue.Empty:
            return WAITS
        self.read_at = said["at"]
        return str(said["what"])

    @staticmethod
    def write(holder: Process) -> dict[str, Any]:
        """Let it write; return what it says of that."""
        holder.tell()
        return holder.hear("wrote", "stale", "refused")


def hold(key: int, way: str, *, atomic: bool) -> None:
    """Take the lock of a row, read it, and write it when that is asked for."""
    from django.db import OperationalError, transaction

    from django_redlock import LeaseLost, redlock
    from django_redlock.fencing import StaleFence

    try:
        with redlock(f"counter:{key}", wait=30) as lease:
            say("taken")
            with transaction.atomic() if atomic else nullcontext():
                value, write = read(lease, key, way)
                say("read")
                next(heard())
                written = write(value + 1)
                at = time.monotonic()  # before the COMMIT, for which others wait
        say("wrote" if written else "stale", at=at)
    except StaleFence:
        say("stale")
    except LeaseLost:  # before the read: this machine is busy
        say("lost")
    except OperationalError:  # a transaction that began too early
        say("refused")


def read(lease: Lease, key: int, way: str) -> tuple[int, Callable[[int], int]]:
    """What the row has, and how to write it; that returns 0 if it has not."""
    from django.db import connection

    from django_redlock.fencing import fenced
    from tests.fencing.tables import Counter

    rows = Counter.objects.filter(pk=key)
    if way == FENCED:
        claimed = fenced(lease, rows)
        return claimed.get().value, lambda value: claimed.update(value=value)
    lease.ensure()
    if way == PLAIN:
        return rows.get().value, lambda value: rows.update(value=value)

    def compare(value: int) -> int:
        """Write where no higher fence has written: without a claim before the read."""
        table = Counter._meta.db_table
        sql = f"UPDATE {table} SET value = %s, fence = %s WHERE id = %s AND fence <= %s"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, (value, lease.fence, key, lease.fence))
            return int(cursor.rowcount)

    return rows.get().value, compare


def main() -> int:
    """Hold what the test asks for, until it ends."""
    set_up()
    say("ready")
    for told in heard():
        hold(told["key"], told["way"], atomic=told["atomic"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
