"""What the offices did in one act, and what follows from it."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple


class Sale(NamedTuple):
    """One time in the critical section; seconds are of the machine's one monotonic clock."""

    office: int
    fence: int
    entered: float
    left: float


@dataclass
class Act:
    """One run of all offices, as far as it has got."""

    title: str
    subtitle: str
    show: int
    seconds: float
    offices: int
    locked: bool
    began: float = 0.0
    sales: list[Sale] = field(default_factory=list)
    refused: list[Sale] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of all that the offices tell
    states: dict[int, str] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    lost_nodes: list[tuple[float, str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    row: int = 0  # what the row says in the end

    def begin(self) -> float:
        """Begin now; the moment at which it is to end."""
        self.states = dict.fromkeys(range(1, self.offices + 1), self._idle())
        self.began = time.monotonic()
        return self.began + self.seconds

    def _idle(self) -> str:
        return "waiting" if self.locked else "selling"

    def clock(self) -> str:
        return f"{time.monotonic() - self.began:4.1f} s"

    def hear(self, event: str, office: int, facts: Mapping[str, Any]) -> None:
        """Note what an office tells."""
        self.counts[event] += 1
        self.states[office] = STATES.get(event, self._idle())
        if event == "entered":
            self.fences[office] = facts["fence"]
        elif event == "sold":
            self.sales.append(Sale(office, **facts))
        elif event == "refused":
            self.refused.append(Sale(office, **facts))

    def note(self, text: str) -> None:
        self.log.append(f"{self.clock()}  {text}")

    def lose_node(self, how: str) -> None:
        self.lost_nodes.append((time.monotonic(), how))

    def is_over(self) -> bool:
        return self.counts["done"] == self.offices

    def turns(self) -> list[int]:
        """The sales of each office, in order of the offices."""
        count = Counter(sale.office for sale in self.sales)
        return [count[office] for office in range(1, self.offices + 1)]

    def sections(self) -> list[Sale]:
        """Each time in the critical section, in order of entering."""
        return sorted(self.sales + self.refused, key=lambda sale: sale.entered)

    def overlaps(self) -> int:
        """How many began before an earlier one had ended."""
        count, latest = 0, float("-inf")
        for sale in self.sections():
            count += sale.entered < latest
            latest = max(latest, sale.left)
        return count

    def lost_updates(self) -> int:
        return len(self.sales) - self.row

    def fences_increase(self) -> bool:
        return all(a.fence < b.fence for a, b in pairwise(self.sections()))

    def sales_after(self, moment: float) -> int:
        return sum(sale.entered > moment for sale in self.sales)


STATES = {"entered": "selling", "frozen": "frozen", "done": "closed"}


def failures(locked: Act, unlocked: Act) -> Iterator[str]:
    """What did not hold; nothing if all did."""
    if overlaps := locked.overlaps():
        yield f"{overlaps} sales overlapped under the lock"
    if lost := locked.lost_updates():
        yield f"{lost} updates were lost under the lock"
    if not locked.fences_increase():
        yield "the fences did not increase from holder to holder"
    if 0 in locked.turns():
        yield f"an office sold nothing: {locked.turns()}"
    if [how for _, how in locked.lost_nodes] != ["killed", "hung"]:
        yield "the nodes were not killed and hung as planned"
    for moment, how in locked.lost_nodes:
        if not locked.sales_after(moment):
            yield f"nothing was sold any more after a node was {how}"
    if len(locked.refused) < max(1, locked.counts["frozen"]):
        yield "no office froze, or its stale write was not refused"
    if unlocked.lost_updates() <= 0:
        yield "without the lock no update was lost, so this run proves nothing"
