"""The Lua on a real node, and the node in memory beside it, asked the same questions."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
import redis

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
from django_redlock.nodes import admission, memory, scripts
from django_redlock.nodes.memory import MemoryNode, digest, owner_of
from django_redlock.testing import EmbeddedNode
from tests.support.waiting import eventually

PREFIX = "pair:"
FENCES, HELD, WAITS = f"{PREFIX}fences", f"{PREFIX}held", f"{PREFIX}waits"
MARKS, RECORDS, ONCE = (f"{PREFIX}{each}" for each in ("marks", "records", "once"))
LOCK, QUEUE = f"{PREFIX}lock:", f"{PREFIX}queue:"
NONCES = [f"{number:032x}" for number in (1, 2, 0xABC)]
ECHO = f"{7:032x}"
NAMES = ["a", "b", "c", "ü:x", "rest::"]
FIELDS = {"a": "1", "b": "2", "c": "1", "ü:x": "3", "rest::": "2"}  # some share a counter
MARK = f"{PREFIX}mark:"
IDS = ["me", "other-1", "x" * 64]
RUNS = [
    "h:1(t):me",
    "h:1(t):other-1",
    f"(t):{'x' * 65}",
    "h:1(u):me",
    "(t):",
    "h:1(t):a b",
    "h:1(t):me\n",
]
LABELS = ["host:1", "", "a:b:c", "ü", "line\nbreak", "x" * 200, *RUNS]
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
FOREIGN = ["", "x", "foreign:1", "abc:12:label", "ABC:7:", "rest::label", "rest::", "1:2:3:4"]
FOREIGN += ["revoked:ab:x", "revoked::x", f"revoked:{'A' * 16}:x", f"revoked:{'a' * 17}:x"]
FOREIGN += ["done::label", "done::", "done:", "rest::done::"]
FOREIGN += ["once::12:label", "once::12:", "once::x:label", "once::12", "once:12:label"]
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
        for name in NAMES:
            for key in (f"{LOCK}{name}", f"{MARK}{name}"):
                value = self.client.get(key)
                assert self.memory.get(key) == (None if value is None else value.decode())
                assert slot(self.memory.pttl(key)) == slot(self.client.pttl(key))
        fences = {key.decode(): int(told) for key, told in self.client.hgetall(FENCES).items()}
        assert self.memory.fences == fences
        now = time.time() * 1000 + 1000
        for key in (HELD, WAITS, MARKS, RECORDS, ONCE):
            entries = {
                name.decode(): slot(due - now)
                for name, due in self.client.zrange(key, 0, -1, withscores=True)
                if due > now
            }
            known: dict[str, float] = getattr(self.memory, key.removeprefix(PREFIX))
            assert {n: slot(due - now) for n, due in known.items() if due > now} == entries, key
        self.compare_queues()

    def compare_queues(self) -> None:
        """See that the same words lie in the queues."""
        for name in NAMES:
            queue = f"{QUEUE}{name}"
            words = [word.decode() for word in self.client.lrange(queue, 0, -1)]
            word, due = self.memory.wakeups.get(queue, ("", math.inf))
            assert words == ([word] if word else [])
            left = due - self.memory.clock()
            assert slot(self.client.pttl(queue)) == (slot(left) if word else -2)

    # -- requests ---------------------------------------------------------------------------

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

    def unmark(self, nonce: str, name: str, whose: str = "") -> list[Any]:
        """Remove a mark."""
        return self.ask(Unmark, nonce, MARKS, f"{MARK}{name}", whose)

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


def blurred(answer: Any) -> list[Any]:
    """An answer without what depends on the moment: times to live, and the index's order."""
    nonce, word, *rest = answer
    if word in (b"HELD", b"DONE", b"ONCE"):
        return [nonce, word, slot(rest[0]), *rest[1:]]
    if word == b"TAKEN":
        return [nonce, word, *rest[:2], rest[2] // STEP]
    if word == b"LOOKED":
        return [nonce, word, slot(rest[0])]
    if word == b"REVOKED":
        return [nonce, word, slot(rest[0])]
    if word == b"FOUND":
        return [nonce, word, sorted([*x[:3], slot(x[3]), *x[4:]] for x in rest[0]), *rest[1:]]
    return [nonce, word, *rest]


@pytest.fixture
def pair(redlock_embedded) -> Iterator[Pair]:
    """A real node and one in memory, both without locks and counters."""
    redlock_embedded[0].start()  # a test may have left it dead
    with closing(redlock_embedded[0].client(socket_timeout=10)) as client:
        keys = list(client.scan_iter(f"{PREFIX}*"))
        if keys:
            client.delete(*keys)
        yield Pair(client)


class Walk:
    """Random questions, foreign hands and expiries included."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.rng = random.Random(seed)
        self.granted: dict[str, tuple[int, list[str]]] = {}
        self.nonce, self.names, self.ttl = NONCES[0], NAMES[:1], STEP

    def step(self) -> None:
        """Do one thing to both nodes."""
        rng = self.rng
        self.nonce = rng.choice(NONCES)
        self.names = rng.sample(NAMES, rng.choice([1, 1, 1, 2, 3]))
        self.pair.fleeting = rng.random() < 0.15
        self.ttl = SHORT if self.pair.fleeting else rng.choice(LONG)
        ways = {
            self.grant: 30,
            self.adopt: 10,
            self.raise_: 15,
            self.extend: 15,
            self.heal: 12,
            self.release: 14,
            self.mark: 12,
            lambda: self.pair.unmark(
                self.nonce, self.names[0], rng.choice(["", "", ANY_TASK, *IDS])
            ): 6,
            lambda: self.pair.look(self.names[0], self.ttl): 12,
            lambda: self.pair.claim(self.names[0]): 6,
            lambda: self.pair.rest(self.nonce, self.names, self.ttl): 8,
            lambda: self.pair.complete(self.nonce, self.names, self.ttl): 9,
            self.do_once: 4,
            self.revoke: 14,
            lambda: self.pair.give_back(self.nonce, self.names, rng.choice(NONCES)): 10,
            lambda: self.pair.survey(
                rng.choice([[], self.names, ["no", *NAMES]]),
                index=rng.choice([HELD, MARKS, RECORDS]),
            ): 28,
            self.interfere: 6,
            self.empty: 1,
        }
        rng.choices(list(ways), list(ways.values()))[0]()
        if self.pair.fleeting:
            self.pair.let_pass(3 * SHORT)
            self.pair.compare()

    def do_once(self) -> None:
        """Record when the work was done, or put such a record back."""
        at, label = self.rng.choice([1, FUTURE // 1000]), self.rng.choice(LABELS)
        granted = 0 if self.pair.fleeting else self.rng.choice([0, *LONG])
        self.pair.complete(self.nonce, self.names, self.ttl, at=at, label=label, granted=granted)

    def grant(self) -> None:
        """Ask for names, with a wish that counts or one that does not."""
        wish = self.rng.choice([0, self.rng.randrange(50), FUTURE + self.rng.randrange(50)])
        label = self.rng.choice(LABELS)
        word = self.rng.choice(["", "", *NONCES, NONCES[2].upper(), "0" * 31])
        waits = self.rng.choice([0, self.ttl])
        self.note(
            self.pair.grant(
                self.nonce,
                self.names,
                wish=wish,
                ttl=self.ttl,
                label=label,
                word=word,
                waits=waits,
            )
        )

    def release(self) -> None:
        """Give back: what we have or have not, and keep it for others, and wake them, or not."""
        reserve = self.rng.choice([0, self.ttl])
        wake = [i for i in range(len(self.names)) if self.rng.random() < 2 / 3]
        self.pair.release(self.nonce, self.names, reserve=reserve, wake=wake)

    def adopt(self) -> None:
        """Ask for the names of another nonce, or of what is none."""
        old = self.rng.choice([*NONCES, "0" * 32, "foreign", NONCES[2].upper()])
        self.note(self.pair.grant(self.nonce, self.names, ttl=self.ttl, label="new", old=old))

    def note(self, answer: list[Any]) -> None:
        """Remember the number of a grant."""
        if answer[1] == b"GRANTED":
            self.granted[self.nonce] = int(answer[2]), self.names

    def mark(self) -> None:
        """Mark a task that waits for some of the names, or for none of them."""
        names = self.rng.choice([[], self.names, self.names])
        self.pair.mark(self.nonce, self.names[0], names, self.rng.choice(IDS))

    def raise_(self) -> None:
        """Lift to a token above or below, by the right number or a wrong one."""
        number, names = self.granted.get(self.nonce, (0, self.names))
        names = self.rng.choice([names, names, self.names])
        token = number + self.rng.randrange(-1, 5)
        self.pair.raise_(self.nonce, names, token, number + self.rng.choice([0, 0, 0, 1, -1]))

    def extend(self) -> None:
        """Prolong several tenancies at once, some of them twice, some of them not there."""
        self.pair.extend(
            *(
                (self.rng.choice(NONCES), self.rng.sample(NAMES, self.rng.randint(1, 3)), self.ttl)
                for _ in range(self.rng.randint(1, 4))
            )
        )

    def revoke(self) -> None:
        """Take a name away from whoever has it, or from somebody who may not have it."""
        there = self.pair.memory.get(f"{LOCK}{self.names[0]}")
        owners = [digest(nonce) for nonce in NONCES]
        owners += [owner_of(there)] * 3 if there else []
        owner, now = self.rng.choice(owners), self.rng.random() < 0.3
        self.pair.revoke(self.names[0], owner, now=now, least=self.ttl)

    def heal(self) -> None:
        """Put back what we had or had not, with a token above or below the counters."""
        fence = max(1, self.granted.get(self.nonce, (5, []))[0] + self.rng.randrange(-1, 3))
        self.pair.heal(self.nonce, self.names, fence=fence, ttl=self.ttl)

    def interfere(self) -> None:
        """Be another client, or an operator."""
        if self.rng.random() < 0.3:
            self.pair.delete(self.names[0])
            return
        nearly = [f"{self.nonce}:", self.nonce, f"{self.nonce}:5", f"{self.nonce}:05:l"]
        nearly += [f"revoked:{digest(self.nonce)}:", f"revoked:{digest(self.nonce).upper()}:x"]
        value = self.rng.choice([*FOREIGN, *nearly, NEXT, f"rest::{RUNS[0]}"])
        kind = self.rng.choice([LOCK, LOCK, MARK])
        self.pair.put(self.names[0], value, self.rng.choice([None, *LONG]), kind)

    def empty(self) -> None:
        """Ask while the epoch is missing, or with another one."""
        self.pair.empty()
        self.pair.grant(self.nonce, self.names, epoch=self.rng.choice(["0", "", "1"]))
        self.pair.heal(self.nonce, self.names, epoch=self.rng.choice(["0", "", "1"]))
        self.pair.admit()
        self.pair.grant(self.nonce, self.names, epoch=self.rng.choice(["", "1", "00"]))


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 40))]
)
def test_the_node_in_memory_means_what_the_lua_means(pair, seed):
    """The same random questions get the same answers and leave the same keys."""
    walk = Walk(pair, seed)
    for _ in range(60):
        walk.step()


EVERY_ANSWER = {
    ("grant", b"GRANTED"),
    ("grant", b"HELD"),
    ("grant", b"DONE"),
    ("grant", b"ONCE"),
    ("grant", b"GONE"),
    ("grant", b"EMPTY"),
    ("raise", b"RAISED"),
    ("raise", b"GONE"),
    ("extend", b"KEPT"),
    ("extend", b"no"),
    ("extend", b"yes"),
    ("extend", b"free"),
    ("heal", b"HEALED"),
    ("heal", b"GONE"),
    ("heal", b"EMPTY"),
    ("release", b"FREED"),
    ("release", b"GONE"),
    ("mark", b"MARKED"),
    ("mark", b"TAKEN"),
    ("unmark", b"UNMARKED"),
    ("unmark", b"GONE"),
    ("look", b"LOOKED"),
    ("claim", b"CLAIMED"),
    ("rest", b"RESTING"),
    ("rest", b"GONE"),
    ("revoke", b"REVOKED"),
    ("revoke", b"GONE"),
    ("extend", b"revoked"),
    ("release", b"revoked"),
    ("rest", b"revoked"),
    ("complete", b"revoked"),
    ("complete", b"RECORDED"),
    ("complete", b"GONE"),
    ("return", b"RETURNED"),
    ("return", b"GONE"),
    ("survey", b"FOUND"),
    ("survey", b"mark"),
    ("survey", b"lock"),
    ("survey", b"done"),
    ("survey", b"once"),
}


@pytest.mark.nightly
def test_the_random_questions_meet_every_answer(pair, monkeypatch):
    """The random sequences are worth something: they meet every answer that there is."""
    met: set[tuple[str, bytes]] = set()
    ask = Pair.ask

    def noting(self: Pair, kind: type[Request], *args: Any, **options: Any) -> list[Any]:
        answer = ask(self, kind, *args, **options)
        met.add((kind.command.value, answer[1]))
        if kind is Extend:
            met.update(("extend", (b"no", b"yes")[kept]) for kept in answer[2])
            met.update(("extend", b"free") for _ in answer[3])
        usual = {Extend: 4, Release: 3, Rest: 3, Complete: 2 if answer[1] == b"GONE" else 3}
        if len(answer) > usual.get(kind, len(answer)):
            met.add((kind.command.value, b"revoked"))
        if kind is Survey:
            met.update(("survey", row[1]) for row in answer[2])
        return answer

    monkeypatch.setattr(Pair, "ask", noting)
    walk = Walk(pair, 7)
    words, kept = set(), 0
    for _ in range(1_200):
        walk.step()
        words |= {word for word, _ in pair.memory.wakeups.values()}
        kept += any(value == NEXT for value, _ in pair.memory.keys.values())
        if kept and words == set(NONCES) and met == EVERY_ANSWER:
            break  # not on and on, for keys must outlive the test
    assert words == set(NONCES)
    assert kept > 0
    assert met == EVERY_ANSWER


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


def test_a_grant_delivered_twice_is_refused_the_second_time(pair):
    """A duplicate of a grant neither prolongs nor renumbers the tenancy."""
    assert pair.grant(NONCES[0], ["a"], ttl=600_000)[1] == b"GRANTED"
    assert pair.grant(NONCES[0], ["a"], ttl=1_800_000)[1] == b"HELD"


def test_a_grant_needs_the_epoch_that_the_asker_knows(pair):
    """A node with another's data, or none, is found out by any open connection."""
    assert pair.grant(NONCES[0], ["a"], epoch="another's")[1] == b"EMPTY"
    pair.empty()
    assert pair.grant(NONCES[0], ["a"], epoch="")[1] == b"EMPTY"
    assert pair.client.get(f"{LOCK}a") is None


def test_adoption_compares_the_whole_nonce(pair):
    """A value that merely begins like the nonce given away is somebody else's."""
    for value in (NONCES[0], f"{NONCES[0]}0:5:x", NONCES[0][:-1], f"x{NONCES[0]}:5:x"):
        pair.put("a", value, STEP)
        assert pair.grant(NONCES[1], ["a"], old=NONCES[0])[1] == b"HELD"
        assert pair.give_back(NONCES[0], ["a"], NONCES[1])[1] == b"GONE"
        assert pair.extend((NONCES[0], ["a"], 1_800_000)) == [0]
        assert pair.rest(NONCES[0], ["a"], 1_800_000)[1] == b"GONE"
        assert pair.release(NONCES[0], ["a"])[1] == b"GONE"


def test_what_is_given_back_keeps_its_expiry_and_can_be_adopted_again(pair):
    """The key has the giver's nonce once more, for no longer, and no token of the giver fits it."""
    given = int(pair.grant(NONCES[0], ["a"])[2])
    swapped = int(pair.grant(NONCES[1], ["a"], old=NONCES[0], label="new")[2])
    assert pair.give_back(NONCES[1], ["a"], NONCES[0])[1:] == [b"RETURNED", 1]
    assert pair.client.get(f"{LOCK}a") == f"{NONCES[0]}:{swapped}:new".encode()
    assert 0 < pair.client.pttl(f"{LOCK}a") <= STEP
    assert pair.raise_(NONCES[0], ["a"], swapped + 9, given)[1] == b"GONE"
    assert pair.grant(NONCES[2], ["a"], old=NONCES[0])[1] == b"GRANTED"


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


def test_each_tenancy_of_an_extension_is_prolonged_for_itself(pair):
    """In one message for many, what is gone neither spoils the others nor comes back."""
    pair.grant(NONCES[0], ["a", "b"], ttl=600_000)
    pair.grant(NONCES[1], ["c"], ttl=600_000)
    gone = (NONCES[2], ["ü:x"], 1_800_000)
    kept = pair.extend(
        gone, (NONCES[0], ["a", "b"], 1_200_000), gone, (NONCES[1], ["c"], 1_800_000)
    )
    assert kept == [0, 1, 0, 1]
    assert [slot(pair.client.pttl(f"{LOCK}{name}")) for name in "abc"] == [2, 2, 3]
    assert not pair.client.exists(f"{LOCK}ü:x")


def test_extend_prolongs_on_a_node_that_is_out_of_memory(pair):
    """A lease is prolonged where nothing new can be stored; only the index lags behind."""
    pair.grant(NONCES[0], ["a"], ttl=600_000)
    keys = [HELD, f"{LOCK}a"]
    pair.client.config_set("maxmemory", 1)
    try:
        words = pair.client.eval(
            scripts.TEXT[Command.EXTEND], 2, *keys, ECHO, NONCES[0], 1_800_000, 1, "a"
        )
        assert words == [ECHO.encode(), b"KEPT", [1], []]
        assert slot(pair.client.pttl(f"{LOCK}a")) == 3
    finally:
        pair.client.config_set("maxmemory", 0)


def test_only_a_missing_key_is_free(pair):
    """Another's, a reservation, a rest and a record are not; of several names each counts."""
    assert pair.free(NONCES[0], ["a"])
    pair.grant(NONCES[0], ["b"])
    assert pair.free(NONCES[0], ["a", "b"])
    assert not pair.free(NONCES[0], ["b"])
    for value in (f"{NONCES[1]}:5:label", NEXT, "rest::label", "done::label", "foreign"):
        pair.put("a", value, STEP)
        assert not pair.free(NONCES[0], ["a"])
        assert not pair.free(NONCES[0], ["a", "b"])
        assert not pair.free(NONCES[0], ["b", "a"])


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


@pytest.mark.parametrize("value", [f"{NONCES[1]}:5:label", NEXT, "rest::l", "done::l", "foreign"])
def test_a_heal_writes_nothing_over_another_value(pair, value):
    """All names are ours or missing, or none is written; also no counter is raised."""
    pair.put("b", value, STEP)
    before = dict(pair.memory.fences)
    assert pair.heal(NONCES[0], ["a", "b"], fence=FUTURE)[1:] == [b"GONE"]
    assert pair.memory.get(f"{LOCK}a") is None
    assert pair.memory.fences == before


def test_a_heal_on_an_emptied_node_writes_nothing(pair):
    """The node has another epoch than when the connection was opened: its guard comes first."""
    for epoch in ("", "1", "00"):
        assert pair.heal(NONCES[0], ["a"], epoch=epoch)[1:] == [b"EMPTY"]
    assert pair.memory.get(f"{LOCK}a") is None


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


@by_history
def test_without_a_look_at_the_history_a_promoted_node_votes(promoted, request_, done):
    """The check can fail."""
    text = scripts.TEXT[request_.command]
    found = "string.find(told, 'second_repl_offset:', 1, true)"
    assert text.count(found) == 1
    promote(promoted)
    assert put(promoted, request_, "0", text.replace(found, "false")) == done


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


def test_a_heal_on_a_node_that_is_out_of_memory_writes_nothing(pair):
    """The first write is refused, so all are."""
    pair.client.config_set("maxmemory", 1)
    keys = [FENCES, HELD, f"{LOCK}a"]
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            pair.client.eval(
                *(scripts.TEXT[Command.HEAL], 3, *keys, NONCES[0], 7, STEP, "", "1", "a", "0")
            )
    finally:
        pair.client.config_set("maxmemory", 0)
    pair.compare()


def test_extend_gives_a_key_without_expiry_none(pair):
    """Extend never shortens: a key of ours that was made persistent stays as it is."""
    pair.put("a", f"{NONCES[0]}:5:label", None)
    assert pair.extend((NONCES[0], ["a"], 600_000)) == [1]
    assert pair.client.pttl(f"{LOCK}a") == -1


def test_the_index_tells_the_first_due_and_no_more_than_asked_for(pair):
    """The survey reads at most `limit` names from the index, in one order."""
    for name, ttl in zip(NAMES, [1_800_000, 600_000, 1_200_000, 1_650_000, 900_000], strict=True):
        pair.grant(NONCES[0], [name], ttl=ttl)
    found = [item[0].decode() for item in pair.survey([], limit=3)[2]]
    assert found == ["b", "rest::", "c"]


@pytest.mark.slow
def test_the_index_of_marks_forgets_what_has_expired(pair):
    """Marks that nobody removed do not pile up in the index: some publishers sweep them out."""
    pair.client.zadd(MARKS, {f"dead:{number}": 1 for number in range(1000)})

    def swept() -> bool:
        """Whether one more mark, removed again, left nothing."""
        pair.mark(NONCES[0], "a", [], "me")
        pair.unmark(NONCES[0], "a")
        return int(pair.client.zcard(MARKS)) == 0

    assert any(swept() for _ in range(2000))


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


@pytest.mark.parametrize("index", [HELD, MARKS, RECORDS])
def test_what_each_index_lists(pair, index):
    """The kind of each value, a label, and no nonce; what is no mark is no row."""
    now = int(time.time() * 1000)
    due = {"a": now + 900_000, "b": now + 600_000, "c": now + 900_000, "dead": now - 1}
    pair.client.zadd(index, due)
    setattr(pair.memory, index.removeprefix(PREFIX), dict(due))
    prefix = MARK if index == MARKS else LOCK
    value = {HELD: f"{NONCES[0]}:5:h:1(t):me", MARKS: f"{NONCES[0]}:9:me", RECORDS: "done::(t):me"}
    for name in "ac":
        pair.put(name, value[index], 1_200_000, prefix)
    pair.put("b", "another:client", 1_200_000, prefix)
    kind, label = {
        HELD: (b"lock", b"h:1(t):me"),
        MARKS: (b"mark", b"me"),
        RECORDS: (b"done", b"(t):me"),
    }[index]
    answer = pair.survey(index=index)
    assert NONCES[0] not in repr(answer)
    found = [[row[0], row[1], row[5]] for row in answer[2]]
    theirs = [] if index == MARKS else [[b"b", b"lock", b""]]
    assert found == [*theirs, [b"a", kind, label], [b"c", kind, label]]


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

    assert page(9) == (["b", "a", "c", "d", "far"], 0)
    assert page(5) == (["b", "a", "c", "d", "far"], 0)
    assert page(2) == (["b", "a"], now + 900_000)
    assert page(2, now + 900_000) == (["a", "c"], now + 1_200_000)
    assert page(2, now + 1_200_000) == (["d", "far"], 0)
    assert page(1, now + 900_000) == (["a"], now + 900_000)  # it is for the asker to ask for more
    assert page(1, now + 1_200_000) == (["d"], 2**53 - 1)


def test_an_index_that_a_stranger_wrote_ends(pair):
    """A time that is no number of milliseconds is told as the last there can be."""
    pair.client.zadd(HELD, {"a": float("inf"), "b": float("inf")})
    answer = pair.client.eval(scripts.TEXT[Command.SURVEY], 2, HELD, WAITS, ECHO, LOCK, 1, 0)
    assert answer[2:] == [[], 2**53]


def test_a_node_tells_what_it_does_when_its_memory_is_full(pair):
    """The bytes that it may use, the policy, and how many keys it has evicted."""
    nonce, word, told = pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=0)
    assert (nonce, word, told) == (NONCES[0].encode(), b"MEMORY", [0, b"noeviction", 0, 0])
    try:
        pair.client.config_set("maxmemory-policy", "volatile-lru")
        pair.client.config_set("maxmemory", "100mb")
        answer = pair.client.eval(scripts.TEXT[Command.MEMORY], 2, FENCES, WAITS, ECHO, 9, 0)
    finally:
        pair.client.config_set("maxmemory", "0")
        pair.client.config_set("maxmemory-policy", "noeviction")
    assert answer[2] == [100 * 1024 * 1024, b"volatile-lru", 0, 0]


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


def test_an_emptied_node_says_so_before_a_lock_is_asked_for(pair):
    """By the epoch of the connection, as a grant is refused; nothing is written for that."""
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=1)[1:] == [b"EMPTY"]
    pair.client.delete(FENCES)
    pair.memory.fences.clear()
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=0)[1:] == [b"EMPTY"]


def test_who_knows_no_epoch_is_told_of_the_memory(pair):
    """A connection under the restart guard has none: that a node has another is no news."""
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last="")[1] == b"MEMORY"
    pair.empty()
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last="")[1] == b"MEMORY"
    assert pair.grant(NONCES[0], ["a"], epoch="")[1] == b"EMPTY"
    assert pair.heal(NONCES[0], ["a"], epoch="")[1] == b"EMPTY"


def test_a_node_tells_how_many_names_have_waiters(pair):
    """Those that it believes in still, up to a limit; what a stranger wrote there is none."""
    pair.fleeting = True
    for name, milliseconds in {"a": 1_800_000, "b": 1_800_000, "c": 1}.items():
        pair.look(name, milliseconds)
    pair.let_pass(3 * SHORT)
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 9, last=0)[2][3] == 2
    assert pair.ask(Memory, NONCES[0], FENCES, WAITS, 1, last=0)[2][3] == 1
    pair.client.delete(WAITS)
    pair.client.set(WAITS, "a stranger's")
    text = scripts.TEXT[Command.MEMORY]
    assert pair.client.eval(text, 2, FENCES, WAITS, ECHO, 9, 0)[2][3] == 0


def test_the_survey_shows_no_nonce(pair):
    """What the survey tells is not the power to release; equal owners have equal digests."""
    pair.grant(NONCES[0], ["a", "b"], label="me")
    pair.grant(NONCES[1], ["c"], label="you")
    answer = pair.survey()
    assert not any(nonce in repr(answer) for nonce in NONCES)
    digests = {item[0]: item[2] for item in answer[2]}
    assert digests[b"a"] == digests[b"b"] != digests[b"c"]


def test_a_key_of_another_type_spoils_no_survey(pair):
    """A list under a lock's key is told as somebody's, without an error."""
    pair.client.lpush(f"{LOCK}a", "x")
    text = scripts.TEXT[Command.SURVEY]
    answer = pair.client.eval(text, 2, HELD, WAITS, ECHO, LOCK, 0, "a", "b")
    assert [item[0] for item in answer[2]] == [b"a"]


def test_the_survey_says_of_which_names_the_node_knows_a_waiter(pair):
    """As long as the note holds; what cannot be read says of none."""
    pair.grant(NONCES[0], ["a", "b"], label="me")
    pair.look("a", waits=1_800_000)
    pair.look("b", waits=-1)

    def waited() -> dict[bytes, int]:
        return {row[0]: row[6] for row in pair.survey(["a", "b", "c"])[2]}

    assert waited() == {b"a": 1, b"b": 0}
    assert {row[0]: row[6] for row in pair.survey([])[2]} == {b"a": 1, b"b": 0}
    pair.client.delete(WAITS)
    pair.client.set(WAITS, "a stranger's")
    text = scripts.TEXT[Command.SURVEY]
    answer = pair.client.eval(text, 2, HELD, WAITS, ECHO, LOCK, 0, "a")
    assert [row[6] for row in answer[2]] == [0]


# -- a single name ----------------------------------------------------------------------------

MINE, OTHERS = f"{NONCES[0]}:5:me", f"{NONCES[1]}:5:x"


@pytest.mark.parametrize(
    ("value", "outcomes"),  # of who is alone, was woken by its holder, adopts from it
    [
        (None, (b"GRANTED", b"GRANTED", b"GONE")),
        (MINE, (b"HELD", b"HELD", b"HELD")),  # this grant arrives for the second time
        (OTHERS, (b"HELD", b"GRANTED", b"GRANTED")),
        (f"{NONCES[2]}:5:x", (b"HELD", b"HELD", b"HELD")),
        (NEXT, (b"HELD", b"GRANTED", b"HELD")),
        ("rest::x", (b"HELD", b"HELD", b"HELD")),
        ("", (b"HELD", b"HELD", b"HELD")),
        ("foreign", (b"HELD", b"HELD", b"HELD")),
    ],
)
@pytest.mark.parametrize("counter", [None, 5, FUTURE + 5])
@pytest.mark.parametrize("wish", [0, FUTURE])
def test_who_gets_a_single_name(pair, value, outcomes, counter, wish):
    """The value decides, and who asks; a refusal leaves key and counter as they are."""
    askers: list[dict[str, Any]] = [{}, {"word": NONCES[1]}, {"old": NONCES[1]}]
    for options, outcome in zip(askers, outcomes, strict=True):
        pair.delete("a")
        pair.client.delete(HELD)
        pair.memory.held.clear()
        if value is not None:
            pair.put("a", value, STEP)
        if counter is not None:
            pair.count("1", counter)
        answer = pair.grant(NONCES[0], ["a"], wish=wish, label="me", **options)
        assert answer[1] == outcome
        now = pair.memory.fences.get("1")
        if outcome == b"GRANTED":
            assert int(answer[2]) == now == max(wish, (counter or 0) + 1)
            assert pair.client.get(f"{LOCK}a") == f"{NONCES[0]}:{now}:me".encode()
            pair.client.hdel(FENCES, "1")
            del pair.memory.fences["1"]
        else:
            assert now == counter


# -- waiting ----------------------------------------------------------------------------------


def test_a_release_without_waiters_deletes(pair):
    """Nobody waits, or not any more: the name is free at once, and no queue is made."""
    for note in (None, SHORT):
        pair.grant(NONCES[0], ["a"])
        if note:
            pair.fleeting = True
            pair.look("a", note)
            pair.let_pass(3 * SHORT)
            pair.fleeting = False
        assert pair.release(NONCES[0], ["a"], reserve=STEP, wake=None)[1] == b"FREED"
        assert pair.client.get(f"{LOCK}a") is None
        assert not pair.client.exists(f"{QUEUE}a")
    assert pair.client.zcard(WAITS) == 0  # the release removed what was old news


def test_a_release_keeps_the_name_for_a_waiter(pair):
    """A look, or a refusal that will wait, makes a reservation of the release; with one word."""
    for wait in (
        lambda: pair.look("a", STEP),
        lambda: pair.grant(NONCES[1], ["a"], waits=STEP),
    ):
        pair.grant(NONCES[0], ["a"])
        wait()
        assert pair.release(NONCES[0], ["a"], reserve=STEP, wake=None)[1] == b"FREED"
        assert pair.client.get(f"{LOCK}a") == NEXT.encode()
        assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [NONCES[0].encode()]
        assert pair.grant(NONCES[1], ["a"])[1] == b"HELD"
        assert pair.claim("a") == NONCES[0]
        assert pair.claim("a") == ""
        assert pair.grant(NONCES[1], ["a"], word=NONCES[0])[1] == b"GRANTED"
        pair.delete("a")


def test_a_record_is_nobodys_and_no_held_name(pair):
    """What is done can be neither extended, raised, released, woken nor surveyed; it ends."""
    number = int(pair.grant(NONCES[0], ["a", "b"], label="me")[2])
    assert pair.complete(NONCES[1], ["a"], STEP)[1] == b"GONE"
    assert pair.complete(NONCES[0], ["a"], 3 * STEP)[1:] == [b"RECORDED", 1]
    assert pair.client.get(f"{LOCK}a") == b"done::me"
    assert 2 * STEP < pair.client.pttl(f"{LOCK}a") <= 3 * STEP
    assert pair.complete(NONCES[0], ["a"], STEP)[1] == b"GONE"
    assert pair.extend((NONCES[0], ["a"], STEP), (NONCES[0], ["b"], STEP)) == [0, 1]
    assert pair.raise_(NONCES[0], ["a"], number + 1, number)[1] == b"GONE"
    assert pair.release(NONCES[0], ["a"])[1] == b"GONE"
    assert pair.rest(NONCES[0], ["a"], STEP)[1] == b"GONE"
    assert pair.give_back(NONCES[0], ["a"], NONCES[1])[1] == b"GONE"
    for options in ({}, {"old": NONCES[0]}, {"word": NONCES[0]}):
        refused = pair.grant(NONCES[2], ["c", "a"], **options)
        if "old" in options:
            assert refused[1] == b"GONE"  # of "c"
            refused = pair.grant(NONCES[2], ["a"], **options)
        assert refused[1] == b"DONE"
        assert refused[3] == b"me"
    assert [row[0] for row in pair.survey([])[2]] == [b"b"]
    assert [row[1] for row in pair.survey(["a"])[2]] == [b"done"]


def test_work_that_was_done_once_tells_when(pair):
    """The record is nobody's; whoever asks for the name is told when, and by whom."""
    pair.grant(NONCES[0], ["a"], label="me")
    assert pair.complete(NONCES[0], ["a"], 3 * STEP, at=12_345)[1:] == [b"RECORDED", 1]
    assert pair.client.get(f"{LOCK}a") == b"once::12345:me"
    for word in ("", NONCES[0]):
        refused = pair.grant(NONCES[1], ["a"], word=word)
        assert (refused[1], refused[3], refused[5:]) == (b"ONCE", b"me", [0, b"12345"])
    assert pair.extend((NONCES[0], ["a"], STEP)) == [0]
    assert not pair.free(NONCES[0], ["a"])
    assert pair.heal(NONCES[0], ["a"])[1] == b"GONE"
    assert pair.release(NONCES[0], ["a"])[1] == b"GONE"
    (row,) = pair.survey(["a"])[2]
    assert (row[1], row[4], row[5]) == (b"once", b"12345", b"me")
    assert [each[0] for each in pair.survey(index=ONCE)[2]] == [b"a"]
    assert pair.survey(index=HELD)[2] == pair.survey(index=RECORDS)[2] == []
    assert pair.revoke("a", row[2].decode(), now=True)[1] == b"REVOKED"
    assert pair.client.get(f"{LOCK}a") is None


def test_a_record_is_put_back_in_the_place_of_the_callers_own_key(pair):
    """No other key is replaced, and where there is none, none is set."""
    back: dict[str, Any] = {"at": 12_345, "label": "who did it", "granted": 2 * STEP}
    assert pair.complete(NONCES[0], ["a"], 3 * STEP, **back)[1:] == [b"GONE"]
    for value in (f"{NONCES[1]}:5:label", NEXT, "rest::l", "done::l", "once::1:l", "foreign"):
        pair.put("a", value, STEP)
        assert pair.complete(NONCES[0], ["a"], 3 * STEP, **back)[1:] == [b"GONE"]
        assert pair.client.get(f"{LOCK}a") == value.encode()
    pair.delete("a")
    pair.grant(NONCES[0], ["a"], ttl=2 * STEP)
    assert pair.complete(NONCES[0], ["a"], 3 * STEP, **back)[1:] == [b"RECORDED", 1]
    assert pair.client.get(f"{LOCK}a") == b"once::12345:who did it"


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


def test_a_reservation_is_nobodys(pair):
    """It can be neither extended, raised, adopted, rested nor released, and no survey shows it."""
    pair.put("a", NEXT, STEP)
    for nonce in NONCES:
        assert pair.grant(NONCES[1], ["a"], old=nonce)[3:] == [b"", b"", 0]
        assert pair.give_back(nonce, ["a"], NONCES[1])[1] == b"GONE"
        assert pair.extend((nonce, ["a"], 1_800_000)) == [0]
        assert pair.rest(nonce, ["a"], STEP)[1] == b"GONE"
        assert pair.release(nonce, ["a"], wake=None)[1] == b"GONE"
        assert pair.raise_(nonce, ["a"], 9, 5)[1] == b"GONE"
    assert pair.survey([])[2] == pair.survey(["a"])[2] == []
    assert pair.grant(NONCES[0], ["a"])[3:] == [b"", b"", 0]


def test_a_word_opens_only_what_is_reserved_or_its_own(pair):
    """With the word of a dead tenancy: a missing key, a reservation, or that tenancy's own value.

    Never another's, one that merely begins like it, a foreign one or one that rests; and not
    unless that holds for every name.
    """
    word = NONCES[0]
    for value in (f"{NONCES[1]}:5:x", word, f"{word}0:5:x", word[:-1], "rest::x", "next::x", ""):
        pair.put("a", value, STEP)
        assert pair.grant(NONCES[1], ["a"], word=word)[1] == b"HELD"
        assert pair.grant(NONCES[1], ["b", "a"], word=word)[1] == b"HELD"
        assert pair.client.get(f"{LOCK}b") is None
    for value in (f"{word}:5:x", NEXT):
        pair.put("a", value, STEP)
        before = pair.memory.fences.get("1", 0)
        assert pair.grant(NONCES[1], ["a", "b"], word=word)[1] == b"GRANTED"
        assert pair.memory.fences["1"] > before
        pair.delete("b")


def test_a_word_is_no_nonce(pair):
    """What was taken with a word belongs to the taker's fresh nonce, not to the word's."""
    pair.put("a", f"{NONCES[0]}:5:x", STEP)
    pair.grant(NONCES[1], ["a"], word=NONCES[0])
    assert pair.release(NONCES[0], ["a"])[1] == b"GONE"
    assert pair.extend((NONCES[0], ["a"], 1_800_000)) == [0]
    assert pair.release(NONCES[1], ["a"])[1] == b"FREED"


def test_a_release_wakes_also_where_it_holds_nothing(pair):
    """Who waits may stand at a node that the holder never reached."""
    pair.look("a", STEP)
    assert pair.release(NONCES[0], ["a"], wake=None)[1] == b"GONE"
    assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [NONCES[0].encode()]


def test_a_queue_has_one_word_and_an_expiry(pair):
    """Each release replaces the word; it outlives the key it lies beside, by a second at least."""
    pair.look("a", 1_800_000)
    pair.put("a", "foreign", 1_200_000)
    for nonce in NONCES:
        pair.release(nonce, ["a"], wake=None)
        assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [nonce.encode()]
        assert slot(pair.client.pttl(f"{QUEUE}a")) == 2
    pair.release(NONCES[0], ["a"])
    assert pair.client.lrange(f"{QUEUE}a", 0, -1) == [NONCES[2].encode()]


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (f"{'a' * 32}:60000:other-1", b"other-1"),
        (f"{'a' * 32}:60000:me", None),
        ("no mark", None),
        ("a:b:c", None),
        (f"{'a' * 32}:other-1", None),
        (f"{'a' * 32}:60000:", None),
    ],
)
def test_which_mark_is_an_obstacle(pair, value, other):
    """That of another id; one of the same id, and what is no mark, are replaced."""
    pair.put("a", value, 1_200_000, MARK)
    answer = pair.mark(NONCES[0], "a", [], "me")
    assert answer[1:3] == ([b"TAKEN", other] if other else [b"MARKED", 1])
    assert (pair.client.get(f"{MARK}a") == f"{NONCES[0]}:{STEP}:me".encode()) is (other is None)


@pytest.mark.parametrize(
    ("label", "other"),
    [
        ("h:1(t):other-1", b"other-1"),
        ("h:1(t):me", None),
        ("h:1(u):other-1", None),
        ("h:1", None),
        ("h:1:other-1", None),
        ("t:other-1", None),
        ("h:1(t):" + "x" * 64, b"x" * 64),
    ],
)
def test_which_lock_is_an_obstacle_to_a_mark(pair, label, other):
    """That of a run of the same task with another id, also while it rests; no other lock."""
    pair.grant(NONCES[1], ["b"], label=label)
    assert pair.mark(NONCES[0], "a", ["b"], "me")[1:3] == (
        [b"TAKEN", other] if other else [b"MARKED", 1]
    )
    assert pair.unmark(NONCES[0], "a")[1] == (b"GONE" if other else b"UNMARKED")
    pair.rest(NONCES[1], ["b"], STEP)
    assert pair.mark(NONCES[0], "a", ["b"], "me")[1] == (b"TAKEN" if other else b"MARKED")


def test_a_record_of_work_is_no_run(pair):
    """It may stay for days: a message in that time is sent, and is told when the work was done."""
    pair.grant(NONCES[1], ["b"], label="h:1(t):other-1")
    pair.complete(NONCES[1], ["b"], STEP, at=12_345)
    assert pair.client.get(f"{LOCK}b") == b"once::12345:h:1(t):other-1"
    assert pair.mark(NONCES[0], "a", ["b"], "me")[1] == b"MARKED"


def test_marks_tell_attempts_apart(pair):
    """The digest is that of the mark's nonce; a run has none."""
    digests = set()
    for nonce in NONCES[:2]:
        pair.mark(nonce, "a", [], "other-1")
        digests.add(pair.mark(NONCES[2], "a", ["b"], "me")[3])
    assert len(digests) == 2
    pair.unmark(NONCES[1], "a")
    pair.grant(NONCES[1], ["b"], label="h:1(t):other-1")
    reply = pair.mark(NONCES[2], "a", ["b"], "me")
    assert reply == [NONCES[2].encode(), b"TAKEN", b"other-1", b"", 0]


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


@pytest.mark.parametrize("whose", ["me-1", "me", "", "e-1"])
def test_a_record_is_removed_by_the_id_of_its_task_alone(pair, whose):
    """It has no nonce; another task's stays."""
    pair.grant(NONCES[0], ["a"], label="h:1(t):me-1")
    pair.complete(NONCES[0], ["a"], STEP)
    answer = pair.ask(Unmark, NONCES[0], MARKS, f"{LOCK}a", whose)
    assert answer[1] == (b"UNMARKED" if whose == "me-1" else b"GONE")
    assert pair.client.exists(f"{LOCK}a") == (whose != "me-1")


def test_a_lock_is_removed_by_no_id(pair):
    """A run that goes on keeps what it holds."""
    pair.grant(NONCES[0], ["a"], label="h:1(t):me-1")
    assert pair.ask(Unmark, NONCES[1], MARKS, f"{LOCK}a", "me-1")[1] == b"GONE"


def test_a_mark_is_removed_by_its_nonce_its_id_or_by_an_operator(pair):
    """Another nonce removes nothing, unless the task id is that of the mark or any is meant."""
    pair.mark(NONCES[0], "a", [], "me")
    assert pair.unmark(NONCES[1], "a")[1] == b"GONE"
    assert pair.unmark(NONCES[0], "a")[1] == b"UNMARKED"
    pair.mark(NONCES[0], "a", [], "me")
    assert pair.unmark(NONCES[0], "a", "m")[1] == b"GONE"
    assert pair.unmark(NONCES[0], "a", "me-2")[1] == b"GONE"
    assert pair.unmark(NONCES[1], "a", "me")[1] == b"UNMARKED"
    pair.mark(NONCES[0], "a", [], "me")
    assert pair.unmark(NONCES[1], "a", ANY_TASK)[1] == b"UNMARKED"
    assert pair.unmark(NONCES[1], "a", ANY_TASK)[1] == b"GONE"


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


def test_a_look_tells_how_long_and_notes(pair):
    """The time the key has left, or that there is none; notes that are old news go."""
    assert pair.look("a", STEP)[2] == -2
    pair.put("a", "foreign", None)
    assert pair.look("a", STEP)[2] == -1
    pair.put("a", "foreign", 1_200_000)
    assert 900_000 < pair.look("a", STEP)[2] <= 1_200_000
    pair.client.zadd(WAITS, {"old": 1})
    pair.look("b", STEP)
    assert sorted(pair.client.zrange(WAITS, 0, -1)) == [b"a", b"b"]


def test_refusals_tell_owners_apart(pair):
    """Equal owners have equal digests, which are not the nonce; a reservation has none."""
    digests = []
    for value in (f"{NONCES[0]}:5:x", f"{NONCES[0]}:7:y", f"{NONCES[1]}:5:x", "foreign", NEXT):
        pair.put("a", value, STEP)
        digests.append(pair.grant(NONCES[2], ["a"])[4])
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
    assert digests[4] == b""
    assert not any(nonce.encode() in digest for nonce in NONCES for digest in digests)


# -- admission --------------------------------------------------------------------------------


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


def test_a_grant_that_comes_behind_its_release_lasts_for_its_ttl(pair):
    """The node cannot know: it refuses the name to others until then, and no longer."""
    pair.release(NONCES[0], ["a"])
    assert pair.grant(NONCES[0], ["a"])[1] == b"GRANTED"
    assert pair.grant(NONCES[1], ["a"])[1] == b"HELD"
    assert slot(pair.client.pttl(f"{LOCK}a")) == slot(STEP)


def test_another_client_has_no_guard_and_no_fence(pair):
    """SET NX of an emptied node, which admits none of us, succeeds, and no counter rises."""
    pair.client.delete(FENCES)
    assert admit(pair, 60_000, 10**9) > 0
    before = pair.client.hgetall(FENCES)
    assert pair.client.set(f"{LOCK}a", "theirs", nx=True, px=STEP)
    assert pair.client.hgetall(FENCES) == before


def test_admission_of_a_young_node_counts_from_its_discovery_too(pair):
    """A node's count of its seconds is too large if its clock was set since it was started."""
    pair.client.delete(FENCES)
    assert 59_000 < admit(pair, 60_000, 50_000) <= 60_000


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
