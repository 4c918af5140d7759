"""Real processes that wait for a name: in order, woken by the release, whatever dies meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from django_redlock import LockTaken, conf, redlock
from django_redlock.testing import EmbeddedNodes
from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

NAME = "turn"
# Seconds between two looks, where a release is to wake. Keys and stands last as long, and a test
# listens for less: who has its turn was woken, or has looked.
RARELY = 600


class Person:
    """A process that is told to take turns, and what it said."""

    def __init__(self, alias: dict[str, Any], stack: ExitStack, *looks: float) -> None:
        self.lines: list[list[str]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.queued", json.dumps(alias), *map(str, looks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        stack.callback(self._end)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.split())

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(60)
        self._process.stdin.close()
        self._reader.join(60)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Have it stand still; when this returns it does."""
        self.signal(signal.SIGSTOP)
        eventually(lambda: process_state(self._process.pid) == "T")

    def said(self, word: str) -> list[list[str]]:
        """The lines that begin so."""
        return [line for line in tuple(self.lines) if line[0] == word]

    def hear(self, word: str, count: int = 1, within: float = 120) -> float:
        """Wait for so many such lines; the moment of the last of these."""
        eventually(
            lambda: len(self.said(word)) >= count, within=within, what=f"{word}: {self.lines}"
        )
        return float(self.said(word)[count - 1][-1])


class Rig:
    """Five nodes and the people who wait at them."""

    def __init__(self, nodes: EmbeddedNodes, alias: dict[str, Any], stack: ExitStack) -> None:
        self.nodes, self.alias, self._stack = nodes, alias, stack
        self.people: list[Person] = []

    def invite(self, count: int, *looks: float) -> list[Person]:
        """Start processes; with so many seconds between two looks, if that is told."""
        come = [Person(self.alias, self._stack, *looks) for _ in range(count)]
        self.people += come
        for person in come:
            person.hear("ready")
        return come

    @property
    def place(self) -> int:
        """The node with the queue."""
        return conf.backend("default").policy.target([NAME]).queue_nodes[0]

    def blocked(self) -> list[dict[str, Any]]:
        """The connections that stand in some queue."""
        found = []
        for node in self.nodes:
            if node.is_running and not node.is_paused:
                with closing(node.client(socket_timeout=10)) as admin:
                    found += [each for each in admin.client_list() if "b" in each["flags"]]
        return found

    def queue_up(self, person: Person, hold: float = 0, how: str = "take") -> None:
        """Have somebody wait, and see that they are the next in the queue."""
        before = len(self.blocked())
        person.tell(f"{how} {NAME} {RARELY} {hold}")
        eventually(lambda: len(self.blocked()) == before + 1)

    def keys(self) -> list[str]:
        """The locks that the nodes have."""
        found: list[Any] = []
        for node in self.nodes:
            with closing(node.client(decode_responses=True, socket_timeout=10)) as admin:
                found += admin.keys("redlock:lock:*")
        return found


@pytest.fixture
def rig(patient_nodes: EmbeddedNodes, settings) -> Iterator[Rig]:
    """Nobody has come yet."""
    with ExitStack() as stack:
        # Nobody hangs here, but where a test says so: no node has to be quick.
        alias = patient_nodes.settings(MAX_TTL=RARELY, RESTART_GUARD=False, NODE_TIMEOUT=5)
        settings.REDLOCK = {"default": alias}
        yield Rig(patient_nodes, alias, stack)


def history(people: list[Person]) -> list[tuple[float, str, int, int]]:
    """What all of them said, by time: (moment, in or out, fence, who)."""
    found, fences = [], {}
    for who, person in enumerate(people):
        for line in tuple(person.lines):
            if line[0] == "in":
                fences[who] = int(line[2])
            if line[0] in {"in", "out"}:
                found.append((float(line[-1]), line[0], fences[who], who))
    return sorted(found)


def check(people: list[Person], dead: tuple[int, ...] = ()) -> list[float]:
    """See that one at a time was in, with increasing fences; the seconds between out and in."""
    inside, last, left_at, gaps = None, 0, None, []
    for moment, what, fence, who in history(people):
        if what == "in":
            assert inside is None or inside in dead, "two at a time"
            assert fence > last
            inside, last = who, fence
            if left_at is not None:
                gaps.append(moment - left_at)
        else:
            assert inside == who
            inside, left_at = None, moment
    return gaps


# -- in order -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_are_served_in_order_of_arrival(rig):
    """Five processes arrive one after another, and each is woken in its turn."""
    people = rig.invite(5, RARELY)
    held = redlock(NAME).acquire()
    for person in people:
        rig.queue_up(person, hold=0.01)
    held.release()
    for person in people:
        person.hear("out")
    assert [who for _, what, _, who in history(people) if what == "in"] == [0, 1, 2, 3, 4]
    check(people)
    eventually(lambda: rig.blocked() == [])


@pytest.mark.slow
def test_a_tight_loop_does_not_overtake(rig, monkeypatch):
    """Who releases and asks again at once, waiting or not, comes after those who wait already."""
    monkeypatch.setattr("django_redlock.core.hold.RESERVED", 300_000)  # the process may be held up
    (person,) = rig.invite(1)
    for patience in (60, 0):
        held, fences = redlock(NAME, wait=60).acquire(), []
        rig.queue_up(person)
        person.stop()
        held.release()  # it is woken, and has still to come
        with pytest.raises(LockTaken):
            redlock(NAME, wait=min(patience, 0.1)).acquire()
        person.signal(signal.SIGCONT)
        while not person.said("in"):
            lease = (
                redlock(NAME, wait=patience).acquire() if patience else redlock(NAME).try_acquire()
            )
            if lease is not None:
                fences.append(lease.fence)
                lease.release()
        person.hear("out")
        ((_, _, first, _),) = person.said("in")
        assert all(int(first) < fence for fence in fences)
        person.lines.clear()


# -- who dies, or stands still --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_head_of_the_line_may_go(rig, how):
    """Killed, it costs the next nothing; stopped, it takes a turn away that the next finds."""
    first, second = rig.invite(2, *[RARELY] * (how == signal.SIGKILL))
    held = redlock(NAME).acquire()
    rig.queue_up(first)
    rig.queue_up(second)
    if how == signal.SIGSTOP:
        first.stop()
    else:
        first.signal(how)
        eventually(lambda: len(rig.blocked()) == 1)
    held.release()
    second.hear("out")
    first.signal(signal.SIGCONT)
    if how == signal.SIGSTOP:
        first.hear("out")
    check(rig.people)
    eventually(lambda: rig.blocked() == [])
    eventually(lambda: rig.keys() == [])


# -- nodes ----------------------------------------------------------------------------------------


def stop(rig: Rig) -> None:
    """The node hangs, and goes on later."""
    rig.nodes[rig.place].pause()


def kill(rig: Rig) -> None:
    """The node dies."""
    rig.nodes[rig.place].kill()


def restart(rig: Rig) -> None:
    """The node forgets everything and has no vote for a while."""
    rig.nodes[rig.place].restart()


def flush(rig: Rig) -> None:
    """The node is emptied, people standing there."""
    with closing(rig.nodes[rig.place].client()) as admin:
        admin.flushall()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mishap", "how"),
    [(each, "take") for each in (stop, kill, restart, flush)]
    + [(each, "task take") for each in (stop, kill)],
)
def test_all_who_wait_have_a_turn_when_the_node_with_the_queue_goes(
    rig, mishap: Callable[[Rig], None], how: str
):
    """Two who stood there: each has the name, one at a time, and leaves nothing."""
    people = rig.invite(2)
    held = redlock(NAME, wait=60).acquire()
    for person in people:
        rig.queue_up(person, how=how)
    mishap(rig)
    held.release()
    for person in people:
        person.hear("out")
    assert len(check(people)) == 1  # from the first to the second
    assert not any(person.said("refused") or person.said("over") for person in people)
    if rig.nodes[rig.place].is_paused:
        rig.nodes[rig.place].resume()
    if not rig.nodes[rig.place].is_running:
        rig.nodes[rig.place].start()
    eventually(lambda: rig.blocked() == [])
    eventually(lambda: rig.keys() == [])


# -- Ctrl-C, forks --------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_while_waiting_leaves_nothing(rig):
    """Out of every line at once: the thread behind goes to the nodes and gets its turn."""
    (person,) = rig.invite(1, RARELY)
    for _ in range(3):
        held = redlock(NAME, wait=60).acquire()
        rig.queue_up(person)  # in its main thread, which gets the signal
        person.signal(signal.SIGUSR1)
        person.hear("asking", 2)
        assert len(rig.blocked()) == 1
        person.signal(signal.SIGINT)
        person.hear("interrupted")
        eventually(lambda: len(rig.blocked()) == 1)  # what it has left is known to the node
        held.release()
        person.hear("out")  # woken: it stood there itself
        eventually(lambda: rig.blocked() == [])
        eventually(lambda: rig.keys() == [])
        person.lines.clear()


@pytest.mark.slow
def test_a_fork_while_waiting_waits_for_itself(rig):
    """A child of a process whose thread waits has its own place in the queue, and its own turn."""
    (person,) = rig.invite(1)
    held = redlock(NAME).acquire()
    person.tell(f"thread take {NAME} {RARELY} 0.05")
    eventually(lambda: len(rig.blocked()) == 1)
    person.tell(f"fork take {NAME} {RARELY} 0.05")
    eventually(lambda: len(rig.blocked()) == 2)
    held.release()
    person.hear("out", 2)
    moments = [(float(line[-1]), line[0]) for line in person.lines if line[0] in {"in", "out"}]
    assert [what for _, what in sorted(moments)] == ["in", "out", "in", "out"]
