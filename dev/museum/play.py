"""Play cells, several at once, and compare what is seen with what must be seen."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field

from dev.benchmarks.peers import environments
from dev.benchmarks.peers.environments import PeerUnavailable

from . import checker
from .cell import Cell
from .checker import Break, Findings
from .history import Event
from .stage import Stage

AT_ONCE = 6  # cells: mostly they wait
SPARED = 20  # of so many plays one may show something else, where the lock breaks by a fault


@dataclass(frozen=True)
class Played:
    """What one play of a cell showed.

    Attributes:
        error: why it could not be played; "": it was.
        is_absent: whether that is because the library cannot be installed here.
    """

    cell: Cell
    events: Sequence[Event] = ()
    findings: Findings = field(default_factory=Findings)
    error: str = ""
    is_absent: bool = False

    @property
    def seen(self) -> frozenset[Break]:
        """What was broken."""
        return self.findings.breaks(self.cell.fault.patience * self.cell.fault.ttl)

    @property
    def is_expected(self) -> bool:
        """Whether it showed what it must."""
        return not self.error and self.seen == self.cell.breaks

    def __str__(self) -> str:
        return f"could not be played: {self.error}" if self.error else _named(self.seen)


def _named(breaks: Iterable[str]) -> str:
    return ", ".join(sorted(breaks)) or "nothing"


def play(cell: Cell, over: threading.Event | None = None) -> Played:
    """Play a cell once, until ``over`` is set."""
    try:
        with ExitStack() as stack:
            stage = Stage(cell, stack, over or threading.Event())
            cell.fault.script(stage)
            events = stage.finish()
    except PeerUnavailable as error:
        return Played(cell, error=str(error), is_absent=True)
    except Exception as error:  # noqa: BLE001 - it is reported, and the cell fails
        return Played(cell, error=f"{type(error).__name__}: {error}")
    return Played(cell, events, checker.judge(events, cell.lock.limit))


def play_all(cells: Sequence[Cell], runs: int = 1, seed: int = 0) -> Iterator[Played]:
    """Play each cell so many times, in an order that the seed decides.

    What is played or installed when this is interrupted is ended.
    """
    order, over = [cell for cell in cells for _ in range(runs)], threading.Event()
    random.Random(seed).shuffle(order)  # noqa: S311 - an order
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plays = [pool.submit(play, cell, over) for cell in order]
        try:
            for done in as_completed(plays):
                yield done.result()
        except BaseException:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            environments.abandon()
            raise


@dataclass(frozen=True)
class Tally:
    """A cell and its plays.

    Attributes:
        plays: the plays that took place.
        absent: why it was not played; "": it was.
    """

    cell: Cell
    plays: Sequence[Played]
    absent: str = ""

    @property
    def expected(self) -> int:
        """How many plays showed what they must."""
        return sum(each.is_expected for each in self.plays)

    @property
    def needed(self) -> int:
        """How many plays must show it: of a lock that holds all, of one that breaks 19 of 20."""
        count = len(self.plays)
        return count - count // SPARED if self.cell.breaks else count

    @property
    def complaint(self) -> str:
        """What was not as expected; "": nothing."""
        if self.expected >= self.needed:
            return ""
        wrong = Counter(str(each) for each in self.plays if not each.is_expected)
        seen = "; ".join(f"{what} ({times})" for what, times in wrong.most_common())
        expected = f"{_named(self.cell.breaks)} in {self.needed} of {len(self.plays)} plays"
        return f"{self.cell.key}: expected {expected}, saw it in {self.expected}; else {seen}"


def tallies(cells: Sequence[Cell], played: Sequence[Played]) -> list[Tally]:
    """Return a tally for each cell, in this order."""
    found = []
    for cell in cells:
        mine = [each for each in played if each.cell is cell]
        absent = next((each.error for each in mine if each.is_absent), "")
        found.append(Tally(cell, [each for each in mine if not each.is_absent], absent))
    return found
