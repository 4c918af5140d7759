"""When a revision is called slower than another one.

Each turn gives a ratio, new by old. How uncertain their median is follows from the quartiles:
``(upper − lower quartile) ÷ √turns``, times 1.57, is about half of its 95 % interval (the notch of
McGill, Tukey and Larsen's box plots). All that is of the ratios' logarithms: half as fast and
twice as fast are equally far from 1.

    ≤ 1.03    the whole interval is at most 1.03
    SLOWER    even an interval of nearly twice that width, factor 3, is above 1.03 as a whole: a run
              judges a dozen ratios, and one false alarm among them must be rare
    unclear   anything between, or fewer than five turns: more turns may tell
    FAILS     the newer one does not get locks that the older one gets: more than one of a hundred,
              or a scenario that only the older one has

`SLOWER` and `FAILS` make the exit code 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.processes import Block
from benchmarks.turns import Spread

LIMIT = 1.03
NOTCH, SURE = 1.57, 3.0
FEWEST = 5  # turns
FAILED = 0.01  # of the locks, beyond those that the older one does not get
SLOWER, FAILS, UNCLEAR, UNKNOWN = "SLOWER", "FAILS", "unclear", "not measured"
GOOD = f"≤ {LIMIT:g}"
BAD = (SLOWER, FAILS)


def speed(ratio: Spread | None, turns: int) -> str:
    """The verdict on a ratio, new by old, that so many turns gave."""
    if ratio is None:
        return UNKNOWN
    if turns < FEWEST:
        return UNCLEAR
    noise = math.log(ratio.high / ratio.low) / math.sqrt(turns)
    middle, limit = math.log(ratio.median), math.log(LIMIT)
    if middle - SURE * noise > limit:
        return SLOWER
    return GOOD if middle + NOTCH * noise <= limit else UNCLEAR


def fails(old: Sequence[Block], new: Sequence[Block]) -> bool:
    """Whether the newer one does not get locks that the older one gets."""
    if not new:
        return bool(old)
    return bool(old) and _failed(new) > _failed(old) + FAILED


def _failed(blocks: Sequence[Block]) -> float:
    tried = sum(block.failed + block.pairs for block in blocks)
    return sum(block.failed for block in blocks) / tried if tried else 0.0
