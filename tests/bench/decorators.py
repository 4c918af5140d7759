"""The part about our own decorators: what they add to the bare lock."""

from __future__ import annotations

from .cast import Cast
from .contestants import Contestant
from .results import Result
from .stage import Stage
from .turns import in_turns, pair, ratio, read, spread

BARE = Contestant("with redlock(...)", "ours", "with")
DECORATED = (
    Contestant("@single_flight, an empty view", "ours", "@single_flight"),
    Contestant("@locked_task, an empty task", "ours", "@locked_task"),
)


def decorators(stage: Stage) -> Result:
    """An empty view and an empty task, each under its decorator."""
    result = Result("The decorators")
    with Cast(stage, (BARE, *DECORATED)) as cast:
        blocks = in_turns(cast, stage.effort.rounds, stage.effort.pairs)
    bare = read(blocks[BARE], pair)
    for each, taken in blocks.items():
        times = ratio(read(taken, pair), bare)
        result.rows.append(
            {"": each.label, "µs": spread(read(taken, pair)), f"÷ {BARE.label}": times}
        )
        if each is not BARE:
            result.figures[f"{each.style} ÷ {BARE.label}"] = times
    result.versions = cast.versions
    return result
