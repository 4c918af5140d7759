"""How long does a lock take on one node, beside the locks of others that are made for one?"""

from __future__ import annotations

from .clients import DJANGO_REDIS, PLAIN, PYTHON_REDIS_LOCK, REDIS_PY, SOCKETS, THREADS, Processes
from .measure import Result, failures, half, pair, percentile, processor, ratio, read, spread
from .stage import Stage

CLIENTS = (PLAIN, SOCKETS, THREADS, REDIS_PY, DJANGO_REDIS, PYTHON_REDIS_LOCK)


def one_node(stage: Stage) -> Result:
    """Acquire and release on a single node, by a thread."""
    result = Result(
        "One node, unpinned",
        f"{stage.effort.rounds} turns of {stage.effort.pairs} locks each, all on the same node. "
        "The other clients have no fence, and no guard against a node that was emptied.",
    )
    urls = stage.nodes.urls[:1]
    with stage.together(), Processes(stage, CLIENTS, urls=urls) as processes:
        blocks = processes.in_turns(stage.effort.rounds, stage.effort.pairs)
        processes.tell(result)
    pairs = {each: read(taken, pair) for each, taken in blocks.items()}
    others = pairs.get(REDIS_PY, ())
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": each.label,
                "acquire + release, µs": spread(pairs[each]),
                "p95, µs": percentile(taken, 95),
                "÷ redis-py Lock": ratio(pairs[each], others),
                "client's processor, µs": spread(read(taken, processor)),
                "failed": failures(taken),
            }
        )
        result.figure(f"unpinned: one node: {each.label}, ms", half(taken))
    beside = ratio(pairs[THREADS], others)
    result.figure("unpinned: one node: threads ÷ redis-py Lock", beside, most=1.15)
    return result
