"""The Lua about the slots of a limited lock, and the node in memory beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from django_redlock.core.commands import Acquire, Look
from django_redlock.core.protocol import Command, LockKeys
from django_redlock.core.slots import Slot, entry_of
from django_redlock.nodes import scripts
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.mutants import Patch, with_edits

from . import test_scripts
from .test_scripts import HELD, LOCK, LONG, NEXT, NONCES, STEP, WAITS, WIDE, Pair, slot, target

__all__ = ["pair"]  # a fixture
pair = test_scripts.pair
NAME = "7 of 9"  # ends with digits, as the number of a slot does
SLOTS = [entry_of(NAME, each) for each in range(3)]
NAMES = [*SLOTS, NAME, entry_of(NAME, 12)]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair compares these names; each has a counter."""
    monkeypatch.setattr(test_scripts, "NAMES", NAMES)
    fields = {name: str(each) for each, name in enumerate(NAMES)}
    monkeypatch.setattr(test_scripts, "FIELDS", fields)
    monkeypatch.setattr(test_scripts, "blurred", blurred)


def blurred(answer: Any) -> list[Any]:
    """An answer without what depends on the moment: times to live."""
    nonce, word, *rest = answer
    if word in (b"HELD", b"DONE"):
        more = [[slot(left) for left in each] for each in rest[4:]]
        return [nonce, word, slot(rest[0]), *rest[1:4], *more]
    if word == b"LOOKED":
        return [nonce, word, [slot(left) for left in rest[0]]]
    return list(answer)


def of_slot(which: int, name: str = NAME, limit: int = len(SLOTS)) -> LockKeys:
    """The keys of a slot."""
    found = target(SLOTS[which : which + 1])
    entry = entry_of(name, which)
    named = found._replace(name=name, entries=(entry,), keys=(f"{LOCK}{entry}",))
    return named._replace(slot=Slot(which, limit))


def wish(pair: Pair, nonce: str, which: int, *, waits: int = 0, opener: str = "") -> list[Any]:
    """Ask for a slot of three."""
    fields = of_slot(which), 0, WIDE, LONG[0], "me", "", opener, waits
    return pair.ask(Acquire, nonce, *fields, last="0")


def waited(pair: Pair) -> set[str]:
    """The names that are known to have a waiter."""
    return {name.decode() for name in pair.client.zrange(WAITS, 0, -1)}


def test_a_refusal_tells_of_every_slot(pair):
    """How long each is taken; -2 where it is free. It notes nothing for one that does not wait."""
    assert wish(pair, NONCES[0], 1)[1] == b"GRANTED"
    pair.put(SLOTS[2], "foreign", None)
    told = wish(pair, NONCES[1], 1)
    assert told[1] == b"HELD"
    free, held, endless = told[6]
    assert (free, endless) == (-2, -1)
    assert 0 < held <= LONG[0]
    assert waited(pair) == set()
    assert wish(pair, NONCES[1], 0)[1] == b"GRANTED"


def test_a_refusal_of_one_slot_notes_a_waiter_for_all(pair):
    """So a release of any of them finds the waiter; no other name has one."""
    wish(pair, NONCES[0], 1)
    wish(pair, NONCES[1], 1, waits=STEP)
    assert waited(pair) == set(SLOTS)
    assert pair.release(NONCES[0], [SLOTS[1]], reserve=STEP, wake=None)[1:] == [b"FREED", 1]
    assert pair.client.get(f"{LOCK}{SLOTS[1]}") == NEXT.encode()


def test_a_look_tells_and_notes_the_same(pair):
    """Of every slot, and of no other name."""
    wish(pair, NONCES[0], 2)
    pair.grant(NONCES[1], [NAME])
    pair.grant(NONCES[1], [NAMES[-1]])
    told = pair.ask(Look, NONCES[2], of_slot(0), 0, STEP)
    assert told[2][:2] == [-2, -2]
    assert told[2][2] > 0
    assert waited(pair) == set(SLOTS)


def test_a_wake_up_opens_a_slot_that_is_reserved(pair):
    """As any other name, and no other slot: the index has each slot by its own name."""
    for which in (0, 1):
        wish(pair, NONCES[which], which)
    wish(pair, NONCES[2], 0, waits=STEP)
    for which in (0, 1):
        pair.release(NONCES[which], [SLOTS[which]], reserve=STEP, wake=None)
        assert pair.claim(SLOTS[which]) == NONCES[which]
    assert wish(pair, NONCES[2], 0)[6] == [-3, -3, -2]
    assert wish(pair, NONCES[2], 0, opener=NONCES[0])[1] == b"GRANTED"
    assert {each.decode() for each in pair.client.zrange(HELD, 0, -1)} == {SLOTS[0]}


def node_time(pair: Pair, command: Command, character: str) -> int:
    """What it costs a node to tell of two slots whose name is so long, in microseconds.

    That is the node's own count of the time in a script, the least of some plays.
    """
    first = of_slot(0, character * 490, limit=2)
    acquire = Acquire(NONCES[1], bool, first, 0, WIDE, LONG[0], "", "", "", STEP)
    look = Look(NONCES[1], bool, first, 0, STEP)
    request, last = (acquire, ["0"]) if command == Command.GRANT else (look, [])
    words = [*request.keys, request.nonce, *request.wire()[1], *last]
    pair.client.set(first.keys[0], "foreign")

    def cost() -> int:
        pair.client.config_resetstat()
        told = pair.client.eval(scripts.TEXT[command], len(request.keys), *words)
        assert told[1] in (b"HELD", b"LOOKED")
        return int(pair.client.info("commandstats")["cmdstat_eval"]["usec"])

    return min(cost() for _ in range(9))


@pytest.mark.parametrize("command", [Command.GRANT, Command.LOOK])
def test_a_name_of_digits_costs_a_node_what_a_name_of_letters_does(pair, command):
    """A visitor may choose the name; a search that tries each digit would stop all nodes."""
    assert node_time(pair, command, "7") < 5 * node_time(pair, command, "q")


@pytest.mark.parametrize("command", [Command.GRANT, Command.LOOK])
def test_a_script_that_tries_each_digit_is_noticed(pair, monkeypatch, command):
    """A broken variant: what ends with digits is cut off, wherever it begins."""
    text = scripts.TEXT[command]
    assert text.count("'^.*\\31'") == 2
    monkeypatch.setitem(scripts.TEXT, command, text.replace("'^.*\\31'", "'^(.-)%d+$'"))
    with pytest.raises(AssertionError):
        test_a_name_of_digits_costs_a_node_what_a_name_of_letters_does(pair, command)


def asked_at_random(pair: Pair, seed: int) -> None:
    """Wish, look, release and be another client, sixty times."""
    rng = random.Random(seed)
    for _ in range(60):
        nonce, which, waits = rng.choice(NONCES), rng.randrange(3), rng.choice([0, STEP])
        names: Sequence[str] = [rng.choice(NAMES)]
        what = rng.choice(["wish"] * 6 + ["release"] * 4 + ["look", "put"])
        if what == "wish":
            wish(pair, nonce, which, waits=waits, opener=rng.choice(["", *NONCES]))
        elif what == "release":
            pair.release(nonce, names, reserve=waits, wake=None)
        elif what == "look":
            pair.ask(Look, nonce, of_slot(which), 0, waits or 1)
        else:
            pair.put(names[0], rng.choice(["", "x", NEXT, "rest::", "done::l"]), STEP)


@pytest.mark.parametrize("seed", range(4))
def test_the_node_in_memory_means_what_the_lua_means(pair, seed):
    """The same random questions get the same answers and leave the same keys."""
    asked_at_random(pair, seed)


def noting_the_wished_one(text: str) -> str:
    """The script, with a waiter that is noted for the slot that it wished only."""
    return text.replace("KEYS[3], now + ARGV[8], name .. j", "KEYS[3], now + ARGV[8], ARGV[10]")


def test_a_waiter_that_is_noted_for_one_slot_is_noticed(pair, monkeypatch):
    """A broken variant of the script: a release of another slot would not find the waiter."""
    broken = noting_the_wished_one(scripts.TEXT[Command.GRANT])
    monkeypatch.setitem(scripts.TEXT, Command.GRANT, broken)
    with pytest.raises(AssertionError):
        test_a_refusal_of_one_slot_notes_a_waiter_for_all(pair)


def test_a_node_in_memory_that_calls_each_slot_free_is_noticed(pair):
    """A broken variant of the twin."""
    free = Patch(
        MemoryNode,
        "_of_slots",
        lambda _: lambda self, target, slots, waits, reserved=0: [-2] * slots,
    )
    with with_edits(free), pytest.raises(AssertionError):
        asked_at_random(pair, 0)
