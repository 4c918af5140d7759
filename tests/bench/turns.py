"""Everybody in turns, because a machine's speed drifts: neighbours in time are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .cast import Block, Cast
from .contestants import Contestant

Blocks = dict[Contestant, list[Block]]
Reading = Callable[[Block], float | None]


class Spread(NamedTuple):
    """A median over the turns, and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that there are; None when there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0])
    low, median, high = statistics.quantiles(known, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(above: Sequence[float | None], below: Sequence[float | None]) -> Spread | None:
    """The spread of the quotients of readings of the same turn."""
    return spread(
        one / other if one and other else None for one, other in zip(above, below, strict=False)
    )


def acquire(block: Block) -> float | None:
    """Microseconds to acquire, the block's median."""
    return block.acquire


def pair(block: Block) -> float | None:
    """Microseconds to acquire and release, the block's median."""
    return block.pair


def rate(block: Block) -> float | None:
    """Locks per second of the whole block."""
    return block.rate


def read(blocks: Sequence[Block], reading: Reading) -> list[float | None]:
    """One reading of each turn."""
    return [reading(block) for block in blocks]


def processor(block: Block) -> float | None:
    """Microseconds of the client's processor for each lock."""
    return block.processor * 1e6 / block.pairs if block.pairs else None


def failures(blocks: Sequence[Block]) -> str:
    """How many of the locks were not had, and the first reason."""
    failed = sum(block.failed for block in blocks)
    errors = [block.error.partition(":")[0] for block in blocks if block.error]
    tried = failed + sum(block.pairs for block in blocks)
    return f"{failed} of {tried}: {errors[0]}" if failed else "0"


def in_turns(cast: Cast, rounds: int, pairs: int, *, tasks: int = 1) -> Blocks:
    """A block of each, again and again; the first ones warm up and are not kept."""
    blocks: Blocks = {each: [] for each in cast.present}
    for turn in range(rounds + 1):
        for each in cast.present:
            block = cast.block(each, pairs, tasks=tasks)
            if turn:
                blocks[each].append(block)
    return blocks
