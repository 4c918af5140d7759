"""What is promised to those who wait: over nodes in memory and real ones, by threads and tasks."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from django_redlock import LockTaken, conf, redlock
from django_redlock.core import wait as waiting
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import BlockOnNode, Request, Steps, Waiter, Wakeup
from django_redlock.nodes.memory import MemoryNode, MemoryNodes, MemoryPlace
from django_redlock.testing.embedded import EmbeddedNodes
from tests.support.loops import owing
from tests.support.waiting import eventually

from . import test_contracts
from .test_contracts import MAX_TTL, World

style, world, nothing_held = (
    test_contracts.style,
    test_contracts.world,
    test_contracts.nothing_held,
)


LASTING = 30_000  # milliseconds of a reservation that no stall of this machine outlives


@contextmanager
def waiters(count: int, name: str = "name", wait: float = math.inf) -> Iterator[list[float]]:
    """Threads that wait for a name and give it back at once; the moments when they had it."""
    had: list[float] = []

    def work() -> None:
        with redlock(name, wait=wait):
            had.append(time.monotonic())

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield had
    for thread in threads:
        thread.join(MAX_TTL)
    assert len(had) == count


def in_line(count: int, name: str = "name") -> Callable[[], bool]:
    """Whether so many of this process stand in line for a name."""
    group: Any = conf.backend("default").group
    queue = f"redlock:queue:{name}"

    def enough() -> bool:
        lines = group.queue.__self__.local.queues
        return len(lines.get(queue, ())) == count

    return enough


def blocked_waiters(world: World, name: str = "name") -> int:
    """How many are blocked on a name's queue, all nodes together."""
    if isinstance(world, test_contracts.MemoryWorld):
        return sum(len(node.blocked.get(f"redlock:queue:{name}", ())) for node in world.nodes)
    assert isinstance(world, test_contracts.RealWorld)
    return sum("b" in str(each["flags"]) for it in world.clients for each in it.client_list())


def stands(world: World, name: str) -> bool:
    """Whether somebody is."""
    return blocked_waiters(world, name) == 1


@contextmanager
def rare_looks() -> Iterator[list[str]]:
    """Who is not woken blocks for ten minutes, or until the key's time is up; who was not."""
    mine, at_the_nodes = conf.backend("default").policy, waiting._at_the_nodes
    in_vain: list[str] = []

    def noted(policy: Policy, line: waiting.Line[Any], until: float) -> Steps[str]:
        steps, reply = at_the_nodes(policy, line, until), None
        while True:
            try:
                effect = steps.send(reply)
            except StopIteration as ended:
                return str(ended.value)
            reply = yield effect
            if isinstance(effect, BlockOnNode) and not reply.wakeup and policy is mine:
                in_vain.append(line.waiter.queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "LOOK_EVERY", (600.0, 600.0))
        patch.setattr(waiting, "LONGEST", 600.0)
        patch.setattr(waiting, "NEWS", 1200.0)  # longer than that, and than any delay
        patch.setattr(waiting, "_at_the_nodes", noted)
        yield in_vain


@contextmanager
def lasting_reservations() -> Iterator[None]:
    """A name is kept for the woken waiter for half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redlock.core.hold.RESERVED", LASTING)
        yield


@pytest.fixture
def in_vain(world: World) -> Iterator[list[str]]:
    """See ``rare_looks``."""
    with rare_looks() as blocked:
        yield blocked


def test_a_release_wakes_a_waiter(world):
    """It blocks once, until the release, and has the name though that is reserved."""
    for name in "abc":  # each with its first waiter
        held = redlock(name).acquire()
        with rare_looks() as in_vain, lasting_reservations(), waiters(1, name):
            eventually(partial(stands, world, name))
            held.release()
        assert in_vain == []


@pytest.mark.nightly
def test_a_release_wakes_a_waiter_soon(world):
    """Within milliseconds."""
    times = []
    for name in "abcdefg":
        held = redlock(name).acquire()
        with rare_looks(), lasting_reservations(), waiters(1, name) as had:
            eventually(partial(stands, world, name))
            start = time.monotonic()
            held.release()
        times.append(had[0] - start)
    assert min(times) < 0.05


def test_many_threads_of_a_process_stand_once(world, in_vain):
    """One goes to the nodes; the others cost nothing, and are served by the one before them."""
    held = redlock("name").acquire()
    with lasting_reservations(), waiters(8):
        eventually(in_line(8))
        eventually(lambda: blocked_waiters(world) == 1)
        assert {blocked_waiters(world) for _ in range(20)} == {1}
        held.release()
    assert in_vain == []
    eventually(lambda: blocked_waiters(world) == 0)


def test_a_release_for_several_names_wakes_who_waits_for_one(world, in_vain):
    """A waiter for a list is woken by the release of the one name that was held."""
    held = redlock(["b", "c"]).acquire()
    got: list[tuple[str, ...]] = []

    def work() -> None:
        with redlock(["a", "b"], wait=math.inf) as lease:
            got.append(lease.names)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    eventually(lambda: blocked_waiters(world, "b") == 1)
    held.release()
    thread.join(MAX_TTL)
    assert got == [("a", "b")]
    assert in_vain == []
    for name in "abc":
        test_contracts.is_free(world, name)


@pytest.mark.slow
def test_a_foreign_release_is_noticed(world):
    """Who wakes nobody is noticed by a look, long before the key's time is up."""
    assert world.seize("name", "foreign", 600_000) == 5
    with waiters(1):
        eventually(lambda: blocked_waiters(world) == 1)
        world.let_go("name", "foreign")


def test_a_reservation_for_nobody_keeps_nobody_out(world):
    """After the last waiter has given up, a release for it leaves the name free for all."""
    held = redlock("name").acquire()
    with rare_looks(), pytest.raises(LockTaken):  # the note is still news at the release
        redlock("name").acquire(wait=0.05)
    with lasting_reservations():
        held.release()
    eventually(lambda: _values(world) <= {"next::"})  # also where nobody waited for the node
    assert _values(world) == {"next::"}
    lease = redlock("name").try_acquire()
    assert lease is not None
    assert redlock("name").try_acquire() is None
    lease.release()


def _values(world: World) -> set[str]:
    return {found.value for found in world.look("name")}


def test_who_gives_up_passes_on(world, in_vain):
    """Waiters whose time is over leave the line; who is behind them is woken by the release."""
    held = redlock("name").acquire()

    def give_up() -> None:
        with pytest.raises(LockTaken):
            redlock("name").acquire(wait=0.3)

    impatient = [threading.Thread(target=give_up)]
    impatient[0].start()

    def one_stands() -> bool:
        if not impatient[-1].is_alive():  # its time was over before anybody saw it
            impatient.append(threading.Thread(target=give_up))
            impatient[-1].start()
        return blocked_waiters(world) == 1

    eventually(one_stands)
    with waiters(1):
        impatient[-1].join(MAX_TTL)
        eventually(lambda: blocked_waiters(world) == 1)
        in_vain.clear()  # those who gave up were not woken
        held.release()
    assert in_vain == []


@pytest.mark.usefixtures("in_vain")
def test_waiting_for_a_name_that_rests(world):
    """`min_hold` wakes nobody before its time, and its end is not slept through."""
    start = time.monotonic()
    redlock("name", min_hold=0.4).acquire().release()
    with waiters(3) as had:
        pass
    assert min(had) - start >= 0.4


@pytest.mark.slow
@pytest.mark.usefixtures("in_vain")
def test_waiting_for_ever_outlives_a_holder_that_never_comes_back(world):
    """No release, no push: the key's own time ends the wait, and not a look now and then."""
    redlock("name", ttl=1.5, renew=False, wait=MAX_TTL).acquire()
    with waiters(2):
        pass


# -- messages -------------------------------------------------------------------------------------


@pytest.fixture
def in_memory(settings) -> list[str]:
    """Five nodes in memory, in force."""
    urls = [f"memory://waiting-{next(test_contracts.NUMBERS)}" for _ in range(5)]
    settings.REDLOCK = {"default": {"NODES": urls, "MAX_TTL": MAX_TTL, "TTL": MAX_TTL}}
    return urls


@pytest.fixture
def asked(in_memory: list[str], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many of the five nodes in memory, no others, were asked what."""
    counted: Counter[str] = Counter()
    original = MemoryNodes._vote

    def counting(self: MemoryNodes, i: int, ask: Request) -> Any:
        vote = original(self, i, ask)
        if self.labels == tuple(in_memory):
            counted[ask.command.value] += vote.sent
        return vote

    monkeypatch.setattr(MemoryNodes, "_vote", counting)
    return counted


@pytest.mark.parametrize("wait", [0, 5, math.inf])
def test_a_lock_that_nobody_disputes_costs_ten_messages(asked, wait):
    """Ready to wait or not: five questions to take it and five to give it back."""
    for _ in range(3):
        asked.clear()
        with redlock("name", wait=wait):
            pass
        assert asked == {"grant": 5, "release": 5}


@pytest.mark.slow
def test_who_waits_does_not_poll(patient_nodes, settings, monkeypatch):
    """Twenty threads that wait send looks, of one of them, two a second at most."""
    # Where the machine stalls, a look waits for the node on which the waiter is blocked: without
    # its reply the waiter goes to the next node, which ends one BLPOP.
    monkeypatch.setattr("django_redlock.nodes.exchange.LEAST_WORTH", 3600.0)  # as for NODE_TIMEOUT
    alias = patient_nodes.settings(MAX_TTL=60, RESTART_GUARD=False, NODE_TIMEOUT=5)
    settings.REDLOCK = {"default": alias}
    held = redlock("name", renew=False).acquire()
    group: Any = conf.backend("default").group  # who waits goes to another node once that votes
    eventually(lambda: all(state.voting for state in group.states()))

    def commands() -> Counter[str]:
        found: Counter[str] = Counter()
        for node in patient_nodes:
            with closing(node.client()) as client:
                for name, told in client.info("commandstats").items():
                    found[name.removeprefix("cmdstat_")] += int(told["calls"])
        return found

    began = time.monotonic()
    with waiters(20, wait=60):
        eventually(in_line(20))
        eventually(lambda: _blocked(patient_nodes) == 1)
        eventually(lambda: not any(owing(group.nodes)))  # the last grant of those that now wait
        start, before = time.monotonic(), commands()

        def looked_twice() -> Counter[str]:
            sent = commands() - before
            return sent if sent["zremrangebyscore"] >= 10 else Counter()

        sent = eventually(looked_twice)
        seconds, stood = time.monotonic() - start, time.monotonic() - began
        held.release()
    looks = sent["zremrangebyscore"]
    assert looks <= 5 * (1 + seconds // waiting.LOOK_EVERY[0])
    assert sent["evalsha"] == looks
    # Nodes count one when it ends, which may be one that began before the first look.
    assert sent["blpop"] <= 1 + stood // waiting.LONGEST


def _blocked(nodes: EmbeddedNodes) -> int:
    found = 0
    for node in nodes:
        with closing(node.client()) as client:
            found += int(client.info("clients")["blocked_clients"])
    return found


# -- in memory -----------------------------------------------------------------------------------


class Overtaken(MemoryPlace):
    """Its loop begins to watch when a release has just looked for a loop, and found none."""

    heard = False

    @property
    def _loop(self) -> None:
        self.heard = self.outcome() is not None  # as a task looks before it waits to be told

    @_loop.setter
    def _loop(self, _: object) -> None:
        pass


def test_a_wake_up_is_heard_by_a_loop_that_begins_to_watch():
    """What a release brings meanwhile is there when the loop looks: nobody would tell it."""
    waiter = Waiter("queue", "name")
    place = Overtaken(MemoryNode(), BlockOnNode(waiter, 0, 1.0, 1.0), threading.RLock())
    assert place._take("f" * 32)
    assert place.heard


def test_a_waiter_takes_one_wake_up_of_its_lists():
    """A wake-up of another list goes to who blocks there next: the first one would waste it."""
    node, lock, words = MemoryNode(), threading.RLock(), ["a" * 32, "b" * 32]
    waiters = [Waiter("first", "name", ("0", "1")), Waiter("second", "name", ("1",))]
    places = [MemoryPlace(node, BlockOnNode(each, 0, 1.0, 1.0), lock) for each in waiters]
    for queue, word in zip("01", words, strict=True):
        node._push(queue, word, 1000)
    assert [place.outcome() for place in places] == [Wakeup(each) for each in words]
