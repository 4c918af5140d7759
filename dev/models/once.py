"""A model of the record that a stranger puts back, for an exhaustive search.

A run works, records that on the nodes, and is acknowledged; or it loses its lease before. Strangers
ask for the same name, one after the other. Who meets a record puts it back on nodes that granted
the name, for the time that is left of it. Messages and replies may take any time; nodes may restart
empty, and somebody may remove the record by hand.

Times are ticks. A node's clock runs as a client's does, but none is compared with another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

FREE, RUN, STRANGER, DONE = "", "run", "stranger", "done"
ASKED, GRANTED, HELD, LOST = "asked", "granted", "held", "lost"
REMOVE, UNDO, GRANT, COMPLETE, BACK = "remove", "undo", "grant", "complete", "put back"
Message = tuple[str, int]
Changes = dict[str, Any]  # of a state


class Node(NamedTuple):
    """One node.

    Attributes:
        value: what the name is there.
        left: ticks until that ends; a run is renewed until it is over.
        way: the messages on their way to it, in order: what each asks for, and for how many ticks.
        told: what the stranger at hand has heard of it.
        ticks: what is left of the record that it was told of.
    """

    value: str = FREE
    left: int = 0
    way: tuple[Message, ...] = ()
    told: str = ""
    ticks: int = 0


class State(NamedTuple):
    """All there is at a moment.

    Attributes:
        run: what the run does: "works", "records", "acknowledged", "lost".
        left: ticks until the last record that the run has written ends, and …
        promised: … those for which it was to stay, since the run has asked for it.
        heard: how many nodes have replied to the run that records, and …
        written: … on how many it has recorded.
        stranger: what the stranger at hand does: "", "asks", "tells", "runs".
        age: ticks since it asked.
        restarts, losses: how many there may yet be.
        unseen: whether no stranger has come and gone since the last restart.
        removed: whether somebody has removed the record by hand.
        wrong: the promise that is broken.
    """

    nodes: tuple[Node, ...]
    run: str = "works"
    left: int = 0
    promised: int = 0
    heard: int = 0
    written: int = 0
    stranger: str = ""
    age: int = 0
    restarts: int = 0
    losses: int = 0
    unseen: bool = False
    removed: bool = False
    wrong: str = ""


class Once(NamedTuple):
    """The rules; the defaults are ours.

    Attributes:
        keep: ticks for which a record stays.
        ttl: ticks for which a stranger's grant stays.
        ticks: whether time passes at all; what is put back is shorter by what the asking took.
        earlier: whether a node has the record of an earlier run, which this run has not heard.
        puts_back: whether a stranger puts a record back.
        over: what a record put back replaces: "own", the stranger's key alone; "missing", no key;
            "all", any.
        heard: whether only nodes whose grant was heard get it.
        aged: whether the stranger takes off the ticks since it asked, and …
        aged_there: … the node those since its grant.
        hears: whether a stranger that has met a record hears the other nodes as well.
        believed: how many records end a stranger.
        careless: whether a run that has lost its lease records.
        apart: whether a stranger comes and goes between two restarts.
    """

    size: int = 3
    keep: int = 3
    ttl: int = 2
    ticks: bool = True
    restarts: int = 0
    losses: int = 0
    earlier: bool = False
    removes: bool = False
    puts_back: bool = True
    over: str = "own"
    heard: bool = True
    aged: bool = True
    aged_there: bool = True
    hears: bool = True
    believed: int = 1
    careless: bool = False
    apart: bool = True

    @property
    def majority(self) -> int:
        """More than half of the nodes."""
        return self.size // 2 + 1

    def starts(self) -> Iterator[State]:
        """The run holds all nodes, or a majority; of the others one may have an earlier record."""
        if self.earlier:
            others = (Node(DONE, self.keep), *(Node(),) * (self.size - self.majority - 1))
            nodes = (*(Node(RUN),) * self.majority, *others)
            start = State(nodes, left=self.keep, losses=self.losses)
            yield self._state(start._replace(restarts=self.restarts))
            return
        for held in (self.size, self.majority):
            nodes = (Node(RUN),) * held + (Node(),) * (self.size - held)
            yield self._state(State(nodes, restarts=self.restarts, losses=self.losses))

    def wrong(self, state: State) -> str:
        """Tell which promise is broken, or ""."""
        lasts = max((node.left for node in state.nodes if node.value == DONE), default=0)
        if lasts and state.removed and not self._under_way(state):
            return "it comes back"
        if lasts > state.left:
            return "it outlives its time"
        if lasts and state.run == "lost" and not self.earlier:
            return "work is refused that was never done"
        if state.stranger == "runs" and state.run == "works":
            return "two at once"
        is_done = state.run == "acknowledged" and state.written >= self.majority
        if state.stranger == "runs" and is_done and state.promised and not state.removed:
            return "it runs again"
        return state.wrong

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may happen next."""
        moves = [*self._time(state), *self._run(state), *self._strangers(state)]
        for label, after in moves:
            yield label, self._state(after)
        for i, node in enumerate(state.nodes):
            others = state.nodes[:i], state.nodes[i + 1 :]
            for label, changed, more in self._node(state, node):
                nodes = (*others[0], changed, *others[1])
                yield label, self._state(state._replace(nodes=nodes, **more))

    def _state(self, state: State) -> State:
        """The same state with its nodes in order: they are alike."""
        return state._replace(nodes=tuple(sorted(state.nodes)))

    def _under_way(self, state: State) -> bool:
        return any(what == REMOVE for node in state.nodes for what, _ in node.way)

    # -- what may happen ---

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        if self.ticks and (state.run in {"acknowledged", "lost"} or self.earlier):
            nodes = tuple(map(_older, state.nodes))
            left, promised = max(0, state.left - 1), max(0, state.promised - 1)
            age = min(state.age + 1, self.keep) if state.stranger == "asks" else 0
            yield "a tick", state._replace(nodes=nodes, left=left, promised=promised, age=age)

    def _run(self, state: State) -> Iterator[tuple[str, State]]:
        if state.run == "works":
            yield "lost", state._replace(run="lost")
        careless = state.run == "lost" and self.careless and not state.heard
        if state.run == "works" or careless:
            nodes = _sent(state.nodes, lambda node: [(COMPLETE, self.keep)])
            run = "records" if state.run == "works" else state.run
            yield "records", state._replace(nodes=nodes, run=run, promised=self.keep)
        if state.run == "records" and state.heard >= self.majority:
            yield "acknowledged", state._replace(run="acknowledged")
        if state.run == "acknowledged" and self.removes and not state.removed:
            nodes = _sent(state.nodes, lambda node: [(REMOVE, 0)])
            yield "removed by hand", state._replace(nodes=nodes, removed=True)

    def _strangers(self, state: State) -> Iterator[tuple[str, State]]:
        nodes = state.nodes
        ours = any(what in (GRANT, BACK, UNDO) for node in nodes for what, _ in node.way)
        if not state.stranger and not ours:
            after = tuple(node._replace(told=ASKED) for node in nodes)
            after = _sent(after, lambda node: [(GRANT, self.ttl)])
            yield "a stranger asks", state._replace(nodes=after, stranger="asks", age=0)
        if state.stranger == "asks":
            told = [node.told for node in nodes]
            if told.count(DONE) >= self.believed and not (self.hears and ASKED in told):
                yield "it meets a record", self._refused(state)
            elif ASKED not in told:
                if told.count(GRANTED) >= self.majority:
                    yield "it works", state._replace(stranger="runs")
                else:
                    yield "it is refused", self._refused(state)
        if state.stranger == "tells" and not ours:
            after = tuple(node._replace(told="", ticks=0) for node in nodes)
            yield "it goes", state._replace(nodes=after, stranger="", unseen=False)

    def _refused(self, state: State) -> State:
        """The stranger puts back a record that it has met, and undoes its other grants."""
        life = max((node.ticks for node in state.nodes if node.told == DONE), default=0)
        life -= state.age if self.aged else 0
        puts = self.puts_back and life > 0

        def tells(node: Node) -> list[Message]:
            if node.told == DONE or (node.told == HELD and self.over != "all"):
                return []
            if puts and (node.told in {GRANTED, HELD} or not self.heard):
                return [(BACK, life)]
            return [(UNDO, 0)]

        after = _sent(state.nodes, tells)
        after = tuple(node._replace(told="", ticks=0) for node in after)
        return state._replace(nodes=after, stranger="tells", age=0)

    def _node(self, state: State, node: Node) -> Iterator[tuple[str, Node, Changes]]:
        if node.way:
            yield self._arrived(state, node)
        if node.value == RUN and (state.run in {"lost", "acknowledged"}):
            yield "its key expires", node._replace(value=FREE), {}
        quiet = state.stranger == "" and (state.run == "acknowledged" or self.earlier)
        seen = not (state.unseen and self.apart) and not node.way
        if state.restarts and quiet and seen:
            more: Changes = {"restarts": state.restarts - 1, "unseen": True}
            yield "a restart", node._replace(value=FREE, left=0), more
        if node.told == ASKED and state.losses and state.stranger == "asks":
            yield "it is silent", node._replace(told=LOST), {"losses": state.losses - 1}

    def _arrived(self, state: State, node: Node) -> tuple[str, Node, Changes]:
        (what, ticks), *rest = node.way
        label, node = f"{what} arrives", node._replace(way=tuple(rest))
        hears = node.told == ASKED
        if what == COMPLETE:
            more: Changes = {"heard": state.heard + 1}
            if node.value == RUN:
                more |= {"left": max(state.left, ticks), "written": state.written + 1}
                node = node._replace(value=DONE, left=ticks)
            return label, node, more
        if (what, node.value) in {(REMOVE, DONE), (UNDO, STRANGER)}:
            return label, node._replace(value=FREE, left=0), {}
        if what == GRANT and node.value == FREE:
            node = node._replace(value=STRANGER, left=ticks)
            return label, node._replace(told=GRANTED) if hears else node, {}
        if what == GRANT and hears:
            told = DONE if node.value == DONE else HELD
            return label, node._replace(told=told, ticks=node.left if told == DONE else 0), {}
        if what == BACK:
            return self._put_back(node, ticks)
        return label, node, {}

    def _put_back(self, node: Node, life: int) -> tuple[str, Node, Changes]:
        missing = node.value in {FREE, STRANGER}  # its release comes first
        if not {"own": node.value == STRANGER, "missing": missing, "all": True}[self.over]:
            return "put back: refused", node, {}
        more: Changes = {"wrong": "a holder's key is replaced"} if node.value == RUN else {}
        if self.aged_there and node.value == STRANGER:
            life -= self.ttl - node.left
        value, left = (DONE, life) if life > 0 else (FREE, 0)
        return "put back", node._replace(value=value, left=left), more


def _older(node: Node) -> Node:
    """The node a tick later."""
    if node.value not in {STRANGER, DONE}:
        return node
    left = node.left - 1
    return node._replace(left=left) if left else node._replace(value=FREE, left=0)


def _sent(nodes: tuple[Node, ...], messages: Callable[[Node], list[Message]]) -> tuple[Node, ...]:
    return tuple(node._replace(way=(*node.way, *messages(node))) for node in nodes)
