"""Acts 1 to 3: six ticket offices sell seats of one show, with lock and fence and without."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from operator import itemgetter
from typing import Self, TypeAlias

from . import endings, office
from .endings import tell
from .office import TTL, Sale

OFFICES = 6
FROZEN_SECONDS = TTL + 0.5
LATE_SECONDS = 60.0  # by how much anything may be late before something is wrong

Cue: TypeAlias = tuple[float, Callable[[], object]]  # after how many seconds what happens


@dataclass
class Act:
    """One run of all offices, as far as it has got.

    Attributes:
        sales: what the offices have sold, by their own count.
        refused: the sales whose stale writes the row refused.
        frozen: the offices that froze, and the moments at which they did.
        row: the number of seats sold, by the database.
    """

    title: str
    show: int
    seconds: float
    locked: bool
    fence: bool
    sales: list[Sale] = field(default_factory=list)
    refused: list[Sale] = field(default_factory=list)
    frozen: list[tuple[int, float]] = field(default_factory=list)
    row: int = 0

    def sections(self) -> list[Sale]:
        """Return each time in the critical section, in order of entering."""
        return sorted(self.sales + self.refused, key=lambda sale: sale.entered)

    def overlaps(self) -> int:
        """Count the times that began before an earlier one had ended."""
        count, latest = 0, float("-inf")
        for sale in self.sections():
            count += sale.entered < latest
            latest = max(latest, sale.left)
        return count

    def lost_updates(self) -> int:
        return len(self.sales) - self.row

    def fences_increase(self) -> bool:
        return all(a.fence < b.fence for a, b in pairwise(self.sections()))

    def sales_after(self, moment: float) -> int:
        return sum(sale.entered > moment for sale in self.sales)

    def failures(self) -> Iterator[str]:
        """Yield what did not hold, or was not shown; nothing if all was well."""
        if not self.fence and self.lost_updates() <= 0:
            yield f"{self.title}: no update was lost, so this run proves nothing"
        if self.fence and (self.overlaps() or self.lost_updates() or not self.fences_increase()):
            yield f"{self.overlaps()} sales overlapped, {self.lost_updates()} updates were lost"
        if self.fence and len(self.refused) < max(1, len(self.frozen)):
            yield "no office froze, or its stale write was not refused by the row"


class Offices:
    """The processes of the offices, from `with` to its end."""

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(OFFICES):
            pipe, theirs = context.Pipe()
            process = context.Process(target=office.main, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self._processes.append(process)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes:
            process.kill()  # also ends a stopped one
            process.join()

    def play(self, act: Act, *cues: Cue, freezes: Sequence[float] = ()) -> Act:
        """Let the offices sell; some freeze after so many seconds, an office each.

        A frozen office goes on when it has lost its lock, others have sold since, and all that are
        to freeze have done so. The first one so wakes while the last one is frozen: then no other
        is between read and write.
        """
        from example_project.box_office.models import Show

        tell(act.title)
        for pipe in self._pipes:
            pipe.send({"show": act.show, "locked": act.locked, "fence": act.fence})
        freezing = [(at, partial(self._pipes[n].send, "freeze")) for n, at in enumerate(freezes)]
        due: list[Cue] = sorted([*cues, *freezing], key=itemgetter(0))
        woken, began = 0, time.monotonic()
        while due or woken < len(freezes) or time.monotonic() < began + act.seconds:
            if due and time.monotonic() >= began + due[0][0]:
                due.pop(0)[1]()
            if woken < len(freezes) == len(act.frozen):
                number, since = act.frozen[woken]
                count = act.sales_after(since)
                if count and time.monotonic() > since + FROZEN_SECONDS:
                    woken += 1
                    tell(f"office {number + 1} goes on: {count} seats were sold since")
                    pid = self._processes[number].pid
                    assert pid
                    os.kill(pid, signal.SIGCONT)
            self._listen(act)
            if time.monotonic() > began + act.seconds + LATE_SECONDS:
                raise TimeoutError(f"the offices do not come to an end: {act.title}")
        for pipe in self._pipes:
            pipe.send("close")
        self.await_all("closed", act)
        act.row = Show.objects.get(pk=act.show).sold
        tell(f"seats sold: {len(act.sales)} by the offices' count, {act.row} in the database")
        return act

    def await_all(self, event: str, act: Act | None = None) -> None:
        """Wait until each office has told this."""
        missing, deadline = OFFICES, time.monotonic() + LATE_SECONDS
        while missing:
            missing -= self._listen(act).count(event)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} offices are not {event}")

    def _listen(self, act: Act | None) -> list[str]:
        """Return which events the offices tell of now; note them in the act."""
        endings.wait(0)
        ready, events = wait(self._pipes, 0.1), []
        for number, pipe in enumerate(self._pipes):
            if pipe not in ready:
                continue
            event, sale = pipe.recv()
            events.append(event)
            if act and event == "sold":
                act.sales.append(sale)
            elif act and event == "refused":
                act.refused.append(sale)
                tell(f"office {number + 1} writes what it read before: refused by the row")
            elif act and event == "frozen":
                act.frozen.append((number, time.monotonic()))
                tell(f"office {number + 1} freezes in the middle of a sale (SIGSTOP)")
        return events
