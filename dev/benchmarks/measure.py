"""Everybody in turns, because a machine's speed drifts: neighbours in time are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
Values = list[float | None]


class Spread(NamedTuple):
    """A median over the turns, and the quartiles around it."""

    median: float
    low: float
    high: float


Cell = Spread | float | int | str | None


class Block(NamedTuple):
    """What one turn of a client took; see ``programs.conversation``."""

    acquire: float | None
    pair: float | None
    seconds: float
    processor: float
    pairs: int
    failed: int
    error: str
    samples: Sequence[float] = ()  # microseconds of each pair
    nodes: float | None = None  # seconds of the nodes' processors meanwhile, where that is read


Reading = Callable[[Block], float | None]


class Figure(NamedTuple):
    """What was reached, and what was to be: at most, or at least, so much."""

    reached: Spread | None
    most: float | None = None
    least: float | None = None

    @property
    def goal(self) -> str:
        """The bound for people; "" where there is none."""
        return f"≤ {self.most:g}" if self.most is not None else f"≥ {self.least:g}"

    @property
    def verdict(self) -> str:
        """Whether the median is within the bound."""
        if self.reached is None:
            return "not measured"
        middle = self.reached.median
        met = middle <= self.most if self.most is not None else middle >= (self.least or 0.0)
        return "met" if met else "MISSED"


@dataclass
class Result:
    """The outcome of one part.

    Attributes:
        title: what was measured.
        note: how to read the rows.
        rows: lists of cells by column; all rows have the same columns.
        figures: the figures that a goal, an answer or a comparison names, by name.
        missing: the clients that were not measured, and why.
        versions: the versions of the libraries that were measured.
        short: a lock in milliseconds by client, unpinned.
    """

    title: str
    note: str = ""
    rows: list[dict[str, Cell]] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    short: list[dict[str, Cell]] = field(default_factory=list)

    def figure(self, name: str, reached: Spread | None, **goal: float) -> None:
        """Note a figure, with its goal if it has one."""
        self.figures[name] = Figure(reached, **goal)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that there are; None when there is none."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Spread(known[0], known[0], known[0]) if known else None
    low, median, high = statistics.quantiles(known, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(above: Sequence[float | None], below: Sequence[float | None]) -> Spread | None:
    """The spread of the quotients of readings of the same turn."""
    return spread(
        one / other if one and other else None for one, other in zip(above, below, strict=False)
    )


# -- readings of blocks ---------------------------------------------------------------------------


def read(blocks: Iterable[Block], reading: Reading) -> Values:
    """One reading of each turn."""
    return [reading(block) for block in blocks]


def acquire(block: Block) -> float | None:
    """Microseconds to acquire, the block's median."""
    return block.acquire


def pair(block: Block) -> float | None:
    """Microseconds to acquire and release, the block's median."""
    return block.pair


def each(block: Block) -> float | None:
    """Microseconds of the whole block for each lock."""
    return block.seconds * 1e6 / block.pairs if block.pairs else None


def rate(block: Block) -> float | None:
    """Locks per second of the whole block."""
    return block.pairs / block.seconds if block.pairs else None


def processor(block: Block) -> float | None:
    """Microseconds of the client's processor for each lock."""
    return block.processor * 1e6 / block.pairs if block.pairs else None


def nodes(block: Block) -> float | None:
    """Microseconds of the processors of all nodes together for each lock."""
    return block.nodes * 1e6 / block.pairs if block.nodes is not None and block.pairs else None


def failures(blocks: Sequence[Block]) -> str:
    """How many of the locks were not had, and the first reason."""
    failed = sum(block.failed for block in blocks)
    errors = [block.error.partition(":")[0] for block in blocks if block.error]
    tried = failed + sum(block.pairs for block in blocks)
    return f"{failed} of {tried}: {errors[0]}" if failed else "0"


def percentile(blocks: Iterable[Block], percent: int) -> float | None:
    """The microseconds that so many of a hundred locks did not exceed, over all blocks."""
    samples = [each for block in blocks for each in block.samples]
    if len(samples) < 2:
        return None
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def half(blocks: Iterable[Block]) -> Spread | None:
    """The milliseconds that half of the locks did not exceed, over all blocks."""
    value = percentile(blocks, 50)
    return spread([value and value / 1000])


# -- turns ----------------------------------------------------------------------------------------


def ordered(items: Sequence[Item], turn: int) -> list[Item]:
    """The items in the order of a turn, which is reversed each time.

    What the first one does to the next, warm caches or work left to a node, it does not always do
    to the same one.
    """
    return list(reversed(items)) if turn % 2 else list(items)


def calls(ways: Mapping[str, Callable[[], object]], turns: int, count: int) -> dict[str, Values]:
    """Microseconds of each call, the median of so many, by turns after one to warm up."""
    medians: dict[str, Values] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way in ordered(list(ways), turn):
            taken = []
            for _ in range(count):
                start = time.perf_counter()
                ways[way]()
                taken.append(time.perf_counter() - start)
            if turn:
                medians[way].append(statistics.median(taken) * 1e6)
    return medians
