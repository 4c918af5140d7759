"""Play cells, several at once, and compare what is seen with what must be seen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from benchmarks.peers import environments
from benchmarks.peers.environments import PeerUnavailable

from . import checker
from .cells import Cell
from .checker import Break, Findings
from .history import Event
from .room import Room

AT_ONCE = 6  # cells: mostly they wait
NOTHING = Findings()


@dataclass(frozen=True)
class Played:
    """What one play of a cell showed.

    Attributes:
        error: why it could not be played; "": it was.
        absent: whether that is because other people's code cannot be installed here.
    """

    cell: Cell
    events: Sequence[Event] = ()
    findings: Findings = NOTHING
    error: str = ""
    absent: bool = False

    @property
    def seen(self) -> frozenset[Break]:
        """What was broken."""
        run = self.cell.run
        return self.findings.breaks(run.patience * run.ttl)

    @property
    def is_expected(self) -> bool:
        """Whether it showed what it must."""
        return not self.error and self.seen == self.cell.breaks


class Plays:
    """Plays of cells, several at once."""

    def __init__(self) -> None:
        self._rooms: set[Room] = set()
        self._over = False

    def play(self, cell: Cell) -> Played:
        """Play a cell once."""
        run = cell.run
        room = Room(cell.exhibit, run.ttl, replica=run.replica, clocks=run.clocks)
        self._rooms.add(room)
        if self._over:
            room.abandon()
        try:
            with room:
                run.play(room)
                events = room.events()
        except PeerUnavailable as error:
            return Played(cell, error=str(error), absent=True)
        except Exception as error:  # noqa: BLE001 - it is told, and the cell fails
            return Played(cell, error=f"{type(error).__name__}: {error}")
        finally:
            self._rooms.discard(room)
        return Played(cell, events, checker.judge(events))

    def all(self, cells: Sequence[Cell]) -> Iterator[Played]:
        """Play these in this order; what is played when this is interrupted is abandoned."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            plays: list[Future[Played]] = [pool.submit(self.play, cell) for cell in cells]
            try:
                for done in as_completed(plays):
                    yield done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.abandon()
                raise

    def abandon(self) -> None:
        """End all clients and installations, and so the plays."""
        self._over = True
        environments.abandon()
        for room in list(self._rooms):
            room.abandon()


def play(cell: Cell) -> Played:
    """Play a cell once."""
    return Plays().play(cell)


def play_all(cells: Sequence[Cell], runs: int = 1, seed: int = 0) -> Iterator[Played]:
    """Play each cell so many times, in an order that the seed decides."""
    plays = [cell for cell in cells for _ in range(runs)]
    random.Random(seed).shuffle(plays)  # noqa: S311 - an order
    return Plays().all(plays)
