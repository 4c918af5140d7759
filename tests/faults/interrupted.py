"""A process that is interrupted at random points of acquire and release; run by test_interrupts.

Arguments: the nodes' URLs, the number of interruptions, a seed, and, for the broken variant
that the test must catch, "careless": a driver that lets exceptions pass the generator by.
Prints one JSON line.
"""

from __future__ import annotations

import json
import logging
import math
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Steps
from django_redlock.interruption import settle
from django_redlock.locks.lock import leave
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.address import from_url
from django_redlock.nodes.group import NodeGroup

from .afterwards import Afterwards, in_blocks

T = TypeVar("T")
TIMEOUT = 5.0  # seconds: no node hangs, so none has to be quick
MEASURED = 250  # interruptions between two looks at how long a block takes


class Interruption(Exception):  # noqa: N818 - it is one
    """What the signal handler raises."""


class Careless(Backend):
    """Runs the steps as one would without thinking of interruptions."""

    def run(self, steps: Steps[T], value: Any = None) -> T:
        """Carry out steps; an exception ends them."""
        try:
            while True:
                value = self._perform(steps.send(value))
        except StopIteration as stop:
            return cast("T", stop.value)


class Alarm:
    """A signal handler that raises once for each time it is set.

    The system may give the signal to another thread, which tells this one late: after the timer
    was stopped, in a block that must not be interrupted.
    """

    def __init__(self) -> None:
        self._set = False

    def __call__(self, *_: object) -> None:
        """Raise, as Celery's soft time limit and Ctrl-C do."""
        if self._set:
            self._set = False
            raise Interruption

    def set(self, seconds: float) -> None:
        """Interrupt after so many seconds."""
        self._set = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def stop(self) -> None:
        """Interrupt no more, also by a signal that is on its way."""
        self._set = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def complain(what: sys.UnraisableHookArgs) -> None:
    """Say what Python has to swallow, but where nothing is lost by it.

    It may hit redis-py's own destructor, or ``settle``, whose job the next request does.
    """
    module = getattr(what.object, "__module__", "")
    harmless = module.startswith("redis.") or what.object is settle
    if not (isinstance(what.exc_value, Interruption) and harmless):
        sys.__unraisablehook__(what)


def main() -> None:
    """Count interruptions, and what they broke."""
    urls, wanted, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    nodes = NodeGroup([from_url(url) for url in urls], timeout=TIMEOUT, guard=0, prefix="redlock:")
    careless, kind = "careless" in sys.argv, Backend
    patience = 4 * TIMEOUT
    if careless:
        kind = Careless
        patience = 0.0  # it leaves connections for ever
    backend = kind("default", nodes, Policy(size=len(urls)), ttl=30)
    redlock = LockTemplate(lambda _: backend)
    shared = redlock("interrupted")  # its blocks end or are torn; it lives on
    counts = ["interruptions", "blocks", "torn", "renewed", "taken", "unavailable"]
    said: dict[str, Any] = dict.fromkeys(counts, 0) | {"slowest": 0.0}
    sys.unraisablehook = complain
    alarm = Alarm()
    signal.signal(signal.SIGALRM, alarm)
    for number in range(10):
        with redlock(f"warm:{number}"):
            pass
    sockets, before = open_sockets(), Afterwards(nodes)
    measured: float = -MEASURED
    # The first key that the broken variant leaves says enough, and stays for its ttl.
    while said["interruptions"] < wanted and not (careless and said["taken"]):
        if said["interruptions"] >= measured + MEASURED:  # what else the machine does changes
            measured, typical = said["interruptions"], duration(redlock)
        start = time.monotonic()
        try:
            alarm.set(chance.uniform(1e-6, 1.3 * typical))
            # Lambdas, lists and module globals keep a lock as this does; others are made each time.
            with shared if chance.random() < 0.5 else redlock("interrupted"):
                said["blocks"] += 1
            alarm.stop()
        except Interruption as error:
            said["interruptions"] += 1
            release_torn(error, said)
        said["slowest"] = max(said["slowest"], time.monotonic() - start)
        try:
            with redlock("interrupted"):  # uninterrupted: also mends the connections
                pass
        except LockTaken:  # a key was left behind
            said["taken"] += 1
        except NodesUnavailable:
            said["unavailable"] += 1
    end = time.monotonic() + patience
    while (more := open_sockets() - sockets) > len(urls) and time.monotonic() < end:
        time.sleep(0.01)  # a connection that undoes what another left is closed by itself
    said["sockets"] = more  # those that nobody has are among the problems
    logging.getLogger("django_redlock").setLevel(logging.ERROR)  # a loss is to be told
    said["problems"] = [] if careless else before.problems(backend)
    print(json.dumps(said))


def release_torn(error: BaseException, said: dict[str, Any]) -> None:
    """Release what a block has left whose end was interrupted before its first statement."""
    before_it = leave._leave.__code__, leave._leave.__code__.co_firstlineno
    places = [(each.tb_frame.f_code, each.tb_lineno) for each in traces(error.__traceback__)]
    if before_it in places[-2:]:  # the last is the signal handler
        for lease in in_blocks():
            said["torn"] += 1
            said["renewed"] += lease.renew_at < math.inf
            lease.release()


def traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Each part of a traceback."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def duration(redlock: LockTemplate) -> float:
    """Seconds that one block takes, about."""
    start = time.monotonic()
    for _ in range(40):
        with redlock("typical"):
            pass
    return (time.monotonic() - start) / 40


def open_sockets() -> int:
    """How many sockets this process has open."""
    links = Path("/proc/self/fd").iterdir()
    count = 0
    for link in links:
        try:
            count += str(link.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


if __name__ == "__main__":
    main()
