"""The Lua on a real node, and the node in memory beside it, asked the same questions."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_redlock.core.commands import (
    ANY_TASK,
    Acquire,
    Claim,
    Complete,
    Extend,
    Extension,
    Heal,
    Look,
    Mark,
    Memory,
    Raise,
    Release,
    Rest,
    Return,
    Revoke,
    Survey,
    Unmark,
)
from django_redlock.core.protocol import Command, LockKeys, Request, one_or_all
from django_redlock.core.slots import Slot, entry_of
from django_redlock.nodes import admission, memory, scripts
from django_redlock.nodes.memory import MemoryNode, digest, owner_of
from django_redlock.testing import EmbeddedNode
from tests.support.waiting import eventually

PREFIX = "pair:"
FENCES, HELD, WAITS = f"{PREFIX}fences", f"{PREFIX}held", f"{PREFIX}waits"
MARKS, RECORDS, ONCE = (f"{PREFIX}{each}" for each in ("marks", "records", "once"))
LOCK, QUEUE, MARK = f"{PREFIX}lock:", f"{PREFIX}queue:", f"{PREFIX}mark:"
NONCES = [f"{number:032x}" for number in (1, 2, 0xABC)]
ECHO = f"{7:032x}"
PLAIN = ["a", "b", "c", "ü:x", "rest::"]
LIMITED = "7 of 9"  # ends with digits, as the number of a slot does
SLOTS = [entry_of(LIMITED, each) for each in range(3)]
NAMES = [*PLAIN, *SLOTS]
FIELDS = {"a": "1", "b": "2", "c": "1", "ü:x": "3", "rest::": "2"}  # some share a counter
FIELDS |= {name: str(number) for number, name in enumerate(SLOTS, 4)}
LONG = [600_000, 1_200_000, 1_800_000]  # milliseconds; apart by more than a test may take
STEP = 600_000
SHORT = 2  # milliseconds
SECOND = 1000  # milliseconds: how long a word is kept at least …
LASTS = 4 * STEP  # … and how long it is here, for a stall of this machine may take a second
KEEPING = """
local reply = (function() {script} end)()
for _, queue in ipairs({{{queues}}}) do
  local left = redis.call('PTTL', queue)
  if left >= 0 and left <= {second} then redis.call('PEXPIRE', queue, {lasts}) end
end
return reply
"""
FUTURE = 3_000_000_000_000_000  # microseconds: the year 2065, as a wish that a wide slack allows
WIDE = 10**16
NEXT = "next::"


def keeping(script: str) -> str:
    """The script; a word that would be gone in a second stays, from the same moment on."""
    queues = ", ".join(f"'{QUEUE}{name}'" for name in NAMES)
    return KEEPING.format(script=script, queues=queues, second=SECOND, lasts=LASTS)


def slot(milliseconds: float) -> float:
    """A time to live without the time that passes in a test."""
    return milliseconds if milliseconds < 0 else math.ceil(milliseconds / STEP)


class Pair:
    """A real node and one in memory that are told the same."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client  # redis-py's types allow for what is not asked here
        self.memory = MemoryNode()
        self.fleeting = False  # whether the next question makes keys that expire at once
        self.client.delete(FENCES, *client.scan_iter(f"{PREFIX}*"))
        client.hset(FENCES, "epoch", 0)

    def ask(self, kind: type[Request], nonce: str, *fields: Any, last: Any = None) -> list[Any]:
        """Send the request to both, see that they reply the same, and return the reply."""
        request = kind(nonce, bool, *fields)
        keys, more = request.keys, [] if last is None else [last]
        real: list[Any] = self.client.eval(
            keeping(scripts.TEXT[request.command]),
            *(len(keys), *keys, nonce, *request.wire()[1], *more),
        )
        assert blurred(self.eval(request, last)) == blurred(real), request
        if not self.fleeting:
            self.compare()
        return real

    def eval(self, request: Request, last: Any) -> list[Any]:
        """What the node in memory replies; its time stands still meanwhile, as for a script."""
        clock, now = self.memory.clock, self.memory.clock()
        self.memory.clock = lambda: now
        try:
            reply = self.memory.eval(request, last)
        finally:
            self.memory.clock = clock
        for queue, (word, due) in self.memory.wakeups.items():
            if due - now <= SECOND:
                self.memory.wakeups[queue] = word, now + LASTS
        return reply

    def let_pass(self, milliseconds: int) -> None:
        """Wait until the clock of both nodes is later by so much."""

        def now() -> float:
            seconds, microseconds = self.client.time()
            return float(seconds * 1000 + microseconds / 1000)

        then = now() + milliseconds
        eventually(lambda: now() > then, every=0.001)

    def compare(self) -> None:
        """See that both store the same."""
        keys = [f"{kind}{name}" for name in NAMES for kind in (LOCK, MARK)]
        indexes = (HELD, WAITS, MARKS, RECORDS, ONCE)
        queues = [f"{QUEUE}{name}" for name in NAMES]
        with self.client.pipeline(transaction=False) as real:
            for key in keys:
                real.get(key).pttl(key)
            for key in indexes:
                real.zrange(key, 0, -1, withscores=True)
            for key in queues:
                real.lrange(key, 0, -1).pttl(key)
            found = iter([*real.hgetall(FENCES).execute()])
        for key in keys:
            value = next(found)
            assert self.memory.get(key) == (None if value is None else value.decode())
            assert slot(self.memory.pttl(key)) == slot(next(found))
        now = time.time() * 1000 + 1000
        for key in indexes:
            entries = {name.decode(): slot(due - now) for name, due in next(found) if due > now}
            known: dict[str, float] = getattr(self.memory, key.removeprefix(PREFIX))
            assert {n: slot(due - now) for n, due in known.items() if due > now} == entries, key
        for key in queues:
            word, due = self.memory.wakeups.get(key, ("", math.inf))
            assert [each.decode() for each in next(found)] == ([word] if word else [])
            assert slot(next(found)) == (slot(due - self.memory.clock()) if word else -2)
        assert self.memory.fences == {key.decode(): int(told) for key, told in next(found).items()}

    # -- requests ---------------------------------------------------------------------------

    def wish(self, nonce: str, which: int, *, waits: int = 0, word: str = "") -> list[Any]:
        """Ask for a slot of three."""
        fields = of_slot(which), 0, WIDE, LONG[0], "me", "", word, waits
        return self.ask(Acquire, nonce, *fields, last="0")

    def grant(self, nonce: str, names: Sequence[str], **options: Any) -> list[Any]:
        """Ask for names."""
        wish, slack = options.get("wish", 0), options.get("slack", WIDE)
        ttl, label, old = options.get("ttl", STEP), options.get("label", ""), options.get("old", "")
        word, waits = options.get("word", ""), options.get("waits", 0)
        fields = target(names), wish, slack, ttl, label, old, word, waits
        return self.ask(Acquire, nonce, *fields, last=options.get("epoch", "0"))

    def raise_(self, nonce: str, names: Sequence[str], token: int, number: int) -> list[Any]:
        """Lift the counters."""
        return self.ask(Raise, nonce, target(names), token, last=number)

    def extend(self, *tenancies: tuple[str, Sequence[str], int]) -> list[int]:
        """Prolong each tenancy: its nonce, its names, the ttl; which ones were."""
        leases = [Extension(nonce, target(names), ttl) for nonce, names, ttl in tenancies]
        kept: list[int] = self.ask(Extend, ECHO, leases)[2]
        return kept

    def free(self, nonce: str, names: Sequence[str]) -> bool:
        """Whether an extension says that the names of a tenancy are free."""
        return bool(self.ask(Extend, ECHO, [Extension(nonce, target(names), STEP)])[3] == [0])

    def heal(
        self, nonce: str, names: Sequence[str], *, fence: int = 7, ttl: int = STEP, epoch: str = "0"
    ) -> list[Any]:
        """Put a tenancy back where its names are free."""
        return self.ask(Heal, nonce, target(names), fence, ttl, "label", last=epoch)

    def release(
        self,
        nonce: str,
        names: Sequence[str],
        *,
        reserve: int = 0,
        wake: Container[int] | None = (),
    ) -> list[Any]:
        """Give back."""
        return self.ask(Release, nonce, target(names), reserve, wake)

    def mark(self, nonce: str, name: str, names: Sequence[str], task_id: str) -> list[Any]:
        """Mark a queued task."""
        keys = MARKS, f"{MARK}{name}", target(names).keys
        return self.ask(Mark, nonce, *keys, STEP, "t", task_id)

    def unmark(self, nonce: str, name: str, whose: str = "", kind: str = MARK) -> list[Any]:
        """Remove a mark, or a record."""
        return self.ask(Unmark, nonce, MARKS, f"{kind}{name}", whose)

    def look(self, name: str, waits: int) -> list[Any]:
        """Note that somebody waits."""
        return self.ask(Look, NONCES[0], target([name]), 0, waits)

    def claim(self, name: str) -> str:
        """Take the word out of the queue."""
        word: bytes = self.ask(Claim, NONCES[0], f"{QUEUE}{name}")[2]
        return word.decode()

    def rest(self, nonce: str, names: Sequence[str], rest: int) -> list[Any]:
        """Give back later."""
        return self.ask(Rest, nonce, target(names), rest)

    def complete(
        self,
        nonce: str,
        names: Sequence[str],
        life: int,
        *,
        at: int = 0,
        label: str = "",
        granted: int = 0,
    ) -> list[Any]:
        """Give back, and leave records."""
        return self.ask(Complete, nonce, target(names), life, at, label, granted)

    def revoke(self, name: str, owner: str, *, now: bool = False, least: int = 0) -> list[Any]:
        """Take a name away from the holder with this digest."""
        return self.ask(Revoke, NONCES[0], target([name]), owner, "by me: it hangs", now, least)

    def give_back(self, nonce: str, names: Sequence[str], old: str) -> list[Any]:
        """Put the giver's nonce in its place again."""
        return self.ask(Return, nonce, target(names), old)

    def survey(
        self, names: Sequence[str] = (), limit: int = 100, index: str = HELD, begin: int = 0
    ) -> list[Any]:
        """Look: at some names, or a page of an index."""
        prefix = MARK if index == MARKS else LOCK
        if names:
            return self.ask(Survey, ECHO, index, WAITS, prefix, 0, names)
        # Where the next page begins is a time of the node's own clock, to the millisecond.
        with suppress(redis.ResponseError):  # somebody has put something else there
            theirs = {name.decode(): due for name, due in self.client.zscan_iter(index)}
            getattr(self.memory, index.removeprefix(PREFIX)).update(theirs)
        return self.ask(Survey, ECHO, index, WAITS, prefix, limit, last=begin)

    # -- what others do ---------------------------------------------------------------------

    def put(self, name: str, value: str, px: int | None, kind: str = LOCK) -> None:
        """Set a key as a foreign client would, with or without expiry."""
        self.client.set(f"{kind}{name}", value, px=px)
        due = None if px is None else self.memory.clock() + px
        self.memory.keys[f"{kind}{name}"] = (value, due)

    def delete(self, name: str) -> None:
        """Delete a key as an operator would."""
        self.client.delete(f"{LOCK}{name}")
        self.memory.keys.pop(f"{LOCK}{name}", None)

    def count(self, field: str, number: int) -> None:
        """Set a counter."""
        self.client.hset(FENCES, field, number)
        self.memory.fences[field] = number

    def empty(self) -> None:
        """Take the sign that nothing was lost."""
        self.client.hdel(FENCES, "epoch")
        self.memory.fences.pop("epoch", None)

    def admit(self) -> None:
        """Give it back."""
        self.client.hset(FENCES, "epoch", 0)
        self.memory.fences["epoch"] = 0


def target(names: Sequence[str]) -> LockKeys:
    """The keys and counters of names."""
    keys = tuple(f"{LOCK}{name}" for name in names)
    fields = tuple(FIELDS[name] for name in names)
    nodes = (0,) * len(names)
    name = one_or_all(tuple(names))
    return LockKeys(name, tuple(names), FENCES, HELD, WAITS, QUEUE, keys, fields, nodes)


def of_slot(which: int, name: str = LIMITED, limit: int = 3) -> LockKeys:
    """The keys of a slot."""
    entry = entry_of(name, which)
    keys = target(SLOTS[which : which + 1])._replace(name=name, slot=Slot(which, limit))
    return keys._replace(entries=(entry,), keys=(f"{LOCK}{entry}",))


def blurred(answer: Any) -> list[Any]:
    """An answer without what depends on the moment: times to live, and the index's order."""
    nonce, word, *rest = answer
    if word in (b"HELD", b"DONE", b"ONCE"):
        more = [list(map(slot, each)) if isinstance(each, list) else each for each in rest[4:]]
        return [nonce, word, slot(rest[0]), *rest[1:4], *more]
    if word == b"TAKEN":
        return [nonce, word, *rest[:2], rest[2] // STEP]
    if word in (b"LOOKED", b"REVOKED"):
        left = rest[0]
        return [nonce, word, list(map(slot, left)) if isinstance(left, list) else slot(left)]
    if word == b"FOUND":
        return [nonce, word, sorted([*x[:3], slot(x[3]), *x[4:]] for x in rest[0]), *rest[1:]]
    return [nonce, word, *rest]


@pytest.fixture
def pair(redlock_embedded) -> Iterator[Pair]:
    """A real node and one in memory, both without locks and counters."""
    redlock_embedded[0].start()  # a test may have left it dead
    with closing(redlock_embedded[0].client(socket_timeout=10)) as client:
        yield Pair(client)


IDS = ["me", "other-1", "x" * 64]
RUNS = ["h:1(t):me", "h:1(t):other-1", f"(t):{'x' * 65}", "h:1(u):me", "(t):", "h:1(t):a b"]
LABELS = ["host:1", "", "a:b:c", "ü", "line\nbreak", "x" * 200, *RUNS, "h:1(t):me\n"]
FOREIGN = [
    *("", "x", "foreign:1", "abc:12:label", "ABC:7:", "rest::label", "rest::", "1:2:3:4", NEXT),
    *("revoked:ab:x", "revoked::x", f"revoked:{'A' * 16}:x", f"revoked:{'a' * 17}:x"),
    *("done::label", "done::", "done:", "rest::done::", f"rest::{RUNS[0]}"),
    *("once::12:label", "once::12:", "once::x:label", "once::12", "once:12:label"),
    *(part for n in NONCES for part in (f"{n}:", n, f"{n}:5", f"{n}:05:l", f"{n}:7:{RUNS[1]}")),
    *(f"revoked:{digest(n)}:" for n in NONCES),
    f"revoked:{digest(NONCES[0]).upper()}:x",
    *[NEXT] * 9,
]
nonces = st.sampled_from([*NONCES[:1] * 3, *NONCES[1:]])
slots, ttls = map(st.sampled_from, ([0, 0, 1, 2], [*LONG, SHORT]))
# Mostly the same name, slot and nonce: what differs each time meets nothing.
one = st.sampled_from([*["a"] * 9, *[SLOTS[0]] * 3, *NAMES])
some = st.one_of(one.map(lambda name: [name]), st.lists(one, min_size=1, max_size=3, unique=True))
words = st.sampled_from(["", *NONCES, NONCES[2].upper(), "0" * 31, "foreign"])


class Questions(RuleBasedStateMachine):
    """What is asked, by any client in any order; foreign hands and expiries included.

    After each step both nodes must have replied the same, and store the same.
    """

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = Pair(pair.client)
        self.granted: dict[str, tuple[int, list[str]]] = {}

    def lasting(self, milliseconds: int) -> int:
        """Note that what lasts so long may be over before it is looked at."""
        self.pair.fleeting = milliseconds == SHORT
        return milliseconds

    @invariant()
    def _both_store_the_same(self) -> None:
        if self.pair.fleeting:
            self.pair.let_pass(3 * SHORT)
            self.pair.fleeting = False
            self.pair.compare()

    @rule(nonce=nonces, names=some, ttl=ttls, word=words, adopts=st.booleans(), waits=st.booleans(),
          wish=st.sampled_from([0, FUTURE, FUTURE + 9]), label=st.sampled_from(LABELS))  # fmt: skip
    def grant(
        self,
        nonce: str,
        names: list[str],
        ttl: int,
        *,
        word: str,
        adopts: bool,
        waits: bool,
        **more: Any,
    ) -> None:
        """Ask for names: free ones, with a word, or those of another nonce."""
        more |= {"old": word} if adopts else {"word": word}
        ttl = self.lasting(ttl)
        answer = self.pair.grant(nonce, names, ttl=ttl, waits=ttl if waits else 0, **more)
        if answer[1] == b"GRANTED":
            self.granted[nonce] = int(answer[2]), names

    @rule(nonce=nonces, which=slots, waits=st.sampled_from([0, STEP]), word=words)
    def wish(self, nonce: str, which: int, waits: int, word: str) -> None:
        """Ask for a slot."""
        self.pair.wish(nonce, which, waits=waits, word=word)

    @rule(nonce=nonces, above=st.integers(-1, 4), off=st.sampled_from([0, 0, 0, 1, -1]))
    def raise_(self, nonce: str, above: int, off: int) -> None:
        """Lift to a token above or below, by the right number or a wrong one."""
        number, names = self.granted.get(nonce, (0, ["a"]))
        self.pair.raise_(nonce, names, number + above, number + off)

    @rule(leases=st.lists(st.tuples(nonces, some), min_size=1, max_size=4), ttl=ttls)
    def extend(self, leases: list[tuple[str, list[str]]], ttl: int) -> None:
        """Prolong several leases at once, some of them twice, some of them not there."""
        self.lasting(ttl)
        self.pair.extend(*((nonce, names, ttl) for nonce, names in leases))

    @rule(nonce=nonces, above=st.integers(-1, 2), names=some, ttl=ttls)
    def heal(self, nonce: str, above: int, names: list[str], ttl: int) -> None:
        """Put back what it had or had not, with a token above or below the counters."""
        fence = max(1, self.granted.get(nonce, (5, []))[0] + above)
        self.pair.heal(nonce, names, fence=fence, ttl=self.lasting(ttl))

    @rule(nonce=nonces, names=some, ttl=ttls, keeps=st.booleans(), wake=st.sets(slots))
    def release(
        self, nonce: str, names: list[str], ttl: int, *, keeps: bool, wake: set[int]
    ) -> None:
        """Give back: what it has or has not, and keep it for others, and wake them, or not."""
        reserve = self.lasting(ttl) if keeps else 0
        self.pair.release(nonce, names, reserve=reserve, wake=wake & {*range(len(names))})

    @rule(nonce=nonces, names=some, rest=ttls)
    def rest(self, nonce: str, names: list[str], rest: int) -> None:
        """Give back later."""
        self.pair.rest(nonce, names, self.lasting(rest))

    @rule(nonce=nonces, names=some, life=ttls, at=st.sampled_from([0, 0, 1, FUTURE // 1000]),
          label=st.sampled_from(LABELS), granted=st.sampled_from([0, 0, *LONG]))  # fmt: skip
    def complete(self, nonce: str, names: list[str], life: int, **more: Any) -> None:
        """Record that the work is done, and when, or put such a record back."""
        granted = more["granted"] if more["at"] and life != SHORT else 0
        label = more["label"] if more["at"] else ""
        more |= {"granted": granted, "label": label}
        self.pair.complete(nonce, names, self.lasting(life), **more)

    @rule(nonce=nonces, names=some, old=nonces)
    def give_back(self, nonce: str, names: list[str], old: str) -> None:
        """Put the giver's nonce in its place again."""
        self.pair.give_back(nonce, names, old)

    @rule(name=one, owner=st.sampled_from([None, None, *NONCES]), now=st.booleans(), least=ttls)
    def revoke(self, name: str, owner: str | None, *, now: bool, least: int) -> None:
        """Take a name away from whoever has it, or from somebody who may not have it."""
        there = self.pair.memory.get(f"{LOCK}{name}")
        whose = digest(owner or "") if owner or not there else owner_of(there)
        self.pair.revoke(name, whose, now=now, least=self.lasting(least))

    @rule(nonce=nonces, name=one, locks=st.one_of(st.just([]), some), task_id=st.sampled_from(IDS))
    def mark(self, nonce: str, name: str, locks: list[str], task_id: str) -> None:
        """Mark a task that waits for some of the names, or for none of them."""
        self.pair.mark(nonce, name, locks, task_id)

    @rule(
        nonce=nonces,
        name=one,
        whose=st.sampled_from(["", ANY_TASK, *IDS]),
        kind=st.sampled_from([MARK, MARK, LOCK]),
    )
    def unmark(self, nonce: str, name: str, whose: str, kind: str) -> None:
        """Remove a mark, or the record of a task."""
        self.pair.unmark(nonce, name, whose, kind)

    @rule(name=one, which=st.one_of(st.none(), slots), waits=ttls)
    def look(self, name: str, which: int | None, waits: int) -> None:
        """Note that somebody waits, for a name or for any slot."""
        keys = target([name]) if which is None else of_slot(which)
        self.pair.ask(Look, NONCES[0], keys, 0, self.lasting(waits))

    @rule(name=one)
    def claim(self, name: str) -> None:
        """Take the word out of the queue."""
        self.pair.claim(name)

    @rule(names=st.one_of(st.just([]), some), index=st.sampled_from([HELD, MARKS, RECORDS, ONCE]))
    def survey(self, names: list[str], index: str) -> None:
        """Look at some names, or at an index."""
        self.pair.survey(["no", *names] if names else [], index=index)

    @rule(name=one, value=st.sampled_from(FOREIGN), px=st.sampled_from([None, *LONG]),
          kind=st.sampled_from([LOCK, LOCK, MARK]), deletes=st.sampled_from([0, 0, 1]))  # fmt: skip
    def interfere(self, name: str, value: str, px: int | None, *, kind: str, deletes: int) -> None:
        """Be another client, or an operator."""
        if deletes:
            self.pair.delete(name)
        else:
            self.pair.put(name, value, px, kind)

    @rule(nonce=nonces, names=some, epoch=st.sampled_from(["0", "", "1", "00"]), gone=st.booleans())
    def empty(self, nonce: str, names: list[str], epoch: str, *, gone: bool) -> None:
        """Ask while the epoch is missing, or with another one."""
        if gone:
            self.pair.empty()
        elif epoch == "0":
            return
        assert self.pair.grant(nonce, names, epoch=epoch)[1] == b"EMPTY"
        assert self.pair.heal(nonce, names, epoch=epoch)[1] == b"EMPTY"
        self.pair.admit()


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.nightly)])
def test_the_node_in_memory_means_what_the_lua_means(pair, examples):
    """The same questions in any order get the same answers and leave the same keys.

    At night the order is drawn, and a sequence that fails is made short, which takes minutes.
    """
    at_night = examples > 30
    machine: Any = lambda: Questions(pair)  # noqa: E731 - it is called as a class would be
    plays = settings(
        max_examples=examples,
        stateful_step_count=40,
        derandomize=not at_night,
        phases=[Phase.generate, *([Phase.shrink] if at_night else [])],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=plays)


# -- granting ---------------------------------------------------------------------------------


def test_a_wish_beyond_the_slack_is_clamped(pair):
    """A client whose clock is in the year 3000 gets the node's time plus the slack, no more."""
    year_3000, slack = 32_503_680_000_000_000, 5_000_000
    ask = Acquire(NONCES[0], bool, target(["a"]), year_3000, slack, STEP, "")
    before = time.time_ns() // 1000 + slack
    found = [
        pair.client.eval(scripts.TEXT[ask.command], 4, *ask.keys, NONCES[0], *ask.wire()[1], "0"),
        pair.memory.eval(ask),
    ]
    after = time.time_ns() // 1000 + slack
    for answer in found:
        assert before - 1_000_000 <= int(answer[2]) <= after + 1_000_000


@pytest.mark.parametrize("number", [999, 10**15, 1_790_000_000_123_457, 2**53 - 2])
def test_large_numbers_keep_every_digit(pair, number):
    """Counters up to 2^53 count by one, are stored and told as whole numbers, not as 1.79e+15."""
    pair.count("1", number)
    assert pair.grant(NONCES[0], ["a"])[2] == b"%d" % (number + 1)
    assert pair.client.hget(FENCES, "1") == b"%d" % (number + 1)
    assert pair.client.get(f"{LOCK}a") == b"%s:%d:" % (NONCES[0].encode(), number + 1)
    assert pair.raise_(NONCES[0], ["a"], 2**53, number + 1)[1] == b"RAISED"
    assert pair.client.hget(FENCES, "1") == b"%d" % 2**53


def test_one_token_for_several_names_is_above_every_counter(pair):
    """A list's number exceeds the counters of all its names, and lifts them all to itself."""
    pair.count("1", 5)
    pair.count("2", 90)
    assert pair.grant(NONCES[0], ["a", "b", "ü:x"])[2] == b"91"
    assert pair.memory.fences == {"epoch": 0, "1": 91, "2": 91, "3": 91}


def test_raise_needs_the_number_of_this_grant(pair):
    """A nonce alone does not acknowledge a token: the grant's own number has to match."""
    number = int(pair.grant(NONCES[0], ["a"])[2])
    assert pair.raise_(NONCES[0], ["a"], number + 9, number + 1)[1] == b"GONE"
    assert pair.raise_(NONCES[0], ["a"], number - 1, number)[1] == b"GONE"
    assert pair.raise_(NONCES[1], ["a"], number + 9, number)[1] == b"GONE"
    assert pair.raise_(NONCES[0], ["a", "b"], number + 9, number)[1] == b"GONE"
    assert pair.raise_(NONCES[0], ["a"], number + 9, number)[1] == b"RAISED"
    assert pair.raise_(NONCES[0], ["a"], number + 3, number)[1] == b"RAISED"
    assert pair.memory.fences["1"] == number + 9


def test_a_list_is_checked_whole_before_anything_is_written(pair):
    """All names or none: a refused list changes no key and no counter."""
    pair.grant(NONCES[0], ["c"])
    pair.put("b", "foreign", None)
    before = dict(pair.memory.fences)
    assert pair.grant(NONCES[1], ["a", "ü:x", "b"])[1:3] == [b"HELD", -1]
    assert pair.memory.fences == before
    assert pair.extend((NONCES[0], ["c", "b"], 1_800_000)) == [0]
    assert slot(pair.client.pttl(f"{LOCK}c")) == 1


def test_a_grant_that_comes_behind_its_release_lasts_for_its_ttl(pair):
    """The node cannot know: it refuses the name to others until then, and no longer."""
    pair.release(NONCES[0], ["a"])
    assert pair.grant(NONCES[0], ["a"])[1] == b"GRANTED"
    assert pair.grant(NONCES[1], ["a"])[1] == b"HELD"
    assert slot(pair.client.pttl(f"{LOCK}a")) == slot(STEP)


@pytest.mark.parametrize(
    ("value", "outcomes"),  # of who is alone, was woken by its holder, adopts from it
    [
        (None, (b"GRANTED", b"GRANTED", b"GONE")),
        (f"{NONCES[0]}:5:me", (b"HELD", b"HELD", b"HELD")),  # this grant arrives a second time
        (f"{NONCES[1]}:5:x", (b"HELD", b"GRANTED", b"GRANTED")),
        (f"{NONCES[1]}0:5:x", (b"HELD", b"HELD", b"HELD")),  # it only begins alike
        (NEXT, (b"HELD", b"GRANTED", b"HELD")),
        ("rest::x", (b"HELD", b"HELD", b"HELD")),
        ("done::x", (b"DONE", b"DONE", b"DONE")),
        ("", (b"HELD", b"HELD", b"HELD")),
    ],
)
@pytest.mark.parametrize(("wish", "number"), [(0, b"6"), (FUTURE, b"%d" % FUTURE)])
def test_who_gets_a_name(pair, value, outcomes, wish, number):
    """The value decides, and who asks; a refusal leaves key and counter as they are."""
    askers: list[dict[str, Any]] = [{}, {"word": NONCES[1]}, {"old": NONCES[1]}]
    for options, outcome in zip(askers, outcomes, strict=True):
        pair.delete("a")
        pair.count("1", 5)
        if value is not None:
            pair.put("a", value, STEP)
        answer = pair.grant(NONCES[0], ["a"], wish=wish, label="me", **options)
        assert answer[1] == outcome
        if outcome == b"GRANTED":
            assert answer[2] == number
            assert pair.client.get(f"{LOCK}a") == b"%s:%s:me" % (NONCES[0].encode(), number)
        assert pair.memory.fences["1"] == (int(number) if outcome == b"GRANTED" else 5)


GRANT = scripts.TEXT[Command.GRANT]


def spoil_lock(client: Any) -> None:
    """A list is where the key should be."""
    client.rpush(f"{LOCK}a", "x")


def spoil_counters(client: Any) -> None:
    """A list is where the counters should be."""
    client.delete(FENCES)
    client.rpush(FENCES, "x")


def spoil_counter(client: Any) -> None:
    """Somebody has written what is no number."""
    client.hset(FENCES, "1", "x")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda client: client.config_set("maxmemory", 1), "maxmemory"),
        (spoil_lock, "WRONGTYPE"),
        (spoil_counters, "WRONGTYPE"),
        (spoil_counter, "not a number"),
        (lambda client: client.rpush(HELD, "x"), "WRONGTYPE"),
        (None, "permissions|can't run this command"),
    ],
    ids=["full", "lock", "counters", "counter", "index", "denied"],
)
@pytest.mark.parametrize("word", ["", NONCES[1]])
def test_an_error_leaves_no_key_that_is_not_counted(pair, spoil, error, word):
    """Of a free name; a key that a spoiled index does not list is there, and is counted.

    The short way of a single name that nobody was woken for writes the key first. A taken name is
    refused all the same.
    """
    client, key = pair.client, f"{LOCK}a"
    keys = FENCES, HELD, WAITS, key
    words = NONCES[0], 7, WIDE, STEP, "me", "", word and f"0:{word}", 0, "1", "a", "0"
    address = client.connection_pool.connection_kwargs
    user: dict[str, Any] = {} if spoil else {"username": "halved", "password": "x"}
    rules = ("reset", "on", "nopass", "~*", "+@all", "-hset")
    client.execute_command("ACL SETUSER", "halved", *rules)
    client.set(f"{LOCK}b", "foreign")
    (spoil or bool)(client)
    before = client.type(FENCES) == b"hash" and client.hget(FENCES, "1")
    try:
        with (
            redis.Redis(address["host"], address["port"], **user) as asker,
            pytest.raises(redis.RedisError, match=error),
        ):
            asker.eval(GRANT, len(keys), *keys, *words)
        if spoil is not spoil_counters:
            assert client.eval(GRANT, len(keys), *keys[:3], f"{LOCK}b", *words)[1] == b"HELD"
    finally:
        client.config_set("maxmemory", 0)
        client.execute_command("ACL DELUSER", "halved")
    if client.type(HELD) == b"list":
        assert client.get(key) == f"{NONCES[0]}:7:me".encode()
        assert client.hget(FENCES, "1") == b"7"
    else:
        assert client.type(key) == (b"list" if spoil is spoil_lock else b"none")
        assert (client.type(FENCES) == b"hash" and client.hget(FENCES, "1")) == before


# -- holding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        f"{NONCES[1]}:5:label",
        f"{NONCES[0]}0:5:x",
        NONCES[0],
        NEXT,
        "rest::l",
        "done::l",
        "once::1:l",
        "foreign",
    ],
)
def test_what_is_not_ours_is_left_alone(pair, value):
    """It can be neither prolonged, raised, returned, recorded, rested nor freed, and is not free.

    Nor is it healed: all names are ours or missing, or none is written, and no counter is raised.
    """
    pair.put("b", value, STEP)
    before, mine = dict(pair.memory.fences), NONCES[0]
    assert pair.extend((mine, ["b"], LONG[2]), (mine, ["a", "b"], LONG[2])) == [0, 0]
    assert pair.free(mine, ["a"])  # a missing key alone is
    assert not pair.free(mine, ["a", "b"])
    assert pair.heal(mine, ["a", "b"], fence=FUTURE)[1:] == [b"GONE"]
    assert pair.raise_(mine, ["b"], 9, 5)[1] == b"GONE"
    assert pair.give_back(mine, ["b"], NONCES[2])[1] == b"GONE"
    assert pair.complete(mine, ["b"], STEP)[1] == b"GONE"
    assert pair.rest(mine, ["b"], LONG[2])[1] == b"GONE"
    assert pair.release(mine, ["b"])[1] == b"GONE"
    assert (pair.memory.get(f"{LOCK}a"), pair.memory.get(f"{LOCK}b")) == (None, value)
    assert pair.memory.fences == before


def test_what_is_given_back_keeps_its_expiry_and_can_be_adopted_again(pair):
    """The key has the giver's nonce once more, for no longer, and no token of the giver fits it."""
    given = int(pair.grant(NONCES[0], ["a"])[2])
    swapped = int(pair.grant(NONCES[1], ["a"], old=NONCES[0], label="new", ttl=LONG[1])[2])
    assert pair.give_back(NONCES[1], ["a"], NONCES[0])[1:] == [b"RETURNED", 1]
    assert pair.client.get(f"{LOCK}a") == f"{NONCES[0]}:{swapped}:new".encode()
    assert STEP < pair.client.pttl(f"{LOCK}a") <= LONG[1]
    assert pair.raise_(NONCES[0], ["a"], swapped + 9, given)[1] == b"GONE"
    assert pair.grant(NONCES[2], ["a"], old=NONCES[0])[1] == b"GRANTED"


def test_each_tenancy_of_an_extension_is_prolonged_for_itself(pair):
    """In one message for many, what is gone neither spoils the others nor comes back.

    A node that is out of memory prolongs a lease; only the index lags behind.
    """
    pair.grant(NONCES[0], ["a", "b"], ttl=600_000)
    pair.grant(NONCES[1], ["c"], ttl=600_000)
    gone = (NONCES[2], ["ü:x"], 1_800_000)
    kept = pair.extend(
        gone, (NONCES[0], ["a", "b"], 1_200_000), gone, (NONCES[1], ["c"], 1_800_000)
    )
    assert kept == [0, 1, 0, 1]
    assert [slot(pair.client.pttl(f"{LOCK}{name}")) for name in "abc"] == [2, 2, 3]
    keys = [HELD, f"{LOCK}a"]
    with full(pair):
        words = pair.client.eval(
            scripts.TEXT[Command.EXTEND], 2, *keys, ECHO, NONCES[0], 1_800_000, 1, "a"
        )
    assert words == [ECHO.encode(), b"KEPT", [1], []]
    assert slot(pair.client.pttl(f"{LOCK}a")) == 3


@contextmanager
def full(pair: Pair) -> Iterator[None]:
    """The real node is out of memory."""
    pair.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        pair.client.config_set("maxmemory", 0)


def test_a_heal_on_a_node_that_is_out_of_memory_writes_nothing(pair):
    """The first write is refused, so all are."""
    keys = [FENCES, HELD, f"{LOCK}a"]
    with full(pair), pytest.raises(redis.ResponseError, match="maxmemory"):
        pair.client.eval(
            *(scripts.TEXT[Command.HEAL], 3, *keys, NONCES[0], 7, STEP, "", "1", "a", "0")
        )
    pair.compare()


def test_a_heal_writes_what_is_missing_and_raises_the_counters(pair):
    """The value has the token as its number; the next grant gets a higher one, for each name."""
    pair.grant(NONCES[0], ["b"], ttl=600_000)
    token = FUTURE
    assert pair.heal(NONCES[0], ["a", "b"], fence=token, ttl=1_200_000)[1:] == [b"HEALED", 2]
    assert pair.memory.get(f"{LOCK}a") == f"{NONCES[0]}:{token}:label"
    assert pair.memory.get(f"{LOCK}b") != f"{NONCES[0]}:{token}:label"
    assert {pair.memory.fences[FIELDS[name]] for name in "ab"} == {token}
    assert [slot(pair.client.pttl(f"{LOCK}{name}")) for name in "ab"] == [2, 2]
    assert pair.heal(NONCES[0], ["a"], fence=3, ttl=600_000)[1] == b"HEALED"
    assert slot(pair.client.pttl(f"{LOCK}a")) == 2
    pair.release(NONCES[0], ["a"])
    assert int(pair.grant(NONCES[1], ["a"])[2]) > token


def test_extend_gives_a_key_without_expiry_none(pair):
    """Extend never shortens: a key of ours that was made persistent stays as it is."""
    pair.put("a", f"{NONCES[0]}:5:label", None)
    assert pair.extend((NONCES[0], ["a"], 600_000)) == [1]
    assert pair.client.pttl(f"{LOCK}a") == -1


def test_extend_shortens_no_key(pair):
    """A renewal for less is no release before its time."""
    pair.grant(NONCES[0], ["a"], ttl=2 * STEP)
    assert pair.extend((NONCES[0], ["a"], STEP)) == [1]
    assert slot(pair.client.pttl(f"{LOCK}a")) == 2


def test_a_record_has_the_label_of_who_did_the_work(pair):
    """That of the lease, unless somebody else is named: who puts it back is not who did it."""
    for name, label, told in ("a", "", "me"), ("b", "worker", "worker"):
        pair.grant(NONCES[0], [name], label="me")
        pair.complete(NONCES[0], [name], STEP, at=1, label=label)
        assert pair.client.get(f"{LOCK}{name}") == f"once::1:{told}".encode()


def test_what_was_revoked_rests_for_no_longer_than_it_is_told(pair):
    """Only the holder from whom it was taken lets it go, and is told by whom it was revoked."""
    pair.grant(NONCES[0], ["a", "b"], ttl=1_800_000, label="me")
    pair.revoke("a", digest(NONCES[0]))
    assert pair.rest(NONCES[1], ["a"], STEP)[1:] == [b"GONE"]
    assert pair.rest(NONCES[0], ["a", "b"], STEP)[1:] == [b"RESTING", 2, b"me, by me: it hangs"]
    assert pair.client.get(f"{LOCK}a") == b"rest::me, by me: it hangs"
    assert slot(pair.client.pttl(f"{LOCK}a")) == 1
    assert [row[0] for row in pair.survey([])[2]] == [b"a", b"b"]
    assert pair.rest(NONCES[0], ["a", "b"], STEP)[1:] == [b"GONE"]


def test_of_what_was_revoked_nothing_is_recorded(pair):
    """Its holder lets all names go, and is told by whom it was revoked."""
    pair.grant(NONCES[0], ["a", "b"], label="me")
    pair.revoke("b", digest(NONCES[0]))
    assert pair.complete(NONCES[1], ["a", "b"], STEP)[1:] == [b"GONE"]
    assert pair.complete(NONCES[0], ["a", "b"], STEP)[1:] == [b"GONE", b"me, by me: it hangs"]
    assert pair.client.get(f"{LOCK}a") is pair.client.get(f"{LOCK}b") is None
    assert pair.survey([])[2] == []
    assert pair.client.zcard(RECORDS) == 0
    pair.grant(NONCES[0], ["a"])
    lasts = pair.revoke("a", digest(NONCES[0]), least=LONG[2])  # as long as on any node
    assert slot(lasts[2]) == 3


# -- waiting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("notes", ["look", "refusal", "slot", None])
def test_a_release_keeps_the_name_for_a_waiter(pair, notes):
    """A look, or a refusal that will wait, makes a reservation of the release; with one word.

    Of a limited lock it is noted for each slot. Where nobody waits the name is free at once.
    """
    name = SLOTS[1]
    pair.wish(NONCES[0], 1)
    if notes == "look":
        pair.look(name, STEP)
    elif notes == "refusal":
        pair.grant(NONCES[1], [name], waits=STEP)
    elif notes == "slot":
        pair.wish(NONCES[1], 0)
        told = pair.wish(NONCES[2], 0, waits=STEP)[6]
        assert (told[0] > 0, told[1] > 0, told[2]) == (True, True, -2)
        assert {each.decode() for each in pair.client.zrange(WAITS, 0, -1)} == {*SLOTS}
    released = pair.release(NONCES[0], [name], reserve=STEP, wake=None)
    assert released[1:] == [b"FREED", int(notes is not None)]
    if notes is None:
        assert pair.client.get(f"{LOCK}{name}") is None
        assert not pair.client.exists(f"{QUEUE}{name}")
        return
    assert pair.client.get(f"{LOCK}{name}") == NEXT.encode()
    assert pair.client.lrange(f"{QUEUE}{name}", 0, -1) == [NONCES[0].encode()]
    assert pair.survey([name])[2] == []
    refused = pair.wish(NONCES[2], 1)
    assert (refused[1], refused[3:6], refused[6][1]) == (b"HELD", [b"", b"", 0], -3)
    assert (pair.claim(name), pair.claim(name)) == (NONCES[0], "")
    assert pair.wish(NONCES[2], 1, word=NONCES[0])[1] == b"GRANTED"


def test_a_queue_has_one_word_and_an_expiry(pair):
    """Each release replaces the word, also one that holds nothing there; it outlives the key."""
    pair.look("a", 1_800_000)
    pair.put("a", "foreign", 1_200_000)
    for nonce in NONCES:
        assert pair.release(nonce, ["a"], wake=None)[1] == b"GONE"
        assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [nonce.encode()]
        assert slot(pair.client.pttl(f"{QUEUE}a")) == 2
    pair.release(NONCES[0], ["a"])
    assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [NONCES[2].encode()]


@pytest.mark.parametrize("command", [Command.GRANT, Command.LOOK])
def test_a_name_of_digits_costs_a_node_what_a_name_of_letters_does(pair, command):
    """A visitor may choose the name; a search that tries each digit would stop all nodes."""
    assert node_time(pair, command, "7") < 5 * node_time(pair, command, "q")


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


def test_a_look_tells_that_nobody_holds_what_was_done_once(pair):
    """Who waits is to ask: if it was not told, it would wait for as long as the record lasts."""
    for value, gone in (("once::12:me", True), ("once::12:", True), ("once::x:me", False)):
        pair.put("a", value, 1_200_000)
        assert (pair.look("a", STEP)[2] == -2) is gone
    pair.delete("a")
    pair.client.rpush(f"{LOCK}a", "no text")
    pair.memory.keys[f"{LOCK}a"] = ("no text", None)
    pair.fleeting = True  # what is no text is not compared
    assert pair.look("a", STEP)[2] == -1


# -- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value", "word"), [(0, b"done::me", b"DONE"), (12_345, b"once::12345:me", b"ONCE")]
)
def test_a_record_tells_whoever_asks(pair, at, value, word):
    """It is nobody's and no held name; who asks is told by whom, and when if it tells; it ends."""
    pair.grant(NONCES[0], ["a", "b"], label="me")
    assert pair.complete(NONCES[0], ["a"], 3 * STEP, at=at)[1:] == [b"RECORDED", 1]
    assert pair.client.get(f"{LOCK}a") == value
    assert 2 * STEP < pair.client.pttl(f"{LOCK}a") <= 3 * STEP
    for options in ({}, {"old": NONCES[0]}, {"word": NONCES[0]}):
        refused = pair.grant(NONCES[1], ["a"], **options)
        assert (refused[1], refused[3], refused[5:]) == (word, b"me", [0, b"12345"][: 1 + bool(at)])
    assert [row[0] for row in pair.survey([])[2]] == [b"b"]
    (row,) = pair.survey(["a"])[2]
    kind = (b"once", b"12345") if at else (b"done", b"")
    assert (row[1], row[4], row[5]) == (*kind, b"me")
    assert [row[0] for row in pair.survey(index=ONCE if at else RECORDS)[2]] == [b"a"]
    assert pair.revoke("a", row[2].decode(), now=True)[1] == b"REVOKED"
    assert pair.client.get(f"{LOCK}a") is None


def test_the_time_since_the_grant_is_taken_off_a_record_that_is_put_back(pair):
    """However late the message is; one whose time is over leaves the name free."""
    pair.put("a", f"{NONCES[0]}:5:label", STEP)  # of 3 * STEP, two are over
    assert pair.complete(NONCES[0], ["a"], 4 * STEP, at=1, granted=3 * STEP)[1] == b"RECORDED"
    assert pair.client.pttl(f"{LOCK}a") <= 2 * STEP
    pair.put("a", f"{NONCES[0]}:5:label", STEP)
    assert pair.complete(NONCES[0], ["a"], 2 * STEP, at=1, granted=3 * STEP)[1:] == [b"GONE"]
    assert pair.client.get(f"{LOCK}a") is None
    pair.put("a", f"{NONCES[0]}:5:label", 2 * STEP)  # longer than it can be: nothing is added
    assert pair.complete(NONCES[0], ["a"], STEP, at=1, granted=STEP)[1] == b"RECORDED"
    assert pair.client.pttl(f"{LOCK}a") <= STEP


# -- marks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (MARK, f"{'a' * 32}:60000:other-1", b"other-1"),
        (MARK, f"{'a' * 32}:60000:me", None),
        (MARK, "a:b:c", None),
        (MARK, f"{'a' * 32}:60000:", None),
        (LOCK, f"{'a' * 32}:5:h:1(t):other-1", b"other-1"),
        (LOCK, "rest::h:1(t):other-1", b"other-1"),
        (LOCK, f"{'a' * 32}:5:h:1(t):me", None),
        (LOCK, f"{'a' * 32}:5:h:1(u):other-1", None),
        (LOCK, f"{'a' * 32}:5:h:1:other-1", None),
        (LOCK, "once::12345:h:1(t):other-1", None),
    ],
)
def test_what_is_an_obstacle_to_a_mark(pair, kind, value, other):
    """A mark of another id, or a run of the same task with one, also while it rests.

    A record of work is none, which may stay for days: the message is told when the work was done.
    """
    pair.put("a", value, 1_200_000, kind)
    answer = pair.mark(NONCES[0], "a", ["a"], "me")
    assert answer[1:3] == ([b"TAKEN", other] if other else [b"MARKED", 1])
    # The digest is that of the mark's nonce; a run has none, and for how long it runs is not known.
    assert not other or answer[3:] == [b"", 0] or kind == MARK
    assert not other or kind == LOCK or answer[3] == digest("a" * 32).encode()
    assert (pair.client.get(f"{MARK}a") == f"{NONCES[0]}:{STEP}:me".encode()) is (other is None)


@pytest.mark.parametrize(
    ("key", "value", "nonce", "whose", "removed"),
    [
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[0], "", True),
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[1], "", False),
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[0], "m", False),
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[0], "me-2", False),
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[1], "me", True),
        (MARK, f"{NONCES[0]}:{STEP}:me", NONCES[1], ANY_TASK, True),
        (LOCK, "done::h:1(t):me-1", NONCES[0], "me-1", True),  # a record has no nonce
        (LOCK, "done::h:1(t):me-1", NONCES[0], "", False),
        (LOCK, "done::h:1(t):me-1", NONCES[0], "e-1", False),
        (LOCK, f"{NONCES[0]}:5:h:1(t):me-1", NONCES[1], "me-1", False),  # a run goes on
    ],
)
def test_what_removes_a_mark_or_a_record(pair, key, value, nonce, *, whose, removed):
    """Its nonce, its id, or an operator; nothing else."""
    pair.put("a", value, STEP, key)
    assert pair.unmark(nonce, "a", whose, key)[1] == (b"UNMARKED" if removed else b"GONE")
    assert pair.client.exists(f"{key}a") == (not removed)


@pytest.mark.parametrize(
    ("life", "left", "age"),
    [
        ("1800000", 600_000, 1_200_000),
        ("5", 600_000, 0),
        ("9" * 400, 600_000, 2**53),
        ("1800000", None, 1_800_001),
    ],
)
def test_a_refusal_tells_for_how_long_the_mark_has_been_there(pair, life, left, age):
    """Its life less what is left of it; of what others have written it is a number at least."""
    pair.put("a", f"{'a' * 32}:{life}:other-1", left, MARK)
    told = pair.mark(NONCES[0], "a", [], "me")[4]
    assert slot(told) == slot(age) or 0 <= told - age < STEP


# -- telling ----------------------------------------------------------------------------------


def test_the_survey_shows_no_nonce(pair):
    """What it tells is not the power to release. Equal owners have equal digests, as refusals do.

    A name has a waiter as long as the note holds.
    """
    pair.grant(NONCES[0], ["a", "b"], label="me")
    pair.grant(NONCES[1], ["c"], label="you")
    pair.look("a", waits=1_800_000)
    pair.look("b", waits=-1)
    answer = pair.survey()
    assert not any(nonce in repr(answer) for nonce in NONCES)
    rows = {row[0].decode(): row for row in answer[2]}
    assert [rows[name][5:] for name in "abc"] == [[b"me", 1], [b"me", 0], [b"you", 0]]
    assert rows["a"][2] == rows["b"][2] != rows["c"][2]
    assert pair.grant(NONCES[2], ["a"])[4] == rows["a"][2] == digest(NONCES[0]).encode()


def test_pages_of_the_index(pair):
    """A page has so many names, the first due first, and tells where the next one begins."""
    now = int(time.time() * 1000)
    due = {"a": now + 900_000, "b": now + 600_000, "c": now + 900_000, "d": now + 1_200_000}
    due |= {"dead": now - 1, "far": 2**53 - 1}
    pair.client.zadd(HELD, due)
    pair.memory.held = dict(due)
    for name in due:
        pair.put(name, "another:client", 1_200_000)

    def page(most: int, begin: int = 0) -> tuple[list[str], int]:
        answer = pair.survey(limit=most, begin=begin)
        return [row[0].decode() for row in answer[2]], answer[3]

    assert page(9) == page(5) == (["b", "a", "c", "d", "far"], 0)
    assert page(2) == (["b", "a"], now + 900_000)
    assert page(2, now + 900_000) == (["a", "c"], now + 1_200_000)
    assert page(2, now + 1_200_000) == (["d", "far"], 0)
    assert page(1, now + 900_000) == (["a"], now + 900_000)  # it is for the asker to ask for more
    assert page(1, now + 1_200_000) == (["d"], 2**53 - 1)


@pytest.mark.slow
def test_the_index_of_records_has_the_last_ones(pair):
    """It is bounded, whatever the number of records; those that end first are left out."""
    now = int(time.time() * 1000)
    entries = {f"old:{number}": now + 900_000 + number for number in range(11_000)}
    pair.client.zadd(RECORDS, entries)
    pair.memory.records = dict(entries)

    def trimmed() -> bool:
        """Whether one more record has ended with so many."""
        pair.fleeting = True  # too many to compare each time
        pair.grant(NONCES[0], ["a"])
        pair.complete(NONCES[0], ["a"], 1_800_000)
        pair.delete("a")
        return int(pair.client.zcard(RECORDS)) == 10_000

    assert any(trimmed() for _ in range(2000))
    pair.compare()
    assert pair.client.zscore(RECORDS, "a") is not None
    assert pair.client.zscore(RECORDS, "old:1000") is None


@pytest.mark.slow
def test_the_index_forgets_what_has_expired(pair):
    """Names whose holders never released do not pile up: some grants sweep them out."""
    dead = {f"dead:{number}": 1 for number in range(1000)}
    pair.client.zadd(HELD, dead)

    def swept() -> bool:
        """Whether one more grant and release found nothing expired, or left nothing."""
        pair.grant(NONCES[0], ["a"])
        pair.release(NONCES[0], ["a"])
        return int(pair.client.zcard(HELD)) == 0

    assert any(swept() for _ in range(2000))


def test_what_a_stranger_wrote_spoils_no_survey(pair):
    """A list under a lock's key is somebody's; notes that cannot be read are none.

    A time that is no number of milliseconds is told as the last there can be.
    """
    pair.client.lpush(f"{LOCK}a", "x")
    pair.client.set(WAITS, "a stranger's")
    pair.client.zadd(HELD, {"a": float("inf"), "b": float("inf")})

    def told(*words: object) -> list[Any]:
        text = scripts.TEXT[Command.SURVEY]
        found: list[Any] = pair.client.eval(text, 2, HELD, WAITS, ECHO, LOCK, *words)
        return found

    assert [(row[0], row[6]) for row in told(0, "a", "b")[2]] == [(b"a", 0)]
    assert told(1, 0)[3] == 2**53
    answer = pair.client.eval(scripts.TEXT[Command.MEMORY], 2, FENCES, WAITS, ECHO, 9, 0)
    assert answer[2][3] == 0


@pytest.mark.parametrize("index", [MARKS, RECORDS])
def test_an_index_that_cannot_be_written_stops_nothing(pair, index):
    """Somebody has put something else under its key: marks and records are worth more."""
    pair.client.set(index, "x")
    pair.fleeting = True  # the node in memory has no such keys
    assert pair.mark(NONCES[0], "a", [], "me")[1] == b"MARKED"
    assert pair.unmark(NONCES[0], "a")[1] == b"UNMARKED"
    pair.grant(NONCES[0], ["b"])
    assert pair.complete(NONCES[0], ["b"], STEP)[1] == b"RECORDED"
    pair.client.delete(index)


@pytest.mark.parametrize(
    ("section", "rows", "facts"),
    [
        ("memory", "# Memory\r\nused_maxmemory:3\r\nmaxmemory_human:1M\r\n", [0, b"", 0, 0]),
        (
            "memory",
            "# Memory\r\nmaxmemory_human:1M\r\nmaxmemory:7\r\nmaxmemory_policy:all-lru\r\n",
            [7, b"all-lru", 0, 0],
        ),
        ("stats", "# Stats\r\nevicted_keys:12\r\n", [0, b"noeviction", 12, 0]),
        ("stats", "# Stats\r\nun_evicted_keys:12\r\n", [0, b"noeviction", 0, 0]),
    ],
    ids=["no limit", "limit", "evicted", "none evicted"],
)
def test_what_a_node_tells_of_its_memory_is_a_row_of_its_own(pair, section, rows, facts):
    """Not the end of another row's name, nor a name that begins alike."""
    text = instead_of_info(Command.MEMORY, section, rows)
    assert pair.client.eval(text, 2, FENCES, WAITS, ECHO, 9, "")[2] == facts


def test_who_knows_no_epoch_is_told_of_the_memory(pair):
    """A connection under the restart guard has none: that a node has another is no news."""
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last="")[1] == b"MEMORY"
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=1)[1:] == [b"EMPTY"]  # it had another
    pair.empty()
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=0)[1:] == [b"EMPTY"]
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last="")[1] == b"MEMORY"
    assert pair.grant(NONCES[0], ["a"], epoch="")[1] == b"EMPTY"
    assert pair.heal(NONCES[0], ["a"], epoch="")[1] == b"EMPTY"


def test_a_node_tells_how_many_names_have_waiters(pair):
    """Those that it believes in still, up to a limit."""
    pair.fleeting = True
    for name, milliseconds in {"a": 1_800_000, "b": 1_800_000, "c": 1}.items():
        pair.look(name, milliseconds)
    pair.let_pass(3 * SHORT)
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=0)[2][3] == 2
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 1, last=0)[2][3] == 1


# -- promotion, admission --------------------------------------------------------------------


@pytest.fixture
def promoted() -> Iterator[Any]:
    """A real node with an epoch, which is promoted when the test calls ``promote``."""
    with closing(EmbeddedNode()) as node:
        node.start()
        with closing(node.client()) as client:
            client.hset(FENCES, "epoch", 0)
            yield client


def promote(client: Any) -> str:
    """Make it a replica of nobody, and a master again; the id of its history from then on."""
    client.replicaof("127.0.0.1", 1)
    client.replicaof("NO", "ONE")
    return str(client.info("replication")["master_replid"])


def put(client: Any, request: Request, epoch: str, text: str = "") -> bytes:
    """What a real node says over a connection that knows this epoch."""
    keys, argv = request.wire()
    text = text or scripts.TEXT[request.command]
    outcome: bytes = client.eval(text, len(keys), *keys, request.nonce, *argv, epoch)[1]
    return outcome


BY_HISTORY = (
    (Acquire(NONCES[0], bool, target(["a"]), FUTURE, WIDE, STEP, "me"), b"GRANTED"),
    (Heal(NONCES[0], bool, target(["a"]), 7, STEP, "me"), b"HEALED"),
    (Memory(NONCES[0], bool, FENCES, WAITS, 9), b"MEMORY"),
)
by_history = pytest.mark.parametrize(
    ("request_", "done"), BY_HISTORY, ids=["grant", "heal", "memory"]
)


@by_history
def test_a_node_that_was_promoted_since_has_no_vote(promoted, request_, done):
    """Its connections stay open, and it may have another's data; the next connection knows it."""
    history = promote(promoted)
    assert put(promoted, request_, "0") == b"EMPTY"
    assert not promoted.exists(f"{LOCK}a")
    assert put(promoted, request_, f"0{history}") == done
    promote(promoted)
    assert put(promoted, request_, f"0{history}") == b"EMPTY"


HISTORY = "5eed" * 10
REPLID = f"master_replid:{HISTORY}\r\nmaster_replid2:{'0' * 40}\r\n"
REPLICA = "slave0:ip=10.0.0.1,port=6379,state=online,offset=-1,lag=0\r\n"


@by_history
@pytest.mark.parametrize(
    ("rows", "history"),
    [
        (f"{REPLID}second_repl_offset:-1\r\n", ""),
        (f"{REPLICA}{REPLID}second_repl_offset:7\r\nrepl_backlog_active:1\r\n", HISTORY),
        (f"{REPLID}master_repl_offset:7\r\n", ""),
        (f"master_replid2:{HISTORY}\r\nsecond_repl_offset:7\r\n", ""),
    ],
    ids=["first master", "promoted", "without the offset", "without the id"],
)
def test_only_a_server_that_says_so_was_promoted(promoted, request_, done, rows, history):
    """By a digit behind the offset; the handshake reads the reply of its server in the same way."""
    text = instead_of_info(request_.command, "replication", f"role:master\r\n{rows}")
    assert put(promoted, request_, f"0{history}", text) == done
    other = "" if history else HISTORY
    assert put(promoted, request_, f"0{other}", text) == b"EMPTY"
    facts = admission.parse(
        f"redis_version:8.2\r\nrun_id:r\r\nuptime_in_seconds:9\r\nrole:master\r\n{rows}".encode()
    )
    assert facts.history == history


def instead_of_info(command: Command, section: str, rows: str) -> str:
    """The text of the script, which gets these rows from the node."""
    text, asked = scripts.TEXT[command], f"redis.call('INFO', '{section}')"
    assert text.count(asked) == 1
    return text.replace(asked, f"({rows!r})")


def admit(pair: Pair, guard: int, uptime: int, epoch: str = "new", *, promoted: str = "") -> int:
    """Ask both nodes, of which the one in memory has what the other has; milliseconds left."""
    known = {"new": 1, "newer": 2, "-": memory.LOST, "": 0, "first": 3, "second": 4}
    before = {key.decode(): told.decode() for key, told in pair.client.hgetall(FENCES).items()}
    pair.memory.fences = {key: known.get(told) or int(told) for key, told in before.items()}
    arguments = (NONCES[0], guard, uptime, epoch, promoted)
    answer = pair.client.eval(scripts.ADMIT, 1, FENCES, *arguments)
    assert answer[:2] == [NONCES[0].encode(), b"ADMITTED"]
    kept = pair.client.hget(FENCES, "epoch") or b"-"
    assert answer[3] == (b"" if kept == b"-" else kept)
    word, left, mark = pair.memory.admit(guard, uptime, known[epoch], known[promoted])
    assert (word, mark) == ("ADMITTED", str(known[answer[3].decode()] or ""))
    assert bool(left) == bool(answer[2])
    assert left == pytest.approx(answer[2], abs=5000)  # the two are asked one after the other
    assert pair.memory.fences.keys() == {key.decode() for key in pair.client.hkeys(FENCES)}
    return int(answer[2])


def test_a_look_at_the_admission_leaves_no_mark(pair):
    """It tells what a client is told, writes nothing, and does not begin to count."""

    def look(guard: int, uptime: int = 10**9, promoted: str = "") -> int:
        before = pair.client.hgetall(FENCES)
        pair.memory.fences = {key.decode(): int(told) for key, told in before.items()}
        kept = dict(pair.memory.fences)
        answer = pair.client.eval(scripts.ADMIT, 1, FENCES, NONCES[0], guard, uptime, "", promoted)
        word, left, mark = pair.memory.admit(guard, uptime, None, 3 if promoted else 0)
        assert (answer[1], answer[3].decode()) == (word.encode(), mark)
        assert left == pytest.approx(answer[2], abs=5000)
        assert pair.client.hgetall(FENCES) == before
        assert pair.memory.fences == kept
        return int(answer[2])

    pair.client.delete(FENCES)
    assert look(60_000) == -1
    pair.client.hset(FENCES, "empty", int(time.time() * 1000) - 500_000)
    assert 80_000 < look(600_000) <= 100_000
    assert 594_000 < look(600_000, 5_000) <= 595_000
    assert look(50) == 0
    pair.client.hset(FENCES, "epoch", "7")
    assert look(60_000) == 0
    assert look(60_000, promoted="3") == -1
    pair.client.hset(FENCES, "replid", "3")
    assert look(60_000, promoted="3") == 0


def test_admission_of_an_emptied_node_counts_from_its_discovery(pair):
    """An old node without an epoch is mistrusted for a whole guard, once."""
    pair.client.delete(FENCES)
    assert 59_000 < admit(pair, 60_000, 10**9) <= 60_000
    pair.let_pass(20)
    assert admit(pair, 60_000, 10**9) < 59_990
    assert not pair.client.hexists(FENCES, "epoch")


def test_another_client_has_no_guard_and_no_fence(pair):
    """SET NX of an emptied node, which admits none of us, succeeds, and no counter rises."""
    pair.client.delete(FENCES)
    assert admit(pair, 60_000, 10**9) > 0
    before = pair.client.hgetall(FENCES)
    assert pair.client.set(f"{LOCK}a", "theirs", nx=True, px=STEP)
    assert pair.client.hgetall(FENCES) == before


def test_admission_begins_anew_for_all_when_somebody_knows_that_the_node_is_younger(pair):
    """Who saw it start, or its clock set, knows better than the first who missed the epoch."""

    def left(uptime: int) -> int:
        """Milliseconds that are left where the epoch was missed 500 s ago."""
        pair.client.delete(FENCES)
        pair.client.hset(FENCES, "empty", int(time.time() * 1000) - 500_000)
        return admit(pair, 600_000, uptime)

    assert 80_000 < left(10**9) <= 100_000
    # The uptime is told in whole seconds; a machine that stands still is younger by more.
    eventually(lambda: 80_000 < left(499_800) <= 100_000)
    assert 594_000 < left(5_000) <= 595_000
    assert 575_000 < admit(pair, 600_000, 10**9) <= 595_000


def test_admission_writes_the_epoch_when_the_guard_is_over(pair):
    """After the guard the node is admitted for good, and without a guard at once."""
    pair.client.delete(FENCES)
    assert admit(pair, 30, 10**9) > 0
    pair.let_pass(40)
    assert admit(pair, 30, 10**9) == 0
    assert pair.client.hget(FENCES, "epoch") == b"new"
    assert admit(pair, 10**9, 0, "newer") == 0
    assert pair.client.hget(FENCES, "epoch") == b"new"
    pair.client.delete(FENCES)
    assert admit(pair, 0, 0) == 0
    assert pair.client.hexists(FENCES, "epoch")


def test_admission_of_a_promoted_replica_counts_from_its_discovery(pair):
    """It has a copy of its master's epoch, and of when that one was new; the counters stay."""
    pair.client.delete(FENCES)
    pair.client.hset(FENCES, mapping={"epoch": "new", "empty": 7, "12": 34})
    assert admit(pair, 60_000, 10**9) == 0
    assert 59_000 < admit(pair, 60_000, 10**9, promoted="first") <= 60_000
    assert pair.client.hget(FENCES, "epoch") == b"-"  # of no connection: see ``grant.lua``
    pair.let_pass(20)
    assert 0 < admit(pair, 60_000, 10**9, promoted="first") < 59_990
    assert 0 < admit(pair, 60_000, 10**9) < 59_990  # it has forgotten that it was promoted
    assert admit(pair, 10, 10**9, "newer", promoted="first") == 0
    assert admit(pair, 60_000, 10**9, promoted="first") == 0
    assert pair.client.hget(FENCES, "epoch") == b"newer"
    assert pair.client.hget(FENCES, "12") == b"34"


def test_admission_of_the_next_promoted_replica_counts_again(pair):
    """The mark is of one server's data; it goes with no copy of them."""
    pair.client.delete(FENCES)
    pair.client.hset(FENCES, mapping={"epoch": "new", "empty": 7, "replid": "first"})
    assert admit(pair, 60_000, 10**9, promoted="first") == 0
    assert 59_000 < admit(pair, 60_000, 10**9, promoted="second") <= 60_000
    assert pair.client.hget(FENCES, "replid") == b"second"
    assert admit(pair, 0, 10**9, promoted="second") == 0


def test_admission_does_not_trust_a_clock_that_went_back(pair):
    """A discovery that lies in the future counts anew from now."""
    pair.client.delete(FENCES)
    pair.client.hset(FENCES, "empty", int(time.time() * 1000) + 10**7)
    assert 59_000 < admit(pair, 60_000, 10**9) <= 60_000
