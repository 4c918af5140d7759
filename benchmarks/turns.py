"""Everybody in turns, because a machine's speed drifts: neighbours in time are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from .clients import Client
from .processes import Block, Processes

Item = TypeVar("Item")
Blocks = dict[Client, list[Block]]
Reading = Callable[[Block], float | None]


class Spread(NamedTuple):
    """A median over the turns, and the quartiles around it."""

    median: float
    low: float
    high: float


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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


def nodes(block: Block) -> float | None:
    """Microseconds of the processors of all nodes together for each lock."""
    return block.nodes * 1e6 / block.pairs if block.nodes is not None and block.pairs else None


def metered(block: Callable[[], Block], worked: Callable[[], float] | None) -> Block:
    """Do a block, and note what the nodes' processors did meanwhile; see ``Stage.worked``."""
    if worked is None:
        return block()
    before = worked()
    return block()._replace(nodes=worked() - before)


def failures(blocks: Sequence[Block]) -> str:
    """How many of the locks were not had, and the first reason."""
    failed = sum(block.failed for block in blocks)
    errors = [block.error.partition(":")[0] for block in blocks if block.error]
    tried = failed + sum(block.pairs for block in blocks)
    return f"{failed} of {tried}: {errors[0]}" if failed else "0"


def percentile(blocks: Sequence[Block], percent: int) -> float | None:
    """The microseconds that so many of a hundred locks did not exceed, over all blocks."""
    samples = [each for block in blocks for each in block.samples]
    if len(samples) < 2:
        return None
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def half(blocks: Sequence[Block]) -> Spread | None:
    """The milliseconds that half of the locks did not exceed, over all blocks."""
    value = percentile(blocks, 50)
    return spread([None if value is None else value / 1000])


def ordered(items: Sequence[Item], turn: int) -> list[Item]:
    """The items in the order of a turn, which is reversed each time.

    What the first one does to the next, warm caches or work left to a node, it does not always do
    to the same one.
    """
    return list(reversed(items)) if turn % 2 else list(items)


def in_turns(
    processes: Processes,
    rounds: int,
    pairs: int,
    *,
    tasks: int = 1,
    worked: Callable[[], float] | None = None,
) -> Blocks:
    """A block of each, again and again; the first ones warm up and are not kept.

    A client that had none of a block's locks has shown that it cannot: it gets no more.
    """
    blocks: Blocks = {each: [] for each in processes.present}
    for turn in range(rounds + 1):
        for each in ordered(processes.present, turn):
            if blocks[each] and not blocks[each][-1].pairs:
                continue
            block = metered(partial(processes.block, each, pairs, tasks=tasks), worked)
            if turn:
                blocks[each].append(block)
    return blocks
