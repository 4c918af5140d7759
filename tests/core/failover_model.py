"""A model of a single node with failover, for the exhaustive search of ``heal_model``.

One address leads to a master; its replica has what the master had at some earlier moment. At a
failover the address leads to the replica, which is promoted with the data that it has, and gets a
replica of its own. Clients know nothing of earlier connections: each take is a fresh client's, as
the most forgetful ones are. Times are ticks.

Left out: an old master that clients still reach (a split brain, which no rule here prevents).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TTL, GUARD, END = 2, 3, 8
NEVER = -99


class Data(NamedTuple):
    """What is replicated.

    Attributes:
        until: the tick at which the key of the lock expires.
        epoch: the node's mark; 0: none.
        replid: to which history that mark belongs; 0: to none.
        empty: the tick at which a client first noticed that it has no mark, or NEVER.
    """

    until: int = NEVER
    epoch: int = 1
    replid: int = 0
    empty: int = NEVER


class State(NamedTuple):
    """All there is at a moment.

    Attributes:
        now: ticks.
        data, copied: of the server at the address, and of its replica.
        history: the id of the server's data, new at each promotion and when it forgets that.
        promoted: the tick of its promotion; NEVER: it was not, or has forgotten it.
        beliefs: the ticks until which each client believes that it has the lock.
        failovers: how many may come yet.
    """

    now: int = 0
    data: Data = Data()
    copied: Data = Data()
    history: int = 1
    promoted: int = NEVER
    beliefs: tuple[int, int] = (NEVER, NEVER)
    failovers: int = 2


@dataclass(frozen=True)
class Failing:
    """The rules of a connection, and how each can be broken.

    Attributes:
        notices: a promoted server's mark is looked at; else it is as good as any.
        by_id: whose mark it is, is decided by the id of its data; else a server has "promoted"
            noted once and for all.
        anew: the guard begins when a promoted server is first met; else with the tick that its
            master's first client had noted.
        guards: the guard is as long as the longest lease.
        forgets: ticks after which a server without replica forgets that it was promoted.
    """

    notices: bool = True
    by_id: bool = True
    anew: bool = True
    guards: bool = True
    forgets: int = GUARD

    def starts(self) -> Iterator[State]:
        """Yield a node that has voted for long."""
        yield State(data=Data(empty=-9), copied=Data(empty=-9))

    def wrong(self, state: State) -> str:
        """Return which promise is broken, or ""."""
        return "two holders" if min(state.beliefs) > state.now else ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what can happen next."""
        now = state.now
        if now < END:
            yield "a tick", state._replace(now=now + 1)
        if state.copied != state.data:
            yield "replicated", state._replace(copied=state.data)
        if state.failovers:
            yield (
                "failed over",
                state._replace(
                    data=state.copied,
                    history=state.history + 1,
                    promoted=now,
                    failovers=state.failovers - 1,
                ),
            )
        if state.promoted != NEVER and now - state.promoted >= self.forgets:
            yield (
                "forgot that it was promoted",
                state._replace(history=state.history + 1, promoted=NEVER),
            )
        for client in range(len(state.beliefs)):
            yield f"client {client} takes", self._take(state, client)

    def _take(self, state: State, client: int) -> State:
        data = self._admit(state)
        if data.epoch and data.until <= state.now:
            until = state.now + TTL
            beliefs = list(state.beliefs)
            beliefs[client] = until
            return state._replace(data=data._replace(until=until), beliefs=(beliefs[0], beliefs[1]))
        return state._replace(data=data)

    def _admit(self, state: State) -> Data:
        """Return the node's data after a connection; with an epoch it votes."""
        data, now = state.data, state.now
        history = state.history if self.by_id else 1
        if self.notices and state.promoted != NEVER and data.replid != history:
            empty = now if self.anew or data.empty == NEVER else data.empty
            data = data._replace(epoch=0, replid=history, empty=empty)
        if not data.epoch:
            guard = GUARD if self.guards else TTL - 1
            if now - data.empty >= guard:
                data = data._replace(epoch=1)
        return data
