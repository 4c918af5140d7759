"""Processes that crowd for the k slots of one name, while nodes and holders are struck.

    make soak ARGS=crowd                           k of 1, 2, 5, 32; 50 processes, 20 strikes
    make soak ARGS="crowd --limits 5 --strikes 6"
    make soak ARGS="crowd --calm 10 --hold 0.1"    nobody is struck: are slots busy?

Each process appends what it saw to a file of its own, with the times of one clock. At no time more
than k may have believed that they hold a slot, nor two in one slot, and each slot's fences increase
from holder to holder. In the end every slot can be had again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dev.soak import forked, verdict
from dev.soak.verdict import Played
from django_redlock.testing import EmbeddedNodes
from tests.support.waiting import in_time

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

NAME: Final = "crowd"
TTL: Final = 2.0
LONG: Final = 60.0  # seconds for a slot, for the first holders and for the end
HELD, LEFT = "held", "left"


class Orders(NamedTuple):
    """What such a process does.

    Attributes:
        limit: k.
        threads: how many of its threads want a slot.
        hold: seconds for which one is held, at most; half of that at least.
        file: to which it appends.
        broken: whether the votes of all slots are counted together, as by a counter on each node.
        locks: the alias.
        steady: whether each hold takes the same time.
    """

    limit: int
    threads: int
    hold: float
    file: str
    broken: bool
    locks: dict[str, Any]
    steady: bool = False


# -- one process ----------------------------------------------------------------------------------


def crowd(orders: Orders) -> None:
    """Take slots and give them back until SIGTERM."""
    import django
    from django.conf import settings

    settings.configure(REDLOCK={"default": orders.locks})
    django.setup()
    from django_redlock import LockTaken, NodesUnavailable, redlock

    if orders.broken:
        count_all_slots()
    over, file = threading.Event(), os.open(orders.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    signal.signal(signal.SIGTERM, lambda *_: over.set())

    def note(what: str, key: tuple[int, ...], lease: Lease) -> None:
        now = time.monotonic()
        if lease.remaining() > 0:  # it was held at that time, for certain
            line = json.dumps([what, key, lease.slot, lease.fence, now])
            os.write(file, f"{line}\n".encode())

    def work() -> None:
        for turn in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            key = os.getpid(), threading.get_ident(), turn
            try:
                with redlock(NAME, limit=orders.limit, wait=LONG, ttl=TTL) as lease:
                    note(HELD, key, lease)
                    least = orders.hold if orders.steady else orders.hold / 2
                    over.wait(random.uniform(least, orders.hold))
                    note(LEFT, key, lease)
            except (LockTaken, NodesUnavailable):
                over.wait(0.1)

    threads = [threading.Thread(target=work) for _ in range(orders.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # a signal handler runs in between
            thread.join(0.1)


def count_all_slots() -> None:
    """Count the votes of a name and not of a slot: each node admits in whatever slot is free."""
    from dataclasses import replace

    from django_redlock.core import acquire
    from django_redlock.core.commands import Acquire
    from django_redlock.core.protocol import Answer
    from django_redlock.core.slots import Slot

    real = acquire.attempt

    def attempt(policy: Any, target: Any, **options: Any) -> Any:
        steps, reply = real(policy, target, **options), None
        while True:
            try:
                effect = steps.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = yield effect
            if not (isinstance(effect, Acquire) and effect.slots):
                continue
            for slot in range(effect.slots):  # a NO is asked again for the next slot
                again = {i for i, vote in enumerate(reply) if vote.answer is Answer.NO}
                if again:
                    other = policy.target((NAME,), slot=Slot(slot, effect.slots))
                    more = yield replace(effect, target=other, to=frozenset(again), waits=0)
                    reply = [more[i] if i in again else vote for i, vote in enumerate(reply)]

    vars(acquire).update(attempt=attempt)


# -- what they saw --------------------------------------------------------------------------------


class Hold(NamedTuple):
    """A time for which a process has believed for certain that it holds a slot."""

    slot: int
    fence: int
    since: float
    until: float
    pid: int = 0


def holds(files: Sequence[Path]) -> list[Hold]:
    """Who held what when; of one that was killed, the moment when it began."""
    found: dict[tuple[Any, ...], Hold] = {}
    for file in files:
        text = file.read_text() if file.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # of one that was killed
            what, key, slot, fence, at = json.loads(line)
            if what == HELD:
                found[tuple(key)] = Hold(slot, fence, at, at, key[0])
            elif tuple(key) in found:  # a lease that is over is never revived
                found[tuple(key)] = found[tuple(key)]._replace(until=at)
    return sorted(found.values(), key=lambda each: each.since)


def most_at_a_time(of: Sequence[Hold]) -> int:
    """How many believed at the same time, at most."""
    moments = sorted([(each.since, 1) for each in of] + [(each.until, 0) for each in of])
    now = most = 0
    for _, begins in moments:
        now += 1 if begins else -1
        most = max(most, now)
    return most


def in_one_slot(of: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """The holders of one slot that overlap, or whose fences do not increase."""
    by_slot: dict[int, list[Hold]] = defaultdict(list)
    for each in of:
        by_slot[each.slot].append(each)
    pairs = [pair for each in by_slot.values() for pair in pairwise(each)]
    return [(a, b) for a, b in pairs if b.since < a.until or b.fence <= a.fence]


def busy(of: Sequence[Hold], limit: int) -> float:
    """The part of the slots' time, but for its ends, in which they were held."""
    if len(of) < 10:
        return 0.0
    begin, end = of[len(of) // 10].since, of[-len(of) // 10].since
    held = sum(max(0.0, min(each.until, end) - max(each.since, begin)) for each in of)
    return held / (limit * (end - begin))


# -- a play ---------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a play.

    Attributes:
        holds: who held what when.
        again: the slots that could be had at the end, all at once.
        strikes: how often a node and a process were struck, with holders before it.
    """

    holds: list[Hold]
    again: list[int]
    strikes: int = 0


class Play:
    """Some processes that crowd, and what strikes them and the nodes."""

    def __init__(
        self, home: Path, nodes: EmbeddedNodes, orders: Orders, *, processes: int, seed: int = 0
    ) -> None:
        self._home, self._nodes, self._orders = home, nodes, orders
        self._processes = processes
        self._chance = random.Random(seed)
        self._running: list[BaseProcess] = []
        self.files: list[Path] = []

    def start(self) -> None:
        """Start one more."""
        file = self._home / f"{self._orders.limit}-{len(self.files)}"
        self.files.append(file)
        self._running.append(forked.start(crowd, self._orders._replace(file=str(file))))

    @contextmanager
    def running(self) -> Iterator[bool]:
        """Let the processes run meanwhile, and tell whether they hold slots.

        Then each gives back what it holds. One that does not end soon is killed: its slot is free
        when the ttl is over.
        """
        try:
            for _ in range(self._processes):
                self.start()
            yield in_time(lambda: len(holds(self.files)) > self._orders.limit, LONG)
            for process in self._running:
                process.terminate()
            late = time.monotonic() + LONG
            for process in self._running:
                process.join(max(0.0, late - time.monotonic()))
        finally:
            for process in self._running:
                process.kill()
                process.join()

    def strike(self, number: int) -> None:
        """Kill or hang a node, and kill or stop a process, in turns."""
        index = number % len(self._nodes)
        kill = number % 2 == 0
        (self._nodes.kill if kill else self._nodes.pause)(index)
        process = self._chance.choice(self._running)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL if kill else signal.SIGSTOP)
        time.sleep(1.5 * TTL)
        if kill:
            process.join()
            self._running.remove(process)
            self.start()
            self._nodes[index].start()  # empty: the restart guard holds its vote back
        else:
            os.kill(process.pid, signal.SIGCONT)
            self._nodes.resume(index)
        time.sleep(TTL)

    def outcome(self, strikes: int, calm: float = 0.0) -> Outcome:
        """Strike so often; or let so many seconds pass."""
        with self.running() as hold:
            done = strikes if hold else 0
            for number in range(done):
                self.strike(number)
            time.sleep(calm)
        return Outcome(holds(self.files), again(self._orders), done)


def again(orders: Orders) -> list[int]:
    """The slots that one more process gets, all at once, when the others have ended."""
    text = f"""
import django, json
from django.conf import settings
settings.configure(REDLOCK={{"default": {orders.locks!r}}})
django.setup()
from contextlib import suppress
from django_redlock import LockTaken, NodesUnavailable, redlock
lock = redlock({NAME!r}, limit={orders.limit}, wait={LONG})
leases = []
with suppress(LockTaken, NodesUnavailable):
    while len(leases) < {orders.limit}:
        leases.append(lock.acquire())
print(json.dumps([lease.slot for lease in leases]))
for lease in leases:
    lease.release()
"""
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    return sorted(json.loads(made.stdout))


def play(
    home: Path,
    nodes: EmbeddedNodes,
    limit: int,
    *,
    processes: int,
    threads: int = 1,
    hold: float = 0.03,
    strikes: int = 0,
    calm: float = 0.0,
    broken: bool = False,
    seed: int = 0,
) -> Outcome:
    """Let processes crowd for the slots of one name, and strike so often."""
    locks = nodes.settings(MAX_TTL=TTL, TTL=TTL, NODE_TIMEOUT=0.5, RESTART_GUARD=not calm)
    orders = Orders(limit, threads, hold, "", broken, locks, bool(calm))
    return Play(home, nodes, orders, processes=processes, seed=seed).outcome(strikes, calm)


def judge(outcome: Outcome, limit: int) -> list[str]:
    """Return what must not have happened."""
    most = most_at_a_time(outcome.holds)
    wrong = [f"limit {limit}: {most} at a time"] * (most > limit)
    wrong += [f"limit {limit}: {one}, then {other}" for one, other in in_one_slot(outcome.holds)]
    leaked = sorted({*range(limit)} - {*outcome.again})
    return wrong + [f"limit {limit}: slots {leaked} are leaked"] * bool(leaked)


def main() -> int:
    """Play each limit; tell how many held it at a time, and how busy the slots were."""
    parser = verdict.parser("dev.soak.faults.crowding", __doc__)
    parser.add_argument("--limits", type=int, nargs="+", default=[1, 2, 5, 32])
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--strikes", type=int, default=20)
    parser.add_argument("--hold", type=float, default=0.03)
    parser.add_argument("--calm", type=float, default=0.0, help="seconds without any strike")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--broken", action="store_true", help="count the votes of all slots")
    options = parser.parse_args()
    strikes = 0 if options.calm else options.strikes
    wrong: list[str] = []
    played: list[Played] = []
    for limit in options.limits:
        with tempfile.TemporaryDirectory() as home, EmbeddedNodes(5) as nodes:
            outcome = play(
                Path(home),
                nodes,
                limit,
                processes=options.processes,
                threads=options.threads,
                hold=options.hold,
                strikes=strikes,
                calm=options.calm,
                broken=options.broken,
                seed=options.seed,
            )
        wrong += judge(outcome, limit)
        holders = len({each.pid for each in outcome.holds})
        played += [
            Played(holders, options.processes, f"processes held a slot (limit {limit})"),
            Played(outcome.strikes, strikes, f"strikes (limit {limit})"),
        ]
        print(
            f"limit {limit}: {len(outcome.holds)} holds by {holders} processes, "
            f"{most_at_a_time(outcome.holds)} at a time, {outcome.strikes} strikes, "
            f"slots held {busy(outcome.holds, limit):.3f} of their time",
            flush=True,
        )
    return verdict.end(wrong, *played)


if __name__ == "__main__":
    sys.exit(main())
