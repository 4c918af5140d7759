"""Survey the nodes: what is held, by which holders, until when, and what is wrong with a node.

The command and the pages take these facts from here. A survey reads each node's index of held
names (``{prefix}held``), so its cost grows with what is held, not with the database. A name that
only some indexes list is looked up on all nodes: another client's key is in no index, and a lock
may have been taken or released between the replies of two nodes.

Decide nothing by a survey: it is out of date when it is read.
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
MOST: Final = 10_000  # … and at most: a node serves no other client while it reads them


def survey(
    backend: Backend,
    names: Sequence[str] = (),
    *,
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    memory: bool = False,
) -> Survey:
    """Ask all nodes what is held.

    A node that does not reply costs NODE_TIMEOUT, or twice that at the first contact; nodes known
    to be down cost nothing while there is a majority without them.

    Args:
        backend: that of the alias; see ``conf.backend``.
        names: look up these and nothing else, whether they are in the index or not.
        limit: the most names to read from the index.
        matching: search the index for the names for which this is true, besides ``names``.
        memory: ask also what the nodes do when their memory is full, and whether they were emptied
            under this process; two more requests.

    Raises:
        ValueError: a name that no lock can have, or a limit that is not from 1 to 10,000.
    """
    check_limit(limit)
    wanted = tuple(dict.fromkeys(check_names(list(names)))) if names else ()
    return backend.run(surveying(backend, wanted, limit, matching, memory=memory))


def check_limit(limit: int) -> None:
    """Check how many rows are asked for.

    Raises:
        ValueError: it is not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)


def surveying(
    backend: Backend,
    names: tuple[str, ...],
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    *,
    memory: bool = False,
) -> Steps[Survey]:
    """Ask as ``survey`` does, in steps for threads or tasks; the arguments are checked already."""
    look = yield from _looked(backend, names, limit, matching)
    if memory and (yield from polling.any_emptied(backend, polling.heard(look.votes))):
        # Connected anew, this process knows that they do not vote, and for how long.
        look = yield from _looked(backend, names, limit, matching)
    evictions = (yield from eviction.ask(backend, polling.heard(look.votes))) if memory else ()
    heard, majority = polling.heard(look.votes), backend.policy.majority
    nodes = tuple(map(told, backend.group.states(), look.votes))
    locks = [judge(name, cells, nodes, majority) for name, cells in look.table.items()]
    return Survey(
        alias=backend.alias,
        nodes=nodes,
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


def _looked(
    backend: Backend,
    names: tuple[str, ...],
    limit: int,
    matching: Callable[[str], bool] | None,
) -> Steps[Lookup]:
    look = Lookup(backend, limit)
    if names or matching:
        yield from look.by_name(names, matching)
    else:
        yield from look.at_the_index()
    return look
