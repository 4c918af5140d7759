"""A model of taking a lock away, for the exhaustive search of ``heal``.

A holder renews and heals, somebody revokes, and a rival waits for the name. Messages arrive in any
order, late or never; times are ticks. Nodes that differ in nothing are one: their order is no
part of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

SIZE, MAJORITY, TTL = 3, 2, 2
FREE, OURS, REVOKED, THEIRS = "free", "ours", "revoked", "theirs"
NONE, SENT = "", "sent"
KEPT, HEALED, DONE, MISSED = "kept", "healed", "done", "missed"


class Node(NamedTuple):
    """One node: its key and the ticks left, and what became of the last message of each kind.

    Attributes:
        extend: NONE, SENT or what it replied: KEPT, FREE, REVOKED or THEIRS.
        heal: NONE, SENT, HEALED or MISSED.
        revoke, again: NONE, SENT, DONE or MISSED, of the first and of the second request.
        left: the ticks that the reply to the first request told.
        grant: the rival's: NONE, SENT, DONE or MISSED.
    """

    key: str = OURS
    ticks: int = TTL
    extend: str = NONE
    heal: str = NONE
    revoke: str = NONE
    again: str = NONE
    left: int = 0
    grant: str = NONE


class State(NamedTuple):
    """All there is at a moment.

    Attributes:
        belief: ticks for which the holder believes in its lease.
        age: of the renewal at hand; -1: there is none.
        rounds: how many renewals may yet begin.
        after: whether the renewal at hand began after success was reported.
        success: whether it was reported that the lock is taken away.
        rival: -1 does not ask, 0 asks, else ticks for which it believes.
        since: ticks since the rival asked.
    """

    nodes: tuple[Node, ...] = (Node(),) * SIZE
    belief: int = TTL
    age: int = -1
    rounds: int = 1
    after: bool = False
    success: bool = False
    rival: int = -1
    since: int = 0
    wrong: str = ""


def _settled(state: State) -> Callable[[Node], Node]:
    """Return what forgets the replies to a renewal that is over: nothing depends on them."""

    def settle(node: Node) -> Node:
        if state.age >= 0:
            return node
        extend, heal = (each if each == SENT else NONE for each in (node.extend, node.heal))
        return node._replace(extend=extend, heal=heal)

    return settle


@dataclass(frozen=True)
class Revoking:
    """The rules; the defaults are ours.

    Attributes:
        by_name: whether a revoke looks at the name alone, not at the holder.
        deletes: whether it deletes the key.
        revives: whether an extension takes a revoked key for its own.
        heals: whether a revoked key counts as free.
        enough: how many nodes are success.
        lasts: whether a second request lets each mark last as long as the longest.
        rivals: whether there is one. Then nobody asks for the success: it only adds states.
        rounds: how many renewals there are.
    """

    by_name: bool = False
    deletes: bool = False
    revives: bool = False
    heals: bool = False
    enough: int = MAJORITY
    lasts: bool = True
    rivals: bool = True
    rounds: int = 1

    def starts(self) -> Iterator[State]:
        """Yield the states in which it may begin: a lease on all nodes, or on a majority."""
        yield State(rounds=self.rounds)
        yield State((Node(key=FREE, ticks=0), Node(), Node()), rounds=self.rounds)

    def wrong(self, state: State) -> str:
        """Tell which promise is broken, or ""."""
        if state.belief > 0 and state.rival > 0:
            return "two holders"
        return state.wrong

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may happen next."""
        for what, after in self._steps(state):
            yield what, after._replace(nodes=tuple(sorted(map(_settled(after), after.nodes))))

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield "tick", self._tick(state)
        yield from self._holder(state)
        yield from self._revoker(state)
        yield from self._rival(state)
        for i, node in enumerate(state.nodes):
            if node in state.nodes[:i]:  # one of two that are alike stands for both
                continue
            for what, after in self._arrivals(node):
                nodes = (*state.nodes[:i], after, *state.nodes[i + 1 :])
                taken = node.key == THEIRS and after.key != THEIRS
                wrong = "the next holder's" if taken else state.wrong
                yield f"{what} at {i}", state._replace(nodes=nodes, wrong=wrong)

    def _tick(self, state: State) -> State:
        nodes = tuple(
            node._replace(ticks=node.ticks - 1)
            if node.ticks > 1
            else node._replace(ticks=0, key=FREE)
            for node in state.nodes
        )
        return state._replace(
            nodes=nodes,
            belief=max(0, state.belief - 1),
            age=-1 if state.age < 0 else min(TTL, state.age + 1),
            rival=state.rival - 1 if state.rival > 0 else state.rival,
            since=min(TTL, state.since + 1) if state.rival == 0 else 0,
        )

    def _arrivals(self, node: Node) -> Iterator[tuple[str, Node]]:
        if node.extend == SENT:
            if node.key == OURS or (self.revives and node.key == REVOKED):
                after = node._replace(key=OURS, ticks=TTL, extend=KEPT)
            else:
                free = self.heals and node.key == REVOKED
                after = node._replace(extend=FREE if free else node.key)
            yield "extend", after
        if node.heal == SENT:
            open_ = node.key in (FREE, OURS) or (self.heals and node.key == REVOKED)
            done = node._replace(key=OURS, ticks=TTL, heal=HEALED)
            after = done if open_ else node._replace(heal=MISSED)
            yield "heal", after
        if node.revoke == SENT:
            yield from self._revoked(node)
        if node.again == SENT:
            lasting = node._replace(ticks=max(node.ticks, node.left), again=DONE)
            yield "revoke again", lasting if node.key == REVOKED else node._replace(again=MISSED)
        if node.grant == SENT:
            granted = node._replace(key=THEIRS, ticks=TTL, grant=DONE)
            yield "grant", granted if node.key == FREE else node._replace(grant=MISSED)

    def _revoked(self, node: Node) -> Iterator[tuple[str, Node]]:
        if node.key in (OURS, REVOKED) or (self.by_name and node.key == THEIRS):
            key, ticks = (FREE, 0) if self.deletes else (REVOKED, node.ticks)
            left = node.ticks if self.lasts and not self.rivals else 0
            after = node._replace(key=key, ticks=ticks, revoke=DONE, left=left)
        else:
            after = node._replace(revoke=MISSED)
        yield "revoke", after

    def _holder(self, state: State) -> Iterator[tuple[str, State]]:
        if state.belief <= 0:
            return
        if state.age < 0:
            if state.rounds:
                nodes = tuple(node._replace(extend=SENT, heal=NONE) for node in state.nodes)
                begun = state._replace(nodes=nodes, age=0, rounds=state.rounds - 1)
                yield "renewal", begun._replace(after=state.success)
            return
        said = [node.extend for node in state.nodes]
        if REVOKED in said:
            yield "told", state._replace(belief=0, age=-1)
            return
        kept = said.count(KEPT) + sum(node.heal == HEALED for node in state.nodes)
        gone = len(said) - said.count(KEPT) - said.count(SENT)
        if kept >= MAJORITY:
            wrong = "prolonged after success" if state.after else state.wrong
            belief = max(state.belief, TTL - state.age)
            yield "prolonged", state._replace(belief=belief, age=-1, wrong=wrong)
        elif (FREE in said and KEPT in said and gone < MAJORITY) and all(
            node.heal == NONE for node in state.nodes
        ):
            nodes = tuple(
                node._replace(heal=SENT) if node.extend == FREE else node for node in state.nodes
            )
            yield "heals", state._replace(nodes=nodes)
        yield "gives up", state._replace(age=-1)

    def _revoker(self, state: State) -> Iterator[tuple[str, State]]:
        nodes = state.nodes
        if all(node.revoke == NONE for node in nodes):
            yield "revokes", state._replace(nodes=tuple(n._replace(revoke=SENT) for n in nodes))
        if self.rivals:
            return
        done = [node.left for node in nodes if node.revoke == DONE]
        if state.success or len(done) < self.enough:
            return
        if not self.lasts:
            yield "success", state._replace(success=True)
        elif all(node.again == NONE for node in nodes):
            most = max(done)
            asked = tuple(
                n._replace(again=SENT, left=most) if n.revoke == DONE else n for n in nodes
            )
            yield "asks again", state._replace(nodes=asked)
        elif sum(node.again == DONE for node in nodes) >= self.enough:
            yield "success", state._replace(success=True)

    def _rival(self, state: State) -> Iterator[tuple[str, State]]:
        if state.rival == -1 and self.rivals:
            nodes = tuple(node._replace(grant=SENT) for node in state.nodes)
            yield "rival asks", state._replace(nodes=nodes, rival=0)
        granted = sum(node.grant == DONE for node in state.nodes)
        if state.rival == 0 and state.since < TTL and granted >= MAJORITY:
            yield "rival holds", state._replace(rival=TTL - state.since)
