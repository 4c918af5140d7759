"""Acts 1 and 2: six ticket offices sell seats of one show, with the lock and without it."""

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
FREEZE_AT = 4.5
FROZEN_SECONDS = TTL + 0.5
LATE_SECONDS = 10.0  # by how much an office may be late before something is wrong
LOCKED_SECONDS = 7.5
UNLOCKED_SECONDS = 3.0

Cue: TypeAlias = tuple[float, Callable[[Act, EmbeddedNodes], None]]


def with_the_lock(show: int, staff: Staff, nodes: EmbeddedNodes, screen: Screen) -> Act:
    act = Act(
        "Act 1: with the lock",
        f'with redlock("show:{show}", ttl={TTL:g}, wait={WAIT:g}) as lease: ...',
        show,
        LOCKED_SECONDS,
        OFFICES,
        locked=True,
    )
    Performance(act, staff, nodes, screen, [(1.5, kill), (3.0, hang)]).run()
    return act


def without_it(show: int, staff: Staff, nodes: EmbeddedNodes, screen: Screen) -> Act:
    act = Act(
        "Act 2: without it",
        "the same offices and the same sale, but no lock and no fence",
        show,
        UNLOCKED_SECONDS,
        OFFICES,
        locked=False,
    )
    Performance(act, staff, nodes, screen).run()
    return act


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
    frozen: int | None = None  # the office that sleeps
    frozen_since: float = 0.0
    taken_over: bool = False

    def run(self) -> None:
        from example_project.box_office.models import Show

        act = self.act
        end = act.begin()
        for number in range(1, OFFICES + 1):
            freeze_at = act.began + FREEZE_AT if act.locked and number == OFFICES else None
            self.staff.command(
                number, show=act.show, until=end, locked=act.locked, freeze_at=freeze_at
            )
        with self.screen.act(act, self.nodes) as draw:
            while not act.is_over():
                if time.monotonic() > end + LATE_SECONDS:
                    raise TimeoutError(f"the offices do not come to an end: {act.states}")
                self.direct()
                self.listen(FRAME_SECONDS)
                act.row = Show.objects.sold(act.show)
                draw()

    def direct(self) -> None:
        """Let happen what is due: the next cue, or the end of a frozen office's sleep."""
        if self.cues and time.monotonic() >= self.act.began + self.cues[0][0]:
            _, happen = self.cues.pop(0)
            happen(self.act, self.nodes)
        if self.frozen is not None and self.may_wake():
            self.staff.wake(self.frozen)
            self.frozen = None

    def may_wake(self) -> bool:
        """Whether the frozen office has lost its lock and others have sold since."""
        now = time.monotonic()
        if now < self.frozen_since + FROZEN_SECONDS:
            return False
        others_sold = bool(self.act.sales_after(self.frozen_since))
        return others_sold or now > self.act.began + self.act.seconds

    def listen(self, seconds: float) -> None:
        """Hear what the offices tell in so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.act.is_over():
            for facts in self.staff.listen(left):
                self.hear(**facts)

    def hear(self, event: str, office: int, **facts: float) -> None:
        self.act.hear(event, office, facts)
        if event == "frozen":
            self.frozen, self.frozen_since = office, time.monotonic()
            self.act.note(f"office {office} freezes in the middle of a sale (SIGSTOP)")
        elif event == "entered" and self.frozen is not None and not self.taken_over:
            self.taken_over = True
            self.act.note(f"its lock has run out ({TTL:g} s): office {office} sells on")
        elif event == "refused":
            self.act.note(f"office {office} writes what it read before: refused by the fence")
