"""Acts 1 to 3: six ticket offices sell seats of one show, with lock and fence and without."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from django_redlock.testing import EmbeddedNodes

from .facts import Act
from .office import TTL, WAIT
from .screen import Screen
from .staff import Staff

OFFICES = 6
FRAME_SECONDS = 0.2
FROZEN_SECONDS = TTL + 0.5
NEXT_FREEZE = TTL + 0.4  # seconds between two: others sell between them, and one wakes later
MORE_SECONDS = 0.5  # for which offices go on while one of them is frozen
LATE_SECONDS = 10.0  # by how much an act may be late before something is wrong

Cue: TypeAlias = tuple[float, Callable[[Act, EmbeddedNodes], None]]


def with_the_fence(show: int, staff: Staff, nodes: EmbeddedNodes, screen: Screen) -> Act:
    act = Act(
        "Act 1: with the lock and the fence",
        f'with redlock("show:{show}", ttl={TTL:g}, wait={WAIT:g}) as lease: '
        "row = fenced(lease, rows)",
        show,
        seconds=7.5,
        offices=OFFICES,
        locked=True,
        fence=True,
    )
    Performance(act, staff, nodes, screen, [(1.0, kill), (2.0, hang)], freezes(3.0)).run()
    return act


def with_the_lock(show: int, staff: Staff, nodes: EmbeddedNodes, screen: Screen) -> Act:
    act = Act(
        "Act 2: with the lock, without the fence",
        "the same, with a plain read and update(); all five nodes run again",
        show,
        seconds=5.0,
        offices=OFFICES,
        locked=True,
        fence=False,
    )
    Performance(act, staff, nodes, screen, freezes=freezes(0.5)).run()
    return act


def with_neither(show: int, staff: Staff, nodes: EmbeddedNodes, screen: Screen) -> Act:
    act = Act(
        "Act 3: with neither",
        "the same offices and the same sale, but no lock and no fence; none is frozen",
        show,
        seconds=3.0,
        offices=OFFICES,
        locked=False,
        fence=False,
    )
    Performance(act, staff, nodes, screen).run()
    return act


def freezes(first: float) -> dict[int, float]:
    """Return which offices freeze, and when, in seconds of the act.

    The first one wakes while the second one is frozen: then no other is between read and write.
    """
    return {OFFICES: first, OFFICES - 1: first + NEXT_FREEZE}


def kill(act: Act, nodes: EmbeddedNodes) -> None:
    nodes.kill(2)
    act.lose_node("killed")
    act.note("node 3 is killed (SIGKILL): 4 of 5 are left, 3 are a majority")


def hang(act: Act, nodes: EmbeddedNodes) -> None:
    nodes.pause(4)
    act.lose_node("hung")
    act.note("node 5 hangs (SIGSTOP): 3 of 5 are left, still a majority")


@dataclass
class Performance:
    """One act on the stage."""

    act: Act
    staff: Staff
    nodes: EmbeddedNodes
    screen: Screen
    cues: list[Cue] = field(default_factory=list)
    freezes: dict[int, float] = field(default_factory=dict)  # offices that are to freeze, and when
    frozen: dict[int, float] = field(default_factory=dict)  # offices that are, and since when
    woken: dict[int, float] = field(default_factory=dict)  # before they write: frozen since when
    relieved: set[int] = field(default_factory=set)  # offices whose lock another one got

    def run(self) -> None:
        from example_project.box_office.models import Show

        act = self.act
        end = act.begin()
        for number in range(1, OFFICES + 1):
            self.command(number, end)
        with self.screen.act(act, self.nodes) as draw:
            while not act.is_over():
                if time.monotonic() > end + LATE_SECONDS:
                    raise TimeoutError(f"the offices do not come to an end: {act.states}")
                self.direct()
                self.listen(FRAME_SECONDS)
                act.row = Show.objects.sold(act.show)
                draw()

    def command(self, office: int, until: float) -> None:
        """Let an office sell until then."""
        act, at = self.act, self.freezes.get(office)
        self.staff.command(
            office,
            show=act.show,
            until=until,
            locked=act.locked,
            fence=act.fence,
            freeze_at=None if at is None else act.began + at,
        )

    def direct(self) -> None:
        """Do what is due: the next cue, or wake a frozen office."""
        if self.cues and time.monotonic() >= self.act.began + self.cues[0][0]:
            _, happen = self.cues.pop(0)
            happen(self.act, self.nodes)
        for office in [each for each in self.frozen if self.may_wake(each)]:
            self.woken[office] = self.frozen.pop(office)
            self.staff.wake(office)

    def may_wake(self, office: int) -> bool:
        """Return True if the office has lost its lock, others have sold since, and all froze."""
        since = self.frozen[office]
        late = time.monotonic() >= since + FROZEN_SECONDS
        return late and not self.freezes and bool(self.act.sales_after(since))

    def listen(self, seconds: float) -> None:
        """Take in what the offices tell in so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.act.is_over():
            for facts in self.staff.listen(left):
                self.hear(**facts)

    def hear(self, event: str, office: int, **facts: float) -> None:
        if event == "done" and (self.freezes or self.frozen):
            self.command(office, time.monotonic() + MORE_SECONDS)  # the frozen need a successor
            return
        self.act.hear(event, office, facts)
        if event == "frozen":
            del self.freezes[office]
            self.frozen[office] = time.monotonic()
            self.act.note(f"office {office} freezes in the middle of a sale (SIGSTOP)")
        elif event == "entered":
            self.relieve(office)
        elif event == "refused":
            self.woken.pop(office, None)
            self.act.note(f"office {office} writes what it read before: refused by the row")
        elif event == "sold" and office in self.woken:
            count = self.act.sales_after(self.woken.pop(office))
            self.act.note(
                f"office {office} writes what it read before, though {count} seats were sold since"
            )

    def relieve(self, successor: int) -> None:
        """Tell of an office that got the lock of a frozen one."""
        for office in [each for each in self.frozen if each not in self.relieved][-1:]:
            self.relieved.add(office)
            self.act.note(f"its lock has run out ({TTL:g} s): office {successor} sells on")
