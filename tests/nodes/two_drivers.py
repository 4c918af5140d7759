"""Play a schedule of requests by the thread driver and by the event-loop driver; print both.

    python -m tests.nodes.two_drivers FROM TO [VARIANT]

One line of JSON for each seed, with by each driver:

* the votes of each request, after whether it undoes a grant to which replies may be late, and
  whether it waits a moment for more when it is decided;
* which requests each node received, however often: a thread that was interrupted sends an undo more
  than once, which does no harm;
* which nonces each node has in the end that were to be undone there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeAlias

from tests.support import virtual
from tests.support.virtual import WORLD, Fate, Interruption, Nodes, Received

virtual.install()

from django_redlock.core import commands as c  # noqa: E402 - not before the time is replaced
from django_redlock.core import hold, quorum  # noqa: E402 - as above
from django_redlock.core.completion import marked_or_not, recorded_or_not  # noqa: E402 - as above
from django_redlock.core.policy import Policy  # noqa: E402 - as above
from django_redlock.core.protocol import UNDO, Command, Request, Vote  # noqa: E402 - as above
from django_redlock.nodes import scripts  # noqa: E402 - as above
from django_redlock.nodes.address import from_url  # noqa: E402 - as above
from django_redlock.nodes.group import NodeGroup  # noqa: E402 - as above
from tests.nodes.odd_node import ERRORS, RAW, bulk  # noqa: E402 - as above

Asked: TypeAlias = "asyncio.Future[list[Vote]]"

TIMEOUT: Final = 1.0
LINGERING: Final = UNDO | {Command.EXTEND}
REST: Final = 9.0  # seconds between two requests, after which no reply is late
DONE: Final = {
    "release": b"FREED",
    "rest": b"RESTING",
    "complete": b"RECORDED",
    "mark": b"MARKED",
    "unmark": b"UNMARKED",
}
NOTHING: Final = b"*0\r\n"
KINDS: Final = (*["usual"] * 12, *["late"] * 3, *["split", "refusal", "error", "forgotten"] * 2)
ODD: Final = ("another", "garbage", "senseless", "more", "closed", "cut")


class Replies:
    """What becomes of each request, by seed, node, command, nonce and how often it came.

    Attributes:
        sure: the nonces of requests that are interrupted. Their undos are carried out: a thread
            closes the connection behind an undo that follows an interruption, so it hears no error.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.sure: set[str] = set()

    def __call__(self, request: Received) -> Fate:
        place, command, nonce, again, words = request
        rng = random.Random(f"{self._seed} {place} {command} {nonce} {again}")
        # Each node at a time of its own: a thread reads all that has come, a loop one by one.
        # All in less than a release waits for prompt nodes.
        delay = 0.0001 + 0.0008 * rng.random()
        usual = self._usual(command, words, nonce)
        cut = rng.randrange(1, len(usual))
        kind = rng.choice((*KINDS, *ODD))
        if again or (nonce in self.sure and command in UNDO):
            kind = "usual"
        if kind == "forgotten" and command in ("grant", "mark"):
            # A thread reads all that has come, and sends no grant again that is decided; a loop
            # has read and sent this first.
            kind = "usual"
        if kind == "late":
            delay = TIMEOUT * rng.choice([0.3, 0.7, 1.3, 2.1]) + delay
        fates = {
            "split": Fate(delay, True, usual[:cut], rng.choice([1e-5, 0.4, 1.2]), usual[cut:]),
            "refusal": Fate(delay, command in UNDO, _refusal(command, nonce, usual)),
            "error": Fate(delay, False, rng.choice([ERRORS["an error"], b"-OOM x\r\n"])),
            "forgotten": Fate(delay, False, b"-NOSCRIPT No matching script.\r\n"),
            "another": Fate(delay, True, usual.replace(nonce.encode(), b"f" * 32)),
            "garbage": Fate(delay, True, RAW["html"]),
            "senseless": Fate(delay, True, _reply(nonce, b"NONSENSE", b":1\r\n")),
            "more": Fate(delay, True, usual + b"+OK\r\n"),
            "closed": Fate(delay, rng.random() < 0.5, None),
            "cut": Fate(delay, True, usual[:cut], 1e-5, None),
        }
        return fates.get(kind, Fate(delay, True, usual))

    def _usual(self, command: str, words: tuple[bytes, ...], nonce: str) -> bytes:
        if command == "grant":
            return _reply(nonce, b"GRANTED", bulk(b"1700000000000000"))
        if command == "raise":
            return _reply(nonce, b"RAISED", bulk(b"1700000000000000"))
        if command == "look":
            return _reply(nonce, b"LOOKED", b":500\r\n")
        if command == "extend":
            count = int(words[1]) - 1
            return _reply(nonce, b"KEPT", b"*%d\r\n" % count + b":1\r\n" * count, NOTHING)
        return _reply(nonce, DONE[command], b":%d\r\n" % (command != "release"))


def _reply(nonce: str, outcome: bytes, *items: bytes) -> bytes:
    data = bulk(nonce.encode()) + bulk(outcome) + b"".join(items)
    return b"*%d\r\n%b" % (2 + len(items), data)


def _refusal(command: str, nonce: str, usual: bytes) -> bytes:
    if command == "grant":
        items = b":900\r\n", bulk(b"other"), bulk(b"0" * 16), b":0\r\n"
        return _reply(nonce, b"HELD", *items)
    if command == "mark":
        return _reply(nonce, b"TAKEN", bulk(b"another"), bulk(b"1" * 16), b":7\r\n")
    if command == "release":
        return _reply(nonce, b"GONE", b":1\r\n")
    return usual if command in ("extend", "look") else _reply(nonce, b"GONE")


class Step(NamedTuple):
    """A request.

    Attributes:
        stop: after how many seconds its caller is interrupted, if it waits then.
        rest: seconds until the next request.
    """

    request: Request
    stop: float
    rest: float


def schedule(seed: int, policy: Policy) -> Iterator[Step]:
    """Three to eight requests."""
    rng = random.Random(f"{seed} requests")
    live: list[tuple[str, str]] = []
    for _ in range(rng.randint(3, 8)):
        kind = rng.choice(["grant", "grant", "mark", *["undo"] * 4, "extend", "raise", "look"])
        nonce, name = f"{rng.getrandbits(128):032x}", rng.choice("abc")
        if live and kind in ("undo", "raise"):
            nonce, name = live.pop() if kind == "undo" else live[-1]
        elif kind in ("undo", "raise"):
            kind = "grant"
        if kind in ("grant", "mark"):
            live.append((nonce, name if kind == "grant" else ""))
        stop = rng.choice([0.0, 0.0005, 0.2]) if rng.random() < 0.2 else math.inf
        # Some undos come while replies to the grant are late. Nothing else does: a thread has
        # another connection for that, and a loop has one.
        rest = 0.0 if kind in ("grant", "mark") and rng.random() < 0.5 else REST
        yield Step(request_of(kind, nonce, name, policy, rng), stop, rest)
        if not rest:
            live.pop()
            undo = request_of("undo", nonce, "" if kind == "mark" else name, policy, rng)
            yield Step(undo, math.inf, REST)


def request_of(kind: str, nonce: str, name: str, policy: Policy, rng: random.Random) -> Request:
    """A request, as the algorithm makes them."""
    size, most = policy.size, policy.majority
    target = policy.target([name or "a"])
    some = frozenset(rng.sample(range(size), rng.randint(1, size)))
    if kind == "undo":
        return undo_of(nonce, name, policy, rng, some)
    if kind == "grant":
        decided = quorum.with_majority(quorum.granted_or_not, most)
        first = target.queue_nodes[0]
        return c.Acquire(nonce, decided, target, 1, 10**9, 30_000, "label", first=first)
    if kind == "mark":
        decided = quorum.with_majority(marked_or_not, most)
        return c.Mark(nonce, decided, "m", "m:t", (), ttl=9000, task="t", task_id="1")
    if kind == "extend":
        leases = [c.Extension(nonce, policy.target([each]), 9000) for each in "abc"]
        decided = quorum.with_majority(quorum.kept_or_not, policy.majority)
        some_of = leases[: rng.choice([1, 3])]
        return c.Extend(nonce, decided, some_of, worth=quorum.some_unheard)
    if kind == "raise":
        return c.Raise(nonce, quorum.all_heard, target, 9, to=some, each=dict.fromkeys(some, 5))
    return c.Look(nonce, quorum.all_heard, target, 0, 500, to=some)


def undo_of(
    nonce: str, name: str, policy: Policy, rng: random.Random, some: frozenset[int]
) -> Request:
    """A request that undoes a grant of a name; or without one a mark."""
    target, touched = policy.target([name or "a"]), rng.choice([None, some])
    heard = quorum.with_majority(quorum.heard, policy.majority)
    if not name:
        return c.Unmark(nonce, heard, "m", "m:t", touched=touched, lasts=60.0)
    if rng.random() < 0.2:
        recorded = quorum.with_majority(recorded_or_not, policy.majority)
        return c.Complete(nonce, recorded, target, 9000, touched=touched, lasts=60.0)
    to = rng.choice([policy.everyone, some])
    return hold.undo(policy, target, nonce, to, touched=to & some if touched else None)


def group_of(urls: Sequence[str]) -> NodeGroup:
    """What asks these nodes."""
    return NodeGroup([from_url(url) for url in urls], timeout=TIMEOUT, guard=0, prefix="redlock:")


class Driver:
    """One of the two ways to ask."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls, self.group = urls, group_of(urls)

    def ask(self, step: Step) -> list[Vote]:
        """Put the request; return the votes."""
        WORLD.interrupt_at = WORLD.now + step.stop
        try:
            return self.group.ask(step.request)
        finally:
            WORLD.interrupt_at = math.inf

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        WORLD.background(seconds)

    def end(self) -> None:
        """Nothing is asked any more."""


class LoopDriver(Driver):
    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self.loop = virtual.new_loop()

    def ask(self, step: Step) -> list[Vote]:
        return self.loop.run_until_complete(self._ask(step))

    async def _ask(self, step: Step) -> list[Vote]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        stopping = None if step.stop == math.inf else loop.call_later(step.stop, task.cancel)
        try:
            return await self.carry(step.request)
        except asyncio.CancelledError:
            raise Interruption from None
        finally:
            if stopping is not None:
                stopping.cancel()

    def carry(self, request: Request) -> Asked:
        """Put the request."""
        return self.group.aask(request)

    def rest(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds / 2))
        super().rest(seconds / 2)

    def end(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


DRIVERS: Final[dict[str, type[Driver]]] = {"threads": Driver, "loops": LoopDriver}


def play(seed: int, driver: type[Driver], folder: str) -> dict[str, Any]:
    """Return what callers and nodes see when this driver carries the requests of the schedule."""
    size = random.Random(seed).choice([3, 5])
    policy = Policy(size=size)
    names = {digest: str(command) for command, digest in scripts.DIGEST.items()}
    replies = Replies(seed)
    nodes = Nodes(size, folder, names, replies)
    WORLD.now, WORLD.nodes = 1000.0, nodes
    asking = driver(nodes.urls)
    callers: list[Any] = []
    behind, undone = False, defaultdict[str, frozenset[int]](frozenset)
    for step in schedule(seed, policy):
        request = step.request
        if step.stop < math.inf:
            replies.sure.add(request.nonce)
        if request.command in UNDO:
            to = policy.everyone if request.to is None else request.to
            undone[request.nonce] |= to if request.touched is None else request.touched
        try:
            callers.append(
                [behind, request.command in LINGERING, *[seen(vote) for vote in asking.ask(step)]]
            )
        except Interruption:
            callers.append("interrupted")
        behind = not step.rest
        if step.rest:
            asking.rest(step.rest)
    asking.rest(90.0)  # all that is to be undone has been
    asking.end()
    asking.group.close()
    WORLD.background(5.0)
    WORLD.nodes = None
    nodes.close()
    return {
        "votes": callers,
        "received": [
            sorted({words(each) for each in nodes.received if each.node == place})
            for place in range(size)
        ],
        "left": [
            sorted(nonce for nonce in nodes.has[place] if place in undone[nonce])
            for place in range(size)
        ],
    }


def words(request: Received) -> str:
    """What a node received, as text."""
    text = b" ".join(request.words[1:]).decode("latin-1")
    return f"{request.command} {text}"


def seen(vote: Vote) -> list[Any]:
    """What a caller sees of a vote, without the name of the node."""
    said = vote.answer.name, vote.fence, vote.left, vote.holder, vote.owner
    return [*said, vote.code, vote.sent, str(vote.result)]


def main(first: int, last: int, variant: str = "") -> None:
    """Print what is seen, for each seed."""
    logging.disable()
    if variant:
        LoopDriver.carry = VARIANTS[variant]  # type: ignore[method-assign,assignment] # broken
    for seed in range(first, last):
        found = {}
        for name, driver in DRIVERS.items():
            with TemporaryDirectory() as folder:
                found[name] = play(seed, driver, folder)
        print(json.dumps([seed, found]), flush=True)


# -- broken variants ---------------------------------------------------------------------------


def overtakes(driver: LoopDriver, request: Request) -> Asked:
    """An undo goes over a connection of its own, not behind its grant."""
    other = group_of(driver.urls) if request.command in UNDO else driver.group
    return other.aask(request)


def hastens(driver: LoopDriver, request: Request) -> Asked:
    """The first vote decides."""
    return driver.group.aask(replace(request, decided=lambda votes: votes.count(None) < len(votes)))


VARIANTS: Final = {each.__name__: each for each in (overtakes, hastens)}

if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except Exception:  # noqa: BLE001 - printed
        traceback.print_exc()
        os._exit(1)  # in virtual time nothing ends that waits for a thread
