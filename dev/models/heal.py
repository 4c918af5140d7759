"""Three small models of a renewal that heals, for an exhaustive search.

A renewal asks the nodes to extend (EXTEND). A node that has no key at all says *free*; the same
renewal may then tell it to put the key there (HEAL). Each model leaves out what the others have:

    Beliefs    time, restarts, a rival and fencing tokens; who believes that it has the lease
    Order      no time; what ends a lease races with a heal, and two adopters have its handle
    ByHand     no time; somebody deletes the keys, and replies get lost

A model says how it begins and what may come next. ``search`` goes through all of that, the nearest
first, so what it finds has a shortest way to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from itertools import combinations
from typing import NamedTuple, ParamSpec, Protocol, TypeVar, cast

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
Way = tuple[str, ...]


class Model(Protocol[S]):
    """What can be searched."""

    def starts(self) -> Iterator[S]:
        """Yield the states in which it may begin."""

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Yield what may happen next, each with the state after it."""

    def wrong(self, state: S) -> str:
        """Tell which promise is broken, or ""."""


def search(model: Model[S], promise: str = "") -> tuple[str, Way, int]:
    """Return the promise that an order of events breaks, the shortest way to it, and the states.

    Where all promises hold, all states were looked at.

    Args:
        promise: the only one to look at; "" is any.
    """
    before: dict[S, tuple[str, S | None]] = dict.fromkeys(model.starts(), ("", None))
    todo = deque(before)
    while todo:
        state = todo.popleft()
        broken = model.wrong(state)
        if broken and promise in ("", broken):
            return broken, _way_to(state, before), len(before)
        for label, after in model.steps(state):
            if after not in before:
                before[after] = (label, state)
                todo.append(after)
    return "", (), len(before)


def _way_to(state: S, before: dict[S, tuple[str, S | None]]) -> Way:
    way: list[str] = []
    at = state
    while True:
        label, parent = before[at]
        if parent is None:
            return tuple(reversed(way))
        way.append(label)
        at = parent


def remembered(moves: Callable[P, Iterator[T]]) -> Callable[P, tuple[T, ...]]:
    """Make a list of what a node may do next: there are few nodes, in very many states."""

    @wraps(moves)
    def listed(*args: P.args, **kwargs: P.kwargs) -> tuple[T, ...]:
        return tuple(moves(*args, **kwargs))

    return cast("Callable[P, tuple[T, ...]]", cache(listed))


# -- who believes that it has the lease -----------------------------------------------------------

FREE, OURS, THEIRS = "", "ours", "theirs"
NONE, SENT, KEPT, LACKS, OTHERS = "", "sent", "kept", "free", "gone"  # EXTEND at a node
HEALED, REFUSED = "healed", "refused"
FENCE = 3  # the token of the lease


class Node(NamedTuple):
    """One node in ``Beliefs``.

    Attributes:
        keys: of each name, whose key it is, and for how many ticks.
        guard: ticks for which it has no vote.
        counter: what the next grant number must exceed.
        extend: the EXTEND of the renewal at hand.
        heal: its HEAL.
        late: whether the HEAL of an earlier renewal is still on its way.
        grant: the rival's GRANT: -1 it is on its way, 0 there is none, else the number granted.
        restarts: how often it may yet restart.
    """

    keys: tuple[tuple[str, int], ...]
    guard: int = 0
    counter: int = 0
    extend: str = NONE
    heal: str = NONE
    late: bool = False
    grant: int = 0
    restarts: int = 1
    hung: bool = False


class Beliefs(NamedTuple):
    """All there is at a moment; times are ticks.

    Attributes:
        left: for which the holder believes that it has the lease.
        age: of the renewal at hand; -1: there is none.
        rounds: how many renewals may yet begin.
        restarts: how many restarts there may yet be.
        released: whether the holder has released the lease.
        rival: what the rival does: "", "asks", "holds", "over".
        since: age of the rival's attempt.
        woken: whether it carries the nonce of the released lease.
        token: of the rival, once it has held.
        last: whose belief began or was prolonged last.
        wrong: the promise that is broken.
    """

    nodes: tuple[Node, ...]
    left: int
    age: int = -1
    rounds: int = 1
    restarts: int = 0
    released: bool = False
    rival: str = ""
    since: int = 0
    woken: bool = False
    token: int = 0
    last: str = OURS
    wrong: str = ""


class Timed(NamedTuple):
    """The rules of ``Beliefs``; the defaults are ours.

    Attributes:
        ttl, guard: ticks.
        rounds, restarts: how many there are.
        rivals: whether there is one.
        names: how many the lease has; the rival wants the last one.
        heals: whether a renewal heals at all.
        under_guard: whether a node that has no vote heals, as one whose epoch nobody compares.
        steals: whether a heal replaces another's key.
        partly: whether a heal writes those of several names that it can, and says yes.
        late_votes: whether votes count that came after the deadline.
        number: the grant number of a heal, to which it raises the counter.
        forget: whether a restart takes the counters, and the clock does not help. A node
            restarts only while all of them have the lease.
        prompt: whether each tick has a renewal, to which all nodes reply that do not hang. Then a
            node restarts only while all of them have the lease, or one of them hangs.
    """

    size: int = 3
    ttl: int = 2
    guard: int = 2
    rounds: int = 1
    restarts: int = 0
    rivals: bool = True
    names: int = 1
    heals: bool = True
    under_guard: bool = False
    steals: bool = False
    partly: bool = False
    late_votes: bool = False
    number: int = FENCE
    forget: bool = False
    prompt: bool = False
    hangs: bool = False
    goal: bool = False

    @property
    def majority(self) -> int:
        """More than half of the nodes."""
        return self.size // 2 + 1

    # -- the beginning ---

    def starts(self) -> Iterator[Beliefs]:
        """A majority has just granted the lease; another node is free, or granted to the rival."""
        mine = ((OURS, self.ttl),) * self.names
        free = ((FREE, 0),) * self.names
        granted = Node(mine, counter=FENCE)
        others: list[tuple[Node, str]] = [(Node(free), "")]
        if self.forget or self.prompt:
            others = [(granted if self.forget else Node(free), "")]
        elif self.rivals:
            theirs = (*free[1:], (THEIRS, self.ttl))
            others += [(Node(free, counter=FENCE + 1), "")]  # another name raised it
            others += [(Node(theirs, counter=1, grant=1), "asks")]
        for other, rival in others:
            nodes = (granted,) * self.majority + (other,) * (self.size - self.majority)
            if rival:
                nodes = tuple(n if n.grant else n._replace(grant=-1) for n in nodes)
            yield self._state(
                Beliefs(nodes, self.ttl, rounds=self.rounds, restarts=self.restarts, rival=rival)
            )

    def _state(self, state: Beliefs) -> Beliefs:
        """The nodes are alike, so their order tells nothing."""
        return Beliefs(tuple(sorted(state.nodes)), *state[1:])  # quicker than _replace

    def wrong(self, state: Beliefs) -> str:
        """Tell which promise is broken."""
        if state.wrong:
            return state.wrong
        if self.prompt and not state.left:
            return "the lease is lost"
        if self.goal and state.left and not any(n.restarts or n.guard for n in state.nodes):
            return "it outlives the restarts"
        return ""

    # -- what may happen ---

    def steps(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        """Yield what may happen next."""
        for label, after in self._steps(state):
            yield label, self._state(after)

    def _steps(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        if self._is_over(state):
            return
        yield from self._time(state)
        yield from self._holder(state)
        yield from self._rival(state)
        for i, node in enumerate(state.nodes):
            if i and node == state.nodes[i - 1]:
                continue  # its twin has done the same
            for label, after in self._node(
                node, released=state.released, over=state.rival == "over", woken=state.woken
            ):
                yield label, _put(state, i, after)
            for label, after in self._restart(state, node):
                yield label, _put(state, i, after)._replace(restarts=state.restarts - 1)
            if self.hangs and not any(each.hung for each in state.nodes):
                yield "a node hangs", _put(state, i, node._replace(hung=True))

    def _is_over(self, state: Beliefs) -> bool:
        """Tell whether nobody can come to believe anything any more, so that nothing goes wrong.

        The rival holds once. A lease that is over is renewed only by votes that come too late.
        """
        return state.rival in ("holds", "over") and not state.left and not self.late_votes

    def _time(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        if self.prompt and not self._is_settled(state):
            return
        nodes = [_ticked(node) for node in state.nodes]
        left, age, since, rival = max(0, state.left - 1), state.age, state.since, state.rival
        if age >= 0:
            age += 1
        if age >= self.ttl:
            nodes, age = [_forgotten(node) for node in nodes], -1
        if rival in ("asks", "holds"):
            since += 1
            if since >= self.ttl:
                rival, since = "over", 0
        after = state._replace(nodes=tuple(nodes), left=left, age=age, since=since, rival=rival)
        if after != state:
            yield "tick", after

    def _is_settled(self, state: Beliefs) -> bool:
        """Tell whether a prompt renewal that began in this tick has nothing more to do."""
        nodes = [node for node in state.nodes if not (node.hung or node.guard)]
        if state.age or any(SENT in (node.extend, node.heal) for node in nodes):
            return False
        if any(self._may_heal(state, node) for node in nodes):
            return False
        return all(after.left == state.left for label, after in self._count(state))

    def _holder(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        if state.left and state.rounds and not (self.prompt and not state.age):
            nodes = tuple(_forgotten(node)._replace(extend=SENT) for node in state.nodes)
            rounds = state.rounds - (not self.prompt)
            yield "a renewal", state._replace(nodes=nodes, age=0, rounds=rounds)
        yield from self._count(state)
        for i, node in enumerate(state.nodes):
            if self._may_heal(state, node):
                yield "heal", _put(state, i, node._replace(heal=SENT))
        if self.rivals and not state.released:
            yield "released", state._replace(left=0, released=True)

    def _may_heal(self, state: Beliefs, node: Node) -> bool:
        """Tell whether this renewal may heal a node.

        What the holder has heard may be less than the nodes have said; so only the nodes that it
        heals are surely among those that it counts. Prompt ones are all heard.
        """
        if not (self.heals and node.extend == LACKS and not node.heal):
            return False
        if state.released or not (state.left or self.late_votes):
            return False
        if self.prompt:
            said = [each.extend for each in state.nodes]
            return SENT not in [n.extend for n in state.nodes if not (n.hung or n.guard)] and (
                said.count(LACKS) + said.count(OTHERS) < self.majority
            )
        counted = 1 + sum(each.heal != NONE for each in state.nodes)
        return counted < self.majority

    def _count(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        """A majority has kept the lease or healed, and the deadline has not passed."""
        yes = sum(node.extend == KEPT or node.heal == HEALED for node in state.nodes)
        left = max(state.left, self.ttl - state.age)
        if state.age < 0 or yes < self.majority or state.released:
            return
        if not state.left and not self.late_votes:
            return
        if left == state.left and state.last == OURS:
            return
        wrong = ""
        if state.rival == "holds":
            wrong = "two holders"
        elif state.last == THEIRS and state.token >= FENCE:
            wrong = "tokens fall"
        yield f"renewed for {left}", state._replace(left=left, last=OURS, wrong=wrong)

    def _rival(self, state: Beliefs) -> Iterator[tuple[str, Beliefs]]:
        if not self.rivals:
            return
        if not state.rival:
            nodes = tuple(node._replace(grant=-1) for node in state.nodes)
            yield "the rival asks", state._replace(nodes=nodes, rival="asks", woken=state.released)
        if state.rival in ("asks", "holds"):
            yield "the rival ends", state._replace(rival="over", since=0)
        if state.rival != "asks":
            return
        granted = [i for i, node in enumerate(state.nodes) if node.grant > 0]
        for count in range(self.majority, len(granted) + 1):
            for heard in combinations(granted, count):
                yield from self._held(state, heard)

    def _held(self, state: Beliefs, heard: tuple[int, ...]) -> Iterator[tuple[str, Beliefs]]:
        """The rival holds: its token is the largest number, and all nodes it heard were raised."""
        token = max(state.nodes[i].grant for i in heard)
        for i in heard:
            node = state.nodes[i]
            if node.grant < token:
                if node.keys[-1][0] != THEIRS:
                    return
                state = _put(state, i, node._replace(counter=max(node.counter, token)))
        wrong = "two holders" if state.left else "tokens fall" if token <= FENCE else ""
        yield (
            f"the rival holds {token}",
            state._replace(rival="holds", token=token, last=THEIRS, wrong=wrong),
        )

    @remembered
    def _node(
        self, node: Node, *, released: bool, over: bool, woken: bool
    ) -> Iterator[tuple[str, Node]]:
        """What one node may do next with what is on its way to it; see ``Beliefs``."""
        if node.hung:
            return
        owners = [who for who, _ in node.keys]
        if node.extend == SENT and not (self.prompt and node.guard):
            if all(who == OURS for who in owners):
                yield "kept", self._written(node)._replace(extend=KEPT)
            elif THEIRS in owners:
                yield "gone", node._replace(extend=OTHERS)
            else:
                yield "free", node._replace(extend=LACKS)
        if node.heal == SENT:
            done, wrote = self._healed(node, owners)
            yield "healed" if wrote else "refused", done._replace(heal=HEALED if wrote else REFUSED)
        if node.late:
            done, wrote = self._healed(node, owners)
            yield f"a late heal, {wrote}", done._replace(late=False)
        if node.grant == -1 and not node.guard:
            who = owners[-1]
            if who == FREE or (woken and who == OURS):
                number = node.counter + 1
                keys = (*node.keys[:-1], (THEIRS, self.ttl))
                yield f"grant {number}", node._replace(keys=keys, counter=number, grant=number)
        yield from self._freed(node, {OURS: released, THEIRS: over})

    def _freed(self, node: Node, ended: dict[str, bool]) -> Iterator[tuple[str, Node]]:
        """A release arrives, of one that is over."""
        for who, is_over in ended.items():
            keys = tuple((FREE, 0) if key[0] == who else key for key in node.keys)
            if is_over and keys != node.keys:
                yield f"{who} freed", node._replace(keys=keys)

    def _healed(self, node: Node, owners: list[str]) -> tuple[Node, bool]:
        """A HEAL is carried out: the node after it, and whether it said yes."""
        if node.guard and not self.under_guard:
            return node, False
        if THEIRS in owners and self.partly and FREE in owners:
            keys = tuple((OURS, self.ttl) if key[0] == FREE else key for key in node.keys)
            return node._replace(keys=keys), True
        if THEIRS in owners and not self.steals:
            return node, False
        return self._written(node)._replace(counter=max(node.counter, self.number)), True

    def _written(self, node: Node) -> Node:
        return node._replace(keys=((OURS, self.ttl),) * self.names)

    def _restart(self, state: Beliefs, node: Node) -> Iterator[tuple[str, Node]]:
        """A node loses its keys. What is on its way stays so: perhaps it was only emptied."""
        if not (state.restarts and node.restarts) or node.hung:
            return
        whole = all(each.keys[0][0] == OURS for each in state.nodes if not each.hung)
        renewed = self._is_settled(state) and not any(each.guard for each in state.nodes)
        if (self.forget or self.prompt) and not whole and not (self.prompt and renewed):
            return
        yield (
            "emptied",
            node._replace(
                keys=((FREE, 0),) * self.names,
                guard=self.guard,
                counter=0 if self.forget else node.counter,
                restarts=node.restarts - 1,
            ),
        )


def _put(state: Beliefs, i: int, node: Node) -> Beliefs:
    return Beliefs((*state.nodes[:i], node, *state.nodes[i + 1 :]), *state[1:])


@cache
def _ticked(node: Node) -> Node:
    """The node a tick later."""
    keys = tuple((who, left - 1) if left > 1 else (FREE, 0) for who, left in node.keys)
    return node._replace(keys=keys, guard=max(0, node.guard - 1))


@cache
def _forgotten(node: Node) -> Node:
    """The renewal at hand is over for its holder; a HEAL of it may yet arrive."""
    return node._replace(extend=NONE, heal=NONE, late=node.late or node.heal == SENT)


# -- what ends a lease, and a heal that is on its way ---------------------------------------------

Message = tuple[str, str, tuple[int, ...]]  # what is to be done, for which nonce, with which names
Queue = tuple[Message, ...]  # what one connection carries, in order
GIVER, ADOPTERS = "H", ("B", "C")
TAKING = ("grant", "heal")


class Place(NamedTuple):
    """One node in ``Order``.

    Attributes:
        values: of each name, the nonce in its key; or "", "next", "rest", "done", "rival".
        queues: what is on its way, for each connection.
        said_free: whether it said so to the newest renewal.
        touched: whether the holder knows that it may have the keys.
        unheard: how many replies to heals the holder has not heard.
        swapped: the adopters that it said yes to.
    """

    values: tuple[str, ...]
    queues: tuple[Queue, ...] = ()
    said_free: bool = False
    touched: bool = True
    unheard: int = 0
    swapped: tuple[str, ...] = ()

    @property
    def heals(self) -> int:
        """How many messages are on their way that put the holder's key there."""
        return sum(what in TAKING for queue in self.queues for what, _, _ in queue)


class Order(NamedTuple):
    """All there is at a moment, without time.

    Attributes:
        phase: of the lease: "held", "ended", "handed over".
        freed: whether the last of several names was freed, and the others are still held.
        alive: whether the holder's process is.
        rounds: how many renewals may yet begin.
        breaks: how many connections may yet break.
        restarts: how many nodes may yet lose their keys, their guard over before the lease is.
        adopters: what each does: "", "asks", "owns", "over".
        owners: how many of them have had the lease.
        replaced: whether a heal took the place of what it may not replace.
    """

    nodes: tuple[Place, ...]
    phase: str = "held"
    freed: bool = False
    alive: bool = True
    rounds: int = 1
    breaks: int = 0
    restarts: int = 0
    adopters: tuple[str, ...] = ("",)
    owners: int = 0
    replaced: bool = False


class Ordered(NamedTuple):
    """The rules of ``Order``; the defaults are ours.

    Attributes:
        end: how the lease ends: "release", "rest", "complete", "hand over".
        names: how many it has.
        partly: whether the last name may be freed before that.
        undoes: how an end meets a heal without a reply. "behind": it goes to that node on the
            heal's connection, behind it. "waits": nothing ends before the replies. "votes": it
            overtakes the heal, and the holder undoes the heal when it hears its reply. "never".
        joins: whether a node is touched from before its heal is written.
        one: whether a node is healed only if it had replied to the grant, and to each heal before,
            when it said free.
        each: whether the end goes behind each such heal, or behind one of them.
        stops: whether no heal is written once the lease has ended.
        whole: whether it heals the freed name, too.
        blind: whether a heal takes a key without a nonce for none.
        dies: whether the holder's process may end when the lease has.
        late_grant: whether the third node's grant to the holder may be on its way still.
        rivals: whether others take a name that is free, or leave one that rests.
        adopters: how many have the handle.
        rounds, breaks, restarts: how many there are.
    """

    end: str = "release"
    names: int = 1
    partly: bool = False
    undoes: str = "behind"
    joins: bool = True
    one: bool = True
    each: bool = True
    stops: bool = True
    whole: bool = False
    blind: bool = False
    dies: bool = False
    late_grant: bool = False
    rivals: bool = True
    adopters: int = 1
    rounds: int = 2
    breaks: int = 0
    restarts: int = 0

    def starts(self) -> Iterator[Order]:
        """Two nodes have the lease; the third one has refused it, or its grant is on its way."""
        has, lacks = Place((GIVER,) * self.names), Place(("",) * self.names, touched=False)
        granted = _sent(lacks, ("grant", GIVER, self._all))._replace(touched=True)
        for third in (lacks, granted) if self.late_grant else (lacks,):
            yield Order(
                tuple(sorted((has, has, third))),
                rounds=self.rounds,
                breaks=self.breaks,
                restarts=self.restarts,
                adopters=("",) * self.adopters,
            )

    @property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.names))

    def wrong(self, state: Order) -> str:
        """Tell which promise is broken."""
        if state.replaced:
            return "a key is replaced"
        if state.owners > 1:
            return "two owners"
        if any(node.queues or (node.unheard and state.alive) for node in state.nodes):
            return ""
        over = {(GIVER, name) for name in range(self.names) if state.phase == "ended"}
        if state.freed:
            over.add((GIVER, self.names - 1))
        if state.owners and "owns" not in state.adopters and "asks" not in state.adopters:
            over |= {(who, name) for who in (GIVER, *ADOPTERS) for name in range(self.names)}
        has = {(value, name) for node in state.nodes for name, value in enumerate(node.values)}
        return "a name stays taken" if has & over else ""

    def steps(self, state: Order) -> Iterator[tuple[str, Order]]:
        """Yield what may happen next."""
        for label, after in self._steps(state):
            yield label, Order(tuple(sorted(after.nodes)), *after[1:])

    def _steps(self, state: Order) -> Iterator[tuple[str, Order]]:
        if state.alive:
            yield from self._renewing(state)
            yield from self._ending(state)
        for who, what in zip(ADOPTERS, state.adopters, strict=False):
            if state.phase == "handed over":
                yield from self._adopting(state, who, what)
        for i, node in enumerate(state.nodes):
            if i and node == state.nodes[i - 1]:
                continue  # its twin has done the same
            for label, after, replaced in self._carried_out(node):
                yield label, _placed(state, i, after)._replace(replaced=replaced)
            for label, after in self._taken(node):
                yield label, _placed(state, i, after)
            if state.restarts and state.phase == "held":
                after = node._replace(values=("",) * self.names)
                yield "restarted", _placed(state, i, after)._replace(restarts=state.restarts - 1)
            for queue in node.queues if state.breaks and state.alive else ():
                after = _broken(node, queue)
                yield "broken", _placed(state, i, after)._replace(breaks=state.breaks - 1)

    @remembered
    def _taken(self, node: Place) -> Iterator[tuple[str, Place]]:
        """A rival takes a name that is free, or has left one that rests."""
        for name in range(self.names):
            if self.rivals and node.values[name] in ("", "next"):
                for value in ("rival", "rest"):
                    yield f"a rival: {value}", _valued(node, name, value)

    # -- the holder ---

    def _held(self, state: Order) -> tuple[int, ...]:
        """The names that the holder still has."""
        return tuple(range(self.names - (state.freed and not self.whole)))

    def _renewing(self, state: Order) -> Iterator[tuple[str, Order]]:
        held = self._held(state)
        for i, node in enumerate(state.nodes):
            renews = state.rounds and (state.phase == "held" or not self.stops)
            owes = self.one and (node.heals or node.unheard)
            if renews and not owes and not any(node.values[name] for name in held):
                nodes = [each._replace(said_free=False) for each in state.nodes]
                nodes[i] = node._replace(said_free=True)
                yield "free", state._replace(nodes=tuple(nodes), rounds=state.rounds - 1)
            if node.said_free and (state.phase == "held" or not self.stops):
                heal = (("heal", GIVER, held),)
                after = node._replace(
                    queues=tuple(sorted((*node.queues, heal))),
                    said_free=False,
                    touched=node.touched or self.joins,
                )
                yield "heal", _placed(state, i, after)
            if node.unheard:
                after = node._replace(unheard=node.unheard - 1)
                if state.phase != "held" and self.undoes == "votes":
                    after = _sent(after, ("free", GIVER, self._all))
                elif state.freed and self.undoes == "votes":
                    after = _sent(after, ("free", GIVER, (self.names - 1,)))
                yield "heard", _placed(state, i, after)

    def _ending(self, state: Order) -> Iterator[tuple[str, Order]]:
        if state.phase != "held":
            if self.dies:
                yield "the holder dies", state._replace(alive=False)
            return
        if self.undoes == "waits" and any(node.heals for node in state.nodes):
            return
        if self.partly and not state.freed:
            freed = self._told(state, ("free", GIVER, (self.names - 1,)))
            yield "partly freed", freed._replace(freed=True)
        if self.end == "hand over":
            after = self._told(state, ("free", GIVER, self._held(state)), behind_only=True)
            yield "handed over", after._replace(phase="handed over")
        else:
            after = self._told(state, (self.end, GIVER, self._held(state)))
            yield "ended", after._replace(phase="ended")

    def _told(self, state: Order, end: Message, *, behind_only: bool = False) -> Order:
        """Tell the nodes that the lease has ended; those where a heal may be, or that have it."""
        nodes = []
        for node in state.nodes:
            healing = [queue for queue in node.queues if queue[0][0] in TAKING]
            if healing and self.undoes == "behind" and node.touched:
                for queue in healing if self.each else healing[:1]:
                    node = _moved(node, queue, (*queue, end))  # noqa: PLW2901
            elif node.touched and not behind_only:
                node = _sent(node, end)  # noqa: PLW2901
            nodes.append(node)
        return state._replace(nodes=tuple(nodes))

    # -- an adopter ---

    def _adopting(self, state: Order, who: str, what: str) -> Iterator[tuple[str, Order]]:
        at, every = ADOPTERS.index(who), self._all
        if not what and (not at or state.adopters[0]):  # they are alike: one is first
            nodes = [_sent(node, ("swap", who, every)) for node in state.nodes]
            yield f"{who} asks", self._adopter(state, at, "asks", nodes)
        yes = sum(who in node.swapped for node in state.nodes)
        if what == "asks" and yes > len(state.nodes) // 2:
            after = self._adopter(state, at, "owns", state.nodes)
            yield f"{who} owns", after._replace(owners=state.owners + 1)
        elif what == "asks":
            nodes = [_undone(node, who, ("return", who, every)) for node in state.nodes]
            yield f"{who} gives back", self._adopter(state, at, "over", nodes)
        if what == "owns":
            nodes = [_undone(node, who, ("free", who, every)) for node in state.nodes]
            for i, node in enumerate(nodes):
                if who not in node.swapped:
                    nodes[i] = _sent(node, ("free", GIVER, every))
            yield f"{who} ends", self._adopter(state, at, "over", nodes)

    def _adopter(self, state: Order, at: int, what: str, nodes: Iterable[Place]) -> Order:
        adopters = (*state.adopters[:at], what, *state.adopters[at + 1 :])
        return state._replace(adopters=adopters, nodes=tuple(nodes))

    # -- a node ---

    @remembered
    def _carried_out(self, node: Place) -> Iterator[tuple[str, Place, bool]]:
        """What a node may carry out next: the first message of a connection."""
        for queue in node.queues:
            (what, nonce, names), after = queue[0], _moved(node, queue, queue[1:])
            values, replaced = list(node.values), False
            mine = [name for name in names if values[name] == nonce]
            if what == "grant":
                if not any(node.values):
                    after = _all_valued(after, names, GIVER)
            elif what == "heal":
                allowed = {"", GIVER, *(("next", "rest", "done") if self.blind else ())}
                found = {values[name] for name in names}
                after = after._replace(unheard=after.unheard + (self.undoes == "votes"))
                if found <= allowed:
                    replaced = not found <= {"", GIVER}
                    after = _all_valued(after, names, GIVER)
            elif what == "swap":
                if all(values[name] == GIVER for name in names):
                    after = _all_valued(after, names, nonce)
                    after = after._replace(swapped=tuple(sorted((*node.swapped, nonce))))
            elif what == "release":
                yield "reserved", _all_valued(after, mine, "next"), False
                after = _all_valued(after, mine, "")
            else:
                left = {"free": "", "rest": "rest", "complete": "done", "return": GIVER}[what]
                after = _all_valued(after, mine, left)
            yield f"{what} {nonce} {names}", after, replaced


def _placed(state: Order, i: int, node: Place) -> Order:
    return Order((*state.nodes[:i], node, *state.nodes[i + 1 :]), *state[1:])


def _valued(node: Place, name: int, value: str) -> Place:
    return node._replace(values=(*node.values[:name], value, *node.values[name + 1 :]))


def _all_valued(node: Place, names: Iterable[int], value: str) -> Place:
    for name in names:
        node = _valued(node, name, value)
    return node


def _sent(node: Place, message: Message) -> Place:
    """The node with a message on its way, on a connection that carries nothing else."""
    return node._replace(queues=tuple(sorted((*node.queues, (message,)))))


def _undone(node: Place, who: str, message: Message) -> Place:
    """The node with an undo on its way, behind what it undoes."""
    for queue in node.queues:
        if queue[0][:2] == ("swap", who):
            return _moved(node, queue, (*queue, message))
    return _sent(node, message)


def _moved(node: Place, queue: Queue, after: Queue) -> Place:
    """The node with another queue in the place of one; an empty one is none."""
    queues = list(node.queues)
    queues.remove(queue)
    return node._replace(queues=tuple(sorted((*queues, after) if after else queues)))


def _broken(node: Place, queue: Queue) -> Place:
    """The node after a connection broke: its holder sends the undos once more."""
    node = _moved(node, queue, ())
    for message in queue:
        if message[0] not in (*TAKING, "swap"):
            node = _sent(node, message)
    return node


# -- a key that somebody deletes ------------------------------------------------------------------


class Key(NamedTuple):
    """One node in ``ByHand``.

    Attributes:
        there: whether it has the key.
        extend: its reply to the newest renewal: "sent", "kept", "free", "lost".
        heal: the HEAL of that: "sent", "healed".
        late: whether that of an earlier renewal is still on its way.
    """

    there: bool
    extend: str = NONE
    heal: str = NONE
    late: bool = False


class ByHand(NamedTuple):
    """All there is at a moment.

    Attributes:
        rounds: how many renewals may yet begin.
        deleted: whether somebody has deleted all keys.
        fresh: whether the renewal at hand began after that.
        revived: whether that one has prolonged the lease.
        lost: whether the holder knows that the lease is lost.
    """

    nodes: tuple[Key, ...]
    rounds: int
    deleted: bool = False
    fresh: bool = False
    revived: bool = False
    lost: bool = False


class Deleted(NamedTuple):
    """The rules of ``ByHand``; the defaults are ours.

    Attributes:
        kept: how many nodes must say that they have the lease, before any is healed.
        outvoted: whether it heals although a majority says that the lease is gone.
        hears: whether each node has replied to EXTEND, or is given up, before any is healed.
        losses: whether replies get lost.
        midway: whether the keys may be deleted while a renewal is on its way.
        has: how many nodes have the lease in the beginning.
        spares: how many nodes nobody deletes the key on.
    """

    size: int = 3
    has: int = 2
    spares: int = 0
    kept: int = 1
    outvoted: bool = False
    hears: bool = True
    losses: bool = True
    midway: bool = False
    rounds: int = 3

    def starts(self) -> Iterator[ByHand]:
        """So many nodes have the lease."""
        nodes = sorted(Key(i < self.has) for i in range(self.size))
        yield ByHand(tuple(nodes), self.rounds)

    def wrong(self, state: ByHand) -> str:
        """Tell whether the lease went on though all keys had been deleted."""
        return "revived" if state.revived else ""

    def steps(self, state: ByHand) -> Iterator[tuple[str, ByHand]]:
        """Yield what may happen next."""
        for label, after in self._steps(state):
            yield label, after._replace(nodes=tuple(sorted(after.nodes)))

    def _steps(self, state: ByHand) -> Iterator[tuple[str, ByHand]]:
        majority, nodes = self.size // 2 + 1, state.nodes
        said = [node.extend for node in nodes]
        under_way = set(said) != {NONE} or any(node.late for node in nodes)
        if not state.deleted and (self.midway or not under_way):
            for spared in combinations(range(self.size), self.spares):
                after = tuple(
                    n._replace(there=n.there and i in spared) for i, n in enumerate(nodes)
                )
                yield f"deleted but {self.spares}", state._replace(nodes=after, deleted=True)
        if state.lost:
            return
        after = tuple(Key(n.there, NONE, NONE, n.late or n.heal == SENT) for n in nodes)
        if set(said) != {NONE}:
            yield "it ends", state._replace(nodes=after)
        elif state.rounds:
            after = tuple(node._replace(extend=SENT) for node in after)
            yield (
                "a renewal",
                state._replace(nodes=after, rounds=state.rounds - 1, fresh=state.deleted),
            )
        if said.count(LACKS) >= majority and not self.outvoted:
            yield "lost", state._replace(lost=True)
        yes = sum(node.extend == KEPT or node.heal == HEALED for node in nodes)
        if yes >= majority and state.fresh:
            yield "prolonged", state._replace(revived=True)
        may = self.outvoted or said.count(LACKS) < majority
        may = may and said.count(KEPT) >= self.kept and not (self.hears and SENT in said)
        for i, node in enumerate(nodes):
            for label, after_it in self._node(node, may=may):
                yield label, state._replace(nodes=(*nodes[:i], after_it, *nodes[i + 1 :]))

    def _node(self, node: Key, *, may: bool) -> Iterator[tuple[str, Key]]:
        if node.extend == SENT:
            said = KEPT if node.there else LACKS
            yield said, node._replace(extend=said)
            if self.losses:
                yield "lost reply", node._replace(extend="lost")
        if node.extend == LACKS and not node.heal and may:
            yield "heal", node._replace(heal=SENT)
        if node.heal == SENT:
            yield "healed", node._replace(there=True, heal=HEALED)
        if node.late:
            yield "a late heal", node._replace(there=True, late=False)
