"""A model of what one nonce may do, for the exhaustive search of ``heal``.

The nonce of a lease names its keys, wakes a waiter, undoes a heal and is in a handle. Here one
lease, N, meets all who use these: its holder heals it, gives it away, releases it or lets it rest;
adopters take it over; an operator takes it away; waiters are woken, ask, give up and pass their
wake-up on. Messages are as late as they like. Those of one sender with one nonce to one node keep
their order, as an undo that goes behind a heal does. All others overtake each other.

There is no clock, but three moments: a ttl that is over, a min_hold that is over, and a reservation
that ends. Nodes are alike, so their order is no part of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

from .heal import remembered

SIZE, MAJORITY = 3, 2
FREE, NEXT, REST = "", "next", "rest"  # values without a nonce
GIVER, REVOKER = "N", "R"  # nonces
ADOPTERS, WAITERS = ("M", "O"), ("V", "W")
HELD, GIVEN, ADOPTED, TOLD, LOST, LETS_REST, OVER = (
    *("held", "given", "adopted", "told", "lost", "rests", "over"),
)
IDLE, BLOCKED, WOKEN, ASKS, OWNS, ENDED = "idle", "blocked", "woken", "asks", "owns", "ended"
SENT, REPLIED, UNHEARD = "sent", "replied", "unheard"  # a heal at a node

TWO: Final = "two believers"
OPENED: Final = "what lives is opened"
DESTROYED: Final = "a handle is destroyed"
STAYS: Final = "a name stays taken"
SHORT: Final = "min_hold is cut short"

# What is to be done, for which nonce, and one thing more: of an attempt its wake-up, of an adoption
# and its undo the giver's nonce, of what wakes "wakes", of a revoke "now" or "".
Message = tuple[str, str, str]
Wire = tuple[str, tuple[Message, ...]]  # whose, and what it carries, in order


def mark(nonce: str) -> str:
    """Return the value that a revoke puts in the place of one with this nonce."""
    return f"revoked {nonce}"


class Node(NamedTuple):
    """One node.

    Attributes:
        value: of the name: a nonce, NEXT, REST, a mark, or FREE.
        wakeup: the nonce in the wait queue, or "".
        wires: what is on its way.
        heal: of N: "", SENT, REPLIED, or UNHEARD: nobody will hear the reply.
        touched: whether the holder knows that it may have the key.
        had: whether it has the lease, or had it, and neither its time nor an undo ended that.
        yes: the nonces that it granted the name to.
        excused: whether an operator or a restart took the lease from it.
        guarded: whether it has no vote, since it restarted.
    """

    value: str = GIVER
    wakeup: str = ""
    wires: tuple[Wire, ...] = ()
    heal: str = ""
    touched: bool = True
    had: bool = True
    yes: tuple[str, ...] = ()
    excused: bool = False
    guarded: bool = False


class State(NamedTuple):
    """All there is at a moment.

    Attributes:
        phase: of the lease N.
        over: whether its ttl is.
        resting: whether its min_hold is not over.
        adopters: what each does.
        waiters: what each does, and the nonce that woke it.
        revokes, restarts, heals: how many there may yet be.
        now: whether a lock was taken away "now", so that a second believer is allowed.
    """

    nodes: tuple[Node, ...]
    phase: str = HELD
    over: bool = False
    resting: bool = False
    adopters: tuple[str, ...] = ()
    waiters: tuple[tuple[str, str], ...] = ()
    revokes: int = 0
    restarts: int = 0
    heals: int = 1
    now: bool = False
    wrong: str = ""


class Waking(NamedTuple):
    """The rules; the defaults are ours.

    Attributes:
        rollback_wakes: whether undoing a heal wakes: "", "always", or "kept": only one that was
            kept for a node that did not reply, and is sent later.
        passes_by_release: whether a waiter that needs its wake-up no longer passes it on by a
            command that deletes what has this nonce.
        opens: what a wake-up opens beside a name that is free or reserved: "its own" nonce,
            "nothing", or "adopted": also what was adopted.
        swaps: whether an adoption replaces the nonce.
        returns: whether an adopter without a majority puts the giver's nonce back, or deletes.
        rest_knows_mark: whether a release with min_hold frees what was taken away, too.
        now_wakes_by_own: whether what is taken away "now" wakes with a nonce of the revoke's.
        mark_deletes: whether taking away deletes the key, also without "now".
        rest_wakes: whether a release with min_hold wakes.
        adopters, waiters, revokes, restarts, heals: how many there are.
        now: whether the revokes are "now".
        rests: whether the lease has a min_hold.
        looks: whether a waiter also asks without a wake-up.
        wide: whether the lease may begin on all nodes, too.
    """

    rollback_wakes: str = ""
    passes_by_release: bool = False
    opens: str = "its own"
    swaps: bool = True
    returns: bool = True
    rest_knows_mark: bool = True
    now_wakes_by_own: bool = True
    mark_deletes: bool = False
    rest_wakes: bool = False
    adopters: int = 1
    waiters: int = 1
    revokes: int = 0
    restarts: int = 0
    heals: int = 1
    now: bool = False
    rests: bool = False
    looks: bool = False
    wide: bool = False

    # -- the beginning and the promises ---

    def starts(self) -> Iterator[State]:
        """A majority has the lease, or all; the waiters are blocked."""
        has, lacks = Node(), Node(FREE, touched=False, had=False)
        for third in (lacks, has) if self.wide else (lacks,):
            yield self._state(
                State(
                    (has, has, third),
                    adopters=(IDLE,) * self.adopters,
                    waiters=((BLOCKED, ""),) * self.waiters,
                    revokes=self.revokes,
                    restarts=self.restarts,
                    heals=self.heals,
                )
            )

    def _state(self, state: State) -> State:
        """Forget what decides nothing any more; nodes are alike, so their order tells nothing."""
        asking = {ADOPTERS[j] for j, what in enumerate(state.adopters) if what in (ASKS, OWNS)}
        asking |= {WAITERS[j] for j, (what, _) in enumerate(state.waiters) if what == ASKS}
        blocked = any(what in (BLOCKED, WOKEN) for what, _ in state.waiters)
        nodes = [_settled(node, frozenset(asking), blocked) for node in state.nodes]
        return State(tuple(sorted(nodes)), *state[1:])

    def wrong(self, state: State) -> str:
        """Tell which promise is broken, or ""."""
        if state.wrong:
            return state.wrong
        owners = [what for what, _ in state.waiters].count(OWNS)
        believers = (state.phase == HELD) + state.adopters.count(OWNS) + owners
        if believers > 1 and not self._explained(state):
            return TWO
        if state.phase == GIVEN and not state.over and not self._is_good(state):
            return DESTROYED
        if owners and state.resting and not self._explained(state):
            return SHORT
        return STAYS if self._stays(state) else ""

    def _explained(self, state: State) -> bool:
        """Tell whether so many nodes lost the lease by "now" that a second believer is allowed."""
        left = sum(node.had and not node.excused for node in state.nodes)
        return state.now and left < MAJORITY

    def _is_good(self, state: State) -> bool:
        """Tell whether a handle can be adopted, as far as nobody took the lease from the nodes."""
        nonces = (GIVER, *ADOPTERS)
        return sum(n.value in nonces or n.excused for n in state.nodes) >= MAJORITY

    def _stays(self, state: State) -> bool:
        """Tell whether a name is taken that nobody has, nothing is on its way, no ttl is over."""
        waits = any(what in (WOKEN, ASKS) for what, _ in state.waiters)
        busy = any(n.wires or n.heal in (SENT, REPLIED) for n in state.nodes)
        if busy or waits or state.over or ASKS in state.adopters or OWNS in state.adopters:
            return False
        gone = {WAITERS[j] for j, (what, _) in enumerate(state.waiters) if what == ENDED}
        if state.phase == OVER or (state.phase == LETS_REST and not state.resting):
            gone |= {GIVER, mark(GIVER)}
        if state.phase == ADOPTED and len(state.adopters) == 1:  # a second one may put N back
            gone |= {GIVER, *ADOPTERS, mark(GIVER), *map(mark, ADOPTERS)}
        late = (GIVER, mark(GIVER))  # a heal whose reply nobody heard may be later than the end
        return any(
            n.value in gone and not (n.heal == UNHEARD and n.value in late) for n in state.nodes
        )

    # -- what may happen ---

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may happen next."""
        for label, after in self._steps(state):
            yield label, self._state(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._time(state)
        yield from self._holder(state)
        yield from self._healing(state)
        for at in range(self.adopters):
            yield from self._adopter(state, at)
        for at in range(self.waiters):
            yield from self._waiter(state, at)
        yield from self._operator(state)
        for i, node in enumerate(state.nodes):
            if i and node == state.nodes[i - 1]:
                continue  # its twin has done the same
            for label, after in self._arrivals(node):
                yield label, self._arrived(state, i, after)
            if state.restarts:
                empty = node._replace(
                    value=FREE, wakeup="", yes=(), excused=True, guarded=not state.over
                )
                yield "restarted", _put(state, i, empty)._replace(restarts=state.restarts - 1)

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        """The ttl of the lease, a min_hold or a reservation is over."""
        if not state.over and state.phase in (HELD, GIVEN, TOLD):
            phase = LOST if state.phase == HELD else state.phase
            nodes = tuple(node._replace(guarded=False) for node in state.nodes)
            yield "the ttl is over", state._replace(over=True, phase=phase, nodes=nodes)
        if state.resting:
            yield "min_hold is over", state._replace(resting=False)
        for i, node in enumerate(state.nodes):
            if i and node == state.nodes[i - 1]:
                continue
            ends = node.value == NEXT or (node.value == REST and not state.resting)
            if ends or (state.over and node.value in (GIVER, mark(GIVER))):
                yield f"{node.value} ends", _put(state, i, node._replace(value=FREE, had=False))

    def _arrived(self, state: State, i: int, after: Node) -> State:
        """The state when a node has carried out a message; what lives is opened by nobody."""
        before, now = state.nodes[i].value, after.value
        lives = {ADOPTERS[j] for j, what in enumerate(state.adopters) if what == OWNS}
        lives |= {WAITERS[j] for j, (what, _) in enumerate(state.waiters) if what == OWNS}
        if not state.over and state.phase in (HELD, GIVEN):
            lives.add(GIVER)
        opened = now != before and before in lives and now in WAITERS
        return _put(state, i, after)._replace(wrong=OPENED if opened else "")

    # -- the holder ---

    def _holder(self, state: State) -> Iterator[tuple[str, State]]:
        marked = any(node.value == mark(GIVER) for node in state.nodes)
        if state.phase == HELD:
            yield "handle()", state._replace(phase=GIVEN)
            if marked:
                yield "the holder is told", state._replace(phase=TOLD)
        if state.phase in (HELD, TOLD, LOST):
            free = _told(state, GIVER, ("free", GIVER, "wakes"), lambda _: True)
            yield "released", free._replace(phase=OVER)
            if self.rests and not state.over:
                wakes = "wakes" if self.rest_wakes else ""
                rest = _told(state, GIVER, ("rest", GIVER, wakes), lambda node: node.touched)
                yield "released with min_hold", rest._replace(phase=LETS_REST, resting=True)

    def _healing(self, state: State) -> Iterator[tuple[str, State]]:
        """A node is healed that said free; a lease that has ended meanwhile is rolled back."""
        for i, node in enumerate(state.nodes):
            if i and node == state.nodes[i - 1]:
                continue
            if state.phase == HELD and state.heals and node.value == FREE and not node.heal:
                after = _sent(node, GIVER, ("heal", GIVER, ""))
                after = after._replace(heal=SENT, touched=True)
                yield "heal", _put(state, i, after)._replace(heals=state.heals - 1)
            for was, heard in ((REPLIED, True), (SENT, False), (REPLIED, False)):
                if node.heal != was:
                    continue
                if state.phase == HELD:
                    after = node._replace(heal="" if heard else UNHEARD)
                    yield "heard" if heard else "unheard", _put(state, i, after)
                else:
                    wakes = self.rollback_wakes in ("always", "" if heard else "kept")
                    wakes = wakes and bool(self.rollback_wakes)
                    undo = ("free", GIVER, "wakes" if wakes else "")
                    after = _sent(node._replace(heal=""), GIVER, undo)
                    yield f"rolled back, {heard=}", _put(state, i, after)

    # -- an adopter ---

    def _adopter(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        what, nonce = state.adopters[at], ADOPTERS[at]
        before = IDLE in state.adopters[:at]  # they are alike: one is first
        if what == IDLE and not before and state.phase in (GIVEN, ADOPTED):
            after = _told(state, nonce, ("swap", nonce, GIVER), lambda _: True)
            yield f"{nonce} asks", _with_adopter(after, at, ASKS)
        if what == ASKS:
            if sum(nonce in node.yes for node in state.nodes) >= MAJORITY:
                yield f"{nonce} owns", _with_adopter(state, at, OWNS)._replace(phase=ADOPTED)
            undo = ("return", nonce, GIVER) if self.returns else ("free", nonce, "")
            after = _told(state, nonce, undo, lambda _: True)
            yield f"{nonce} gives back", _with_adopter(after, at, ENDED)
        if what == OWNS:
            after = _told(state, nonce, ("free", nonce, "wakes"), lambda _: True)
            # Its word about the giver's nonce travels beside the giver's.
            after = _told(
                after, f"{nonce} for N", ("free", GIVER, ""), lambda node: nonce not in node.yes
            )
            yield f"{nonce} releases", _with_adopter(after, at, ENDED)

    # -- a waiter ---

    def _waiter(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        (what, wakeup), nonce = state.waiters[at], WAITERS[at]
        if at and state.waiters[at - 1] == (BLOCKED, "") and what == BLOCKED:
            return  # they are alike: one is first
        if what == BLOCKED:
            for i, node in enumerate(state.nodes):
                if node.wakeup and node not in state.nodes[:i]:
                    after = _put(state, i, node._replace(wakeup=""))
                    yield (
                        f"{nonce} is woken by {node.wakeup}",
                        _with_waiter(after, at, WOKEN, node.wakeup),
                    )
            if self.looks and any(node.value == FREE for node in state.nodes):
                after = _told(state, nonce, ("ask", nonce, ""), lambda _: True)
                yield f"{nonce} looks, and asks", _with_waiter(after, at, ASKS, "")
        if what == WOKEN:
            after = _told(state, nonce, ("ask", nonce, wakeup), lambda _: True)
            yield f"{nonce} asks", _with_waiter(after, at, ASKS, wakeup)
            passed = ("free" if self.passes_by_release else "push", wakeup, "wakes")
            after = _told(state, f"{nonce} for {wakeup}", passed, lambda _: True)
            yield f"{nonce} is cancelled", _with_waiter(after, at, ENDED, "")
        if what == ASKS and sum(nonce in node.yes for node in state.nodes) >= MAJORITY:
            yield f"{nonce} owns", _with_waiter(state, at, OWNS, "")
        if what in (ASKS, OWNS):
            after = _told(state, nonce, ("free", nonce, "wakes"), lambda _: True)
            yield f"{nonce} lets go", _with_waiter(after, at, ENDED, "")

    # -- an operator ---

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.revokes:
            return
        for nonce in sorted({node.value for node in state.nodes} & {GIVER, *ADOPTERS}):
            after = _told(
                state, REVOKER, ("revoke", nonce, "now" if self.now else ""), lambda _: True
            )
            yield (
                f"{nonce} is revoked",
                after._replace(revokes=state.revokes - 1, now=state.now or self.now),
            )

    # -- a node ---

    @remembered
    def _arrivals(self, node: Node) -> Iterator[tuple[str, Node]]:
        """What a node may carry out next: the first message of a wire."""
        for at, (whose, messages) in enumerate(node.wires):
            rest = ((whose, messages[1:]),) if messages[1:] else ()
            left = node._replace(wires=(*node.wires[:at], *rest, *node.wires[at + 1 :]))
            what, nonce, more = messages[0]
            for after in self._carried_out(left, what, nonce, more):
                yield f"{what} {nonce} {more} of {whose}: {after.value}", after

    def _carried_out(self, node: Node, what: str, nonce: str, more: str) -> Iterator[Node]:
        if what in ("heal", "swap", "ask"):
            yield self._taken(node, what, nonce, more)
        elif what == "revoke":
            yield self._revoked(node, nonce, now=bool(more))
        elif what == "return":
            yield node._replace(value=more) if node.value == nonce else node
        else:
            node = node._replace(wakeup=nonce) if more else node
            yield from self._freed(node, what, nonce, reserves=more != "")

    def _taken(self, node: Node, what: str, nonce: str, more: str) -> Node:
        """The node after a heal, an adoption or an attempt."""
        value = node.value
        if what == "heal":
            node = node._replace(heal=REPLIED if node.heal == SENT else node.heal)
            if value == FREE and not node.guarded:
                node = node._replace(value=nonce, had=True)
            return node
        if what == "swap":
            granted, left = value == more, nonce if self.swaps else value
        else:
            opens = {NEXT}
            if self.opens != "nothing":
                opens |= {more, *(ADOPTERS if self.opens == "adopted" else ())}
            granted, left = value == FREE or (more != "" and value in opens), nonce
        if node.guarded or not granted:
            return node
        return node._replace(value=left, yes=tuple(sorted((*node.yes, nonce))))

    def _freed(self, node: Node, what: str, nonce: str, *, reserves: bool) -> Iterator[Node]:
        """The node after a release, a rest or a wake-up that is passed on."""
        rests = what == "rest"
        knows_mark = self.rest_knows_mark or not rests
        if what == "push" or node.value not in (nonce, mark(nonce) if knows_mark else nonce):
            yield node
        elif rests:
            yield node._replace(value=REST)
        else:
            yield node._replace(value=FREE, had=False)
            if reserves:
                yield node._replace(value=NEXT, had=False)

    def _revoked(self, node: Node, nonce: str, *, now: bool) -> Node:
        if node.value != nonce:
            return node
        if now:
            wakeup = REVOKER if self.now_wakes_by_own else nonce
            return node._replace(value=FREE, wakeup=wakeup, excused=True)
        return node._replace(value=FREE if self.mark_deletes else mark(nonce), excused=True)


@cache
def _settled(node: Node, asking: frozenset[str], blocked: bool) -> Node:
    """The node without the votes for others, and without wake-ups where nobody waits for one."""
    node = node._replace(yes=tuple(nonce for nonce in node.yes if nonce in asking))
    if blocked:
        return node
    wires = []
    for whose, messages in node.wires:
        left = tuple(
            (what, nonce, "" if more == "wakes" else more)
            for what, nonce, more in messages
            if what != "push"
        )
        wires += [(whose, left)] if left else []
    return node._replace(wakeup="", wires=tuple(wires))


def _put(state: State, i: int, node: Node) -> State:
    return State((*state.nodes[:i], node, *state.nodes[i + 1 :]), *state[1:])


def _with_adopter(state: State, at: int, what: str) -> State:
    return state._replace(adopters=(*state.adopters[:at], what, *state.adopters[at + 1 :]))


def _with_waiter(state: State, at: int, what: str, wakeup: str) -> State:
    waiters = (*state.waiters[:at], (what, wakeup), *state.waiters[at + 1 :])
    return state._replace(waiters=waiters)


def _sent(node: Node, whose: str, message: Message) -> Node:
    """The node with one more message on its way, behind those of the same sender and nonce."""
    wires = dict(node.wires)
    wires[whose] = (*wires.get(whose, ()), message)
    return node._replace(wires=tuple(sorted(wires.items())))


def _told(state: State, whose: str, message: Message, to: Callable[[Node], bool]) -> State:
    """The state with a message on its way to these nodes."""
    return state._replace(
        nodes=tuple(_sent(node, whose, message) if to(node) else node for node in state.nodes)
    )
