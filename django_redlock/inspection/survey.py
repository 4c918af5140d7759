"""What is held, by whom, on which nodes, until when; what is wrong with a node.

The one source of these facts, for the command and for pages. It reads each node's index of held
names (``{prefix}held``), so it costs what is held and not what the database contains. What the
index shows on some nodes only is looked up by its name on all of them: another client's key is
in no index, and a lock may have been taken or released between two nodes' answers.

Nothing here is a decision: what a survey says is over when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.names import check_names

from . import eviction, polling
from .lookup import Lookup
from .results import LockStatus, Survey, judge, told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps


LIMIT: Final = 1000  # names shown of an index, unless told otherwise …
MOST: Final = 10_000  # … and at most: a node serves nobody else while it reads them


def survey(
    backend: Backend,
    names: Sequence[str] = (),
    *,
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    memory: bool = False,
) -> Survey:
    """Ask all nodes what is held.

    Nodes that do not answer cost NODE_TIMEOUT, or twice that before it is known what they are
    like; nodes known to be down cost nothing while there is a majority without them.

    Args:
        names: look up these and nothing else, whether they are in the index or not.
        limit: the most names to read from the index.
        matching: search the index for the names of which this is true, besides ``names``.
        memory: ask also what the nodes do when their memory is full; one more question.

    Raises:
        ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)
    wanted = tuple(dict.fromkeys(check_names(list(names)))) if names else ()
    return backend.run(_survey(backend, wanted, limit, matching, memory=memory))


def _survey(
    backend: Backend,
    names: tuple[str, ...],
    limit: int,
    matching: Callable[[str], bool] | None,
    *,
    memory: bool,
) -> Steps[Survey]:
    look = Lookup(backend, limit)
    if names or matching:
        yield from look.by_name(names, matching)
    else:
        yield from look.at_the_index()
    evictions = (yield from eviction.ask(backend, polling.heard(look.votes))) if memory else ()
    heard, majority = polling.heard(look.votes), backend.policy.majority
    locks = [judge(name, cells, len(heard), majority) for name, cells in look.table.items()]
    return Survey(
        alias=backend.alias,
        nodes=tuple(map(told, backend.group.states(), look.votes)),
        heard=tuple(i in heard for i in range(len(look.votes))),
        # What the index had may have been released before it was looked up.
        locks=tuple(
            lock for lock in locks if lock.kind is not LockStatus.FREE or lock.name in names
        ),
        truncated=look.more or look.beyond > 0 or look.unsearched,
        majority=majority,
        beyond=look.beyond,
        unsearched=look.unsearched,
        evictions=evictions,
    )
