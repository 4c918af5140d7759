"""A model of the wake-ups of a limited lock's slots, for the exhaustive search of ``heal``.

Two slots, one node, which is the one with the wait queues. Waiters ask, are refused, block, are
woken, look, give up and are cancelled; holders release, at once or one after the other, or die.
``wake`` has what one nonce may do on several nodes; that is a slot's as well.

A look is what saves a waiter whose wake-up was lost. The promise is that none is needed: no slot
which was released stays free beside a waiter that is blocked, while nobody is on the way to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FREE, NEXT, DIED = "free", "next", "died"  # values of a slot; else who holds it
IDLE, NOTED, BLOCKED, LOOKS, WOKEN, OWNS, ENDED = (
    *("idle", "noted", "blocked", "looks", "woken", "owns", "ended"),
)
LOST = "a wake-up is lost"
SLOTS = (0, 1)

Slot = tuple[str, bool, bool]  # its value, whether a waiter is noted, whether a wake-up lies there


class Waiter(NamedTuple):
    """What a waiter does, and for which slot.

    Attributes:
        what: IDLE to ENDED. NOTED: it was refused, and is not blocked yet.
        slot: the one that it was woken for, has seen free, or owns.
    """

    what: str = IDLE
    slot: int = 0


class State(NamedTuple):
    """All there is at a moment; ``line`` are the blocked waiters, in order of arrival."""

    slots: tuple[Slot, Slot]
    waiters: tuple[Waiter, ...]
    line: tuple[int, ...] = ()
    cancels: int = 1


class Slots(NamedTuple):
    """The rules; the defaults are ours.

    Attributes:
        lists: how many wait queues there are: one for each slot, or 1 for all.
        notes: whether a refusal notes the waiter for "all" slots, or for the one "wished".
        blocks: whether a waiter blocks on the lists of "all" slots, or on that of the one "wished".
        passes_on: for which slot a waiter that is cancelled passes its wake-up on: "its own", the
            "first" one, or "none".
        takes_along: whether a waiter that leaves since it has seen a free slot uses a wake-up that
            came meanwhile.
        uses: for which slot a wake-up is used: "its own", or the "other".
        waiters, cancels: how many there are.
        dies: whether holders die.
    """

    lists: int = 2
    notes: str = "all"
    blocks: str = "all"
    passes_on: str = "its own"
    takes_along: bool = True
    uses: str = "its own"
    waiters: int = 3
    cancels: int = 1
    dies: bool = False

    # -- the beginning and the promise ---

    def starts(self) -> Iterator[State]:
        """Two strangers hold the slots."""
        held = ("A", False, False), ("B", False, False)
        yield State(held, (Waiter(),) * self.waiters, cancels=self.cancels)

    def wrong(self, state: State) -> str:
        """Tell whether a slot that was released is free, and who waits for it is on no way."""
        moving = any(what in (NOTED, LOOKS, WOKEN) for what, _ in state.waiters)
        free = any(value == FREE for value, _, _ in state.slots)
        return LOST if state.line and free and not moving else ""

    # -- what may happen ---

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may happen next."""
        for slot, (value, _, _) in enumerate(state.slots):
            if value == NEXT:
                yield f"the reservation of {slot} ends", _put(state, slot, value=FREE)
            elif value not in (FREE, DIED):
                yield f"{value} releases {slot}", self._released(state, slot)
                if self.dies:
                    gone = _put(state, slot, value=DIED)
                    yield f"{value} dies", _owner_ends(gone, value)
        # A wake-up outlasts the reservation, and the time for which a refusal is as good as a look.
        if all(waiter.what != NOTED for waiter in state.waiters):
            for slot, (value, _, waking) in enumerate(state.slots):
                if waking and value != NEXT:
                    yield f"the wake-up of {slot} ends", _put(state, slot, waking=False)
        for at in range(self.waiters):
            yield from self._waiter(state, at)

    def _released(self, state: State, slot: int) -> State:
        """The state after a release: reserved, and one wake-up in the list, if anybody is noted."""
        owner, noted, _ = state.slots[slot]
        state = _owner_ends(state, owner)
        state = _put(state, slot, value=NEXT if noted else FREE)
        return self._pushed(state, slot) if noted else state

    def _pushed(self, state: State, slot: int) -> State:
        """The state when a list has got its one wake-up, in the place of what lay there."""
        if self.lists == 1:
            for other in SLOTS:
                state = _put(state, other, waking=False)
        for at in state.line:
            if self._blocks_on(at, slot):
                return self._served(state, at, slot)
        return _put(state, slot, waking=True)

    def _served(self, state: State, at: int, slot: int) -> State:
        line = tuple(each for each in state.line if each != at)
        state = state._replace(line=line)
        if state.waiters[at].what == LOOKS and not self.takes_along:
            return state
        return _with(state, at, Waiter(WOKEN, slot))

    def _blocks_on(self, at: int, slot: int) -> bool:
        return self.blocks == "all" or at % 2 == slot

    def _waiter(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        what, slot = state.waiters[at]
        if what == IDLE:
            yield f"{at} asks", self._asked(state, at, at % 2)
        if what == NOTED:
            yield f"{at} blocks", self._blocked(state, at)
            yield f"{at} gives up", _with(state, at, Waiter(ENDED))
        if what == BLOCKED:
            yield f"{at} gives up", _with(_out(state, at), at, Waiter(ENDED))
            for free in SLOTS:
                if state.slots[free][0] in (FREE, DIED):
                    yield f"{at} sees {free}", _with(state, at, Waiter(LOOKS, free))
        if what == LOOKS:
            yield f"{at} leaves, and asks", self._asked(_out(state, at), at, slot)
        if what == WOKEN:
            used = slot if self.uses == "its own" else 1 - slot
            yield f"{at} asks with {slot}", self._asked(state, at, used, woken=True)
            if state.cancels:
                after = _with(state._replace(cancels=state.cancels - 1), at, Waiter(ENDED))
                if self.passes_on != "none":
                    after = self._pushed(after, slot if self.passes_on == "its own" else 0)
                yield f"{at} is cancelled", after

    def _asked(self, state: State, at: int, wish: int, *, woken: bool = False) -> State:
        """The state after an attempt for a slot, and for the next one if the node calls it free."""
        for slot in (wish, 1 - wish):
            value = state.slots[slot][0]
            if value in (FREE, DIED) or (value == NEXT and woken and slot == wish):
                return _with(_put(state, slot, value=str(at)), at, Waiter(OWNS, slot))
        for slot in SLOTS if self.notes == "all" else (wish,):
            state = _put(state, slot, noted=True)
        return _with(state, at, Waiter(NOTED))

    def _blocked(self, state: State, at: int) -> State:
        """The state when it is in the line: a wake-up that lies there is its own at once."""
        state = _with(state, at, Waiter(BLOCKED))
        for slot in SLOTS:
            if state.slots[slot][2] and self._blocks_on(at, slot):
                return self._served(_put(state, slot, waking=False), at, slot)
        return state._replace(line=(*state.line, at))


def _put(
    state: State,
    slot: int,
    *,
    value: str | None = None,
    noted: bool | None = None,
    waking: bool | None = None,
) -> State:
    had = state.slots[slot]
    new = (
        had[0] if value is None else value,
        had[1] if noted is None else noted,
        had[2] if waking is None else waking,
    )
    return state._replace(slots=(new, state.slots[1]) if slot == 0 else (state.slots[0], new))


def _with(state: State, at: int, waiter: Waiter) -> State:
    return state._replace(waiters=(*state.waiters[:at], waiter, *state.waiters[at + 1 :]))


def _out(state: State, at: int) -> State:
    return state._replace(line=tuple(each for each in state.line if each != at))


def _owner_ends(state: State, owner: str) -> State:
    return _with(state, int(owner), Waiter(ENDED)) if owner.isdigit() else state
