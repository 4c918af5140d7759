"""Count what offices and crowd did, and judge it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Any, NamedTuple


class Addresses(NamedTuple):
    """Where people find the site, and how they log in."""

    site: str
    locks: str
    user: str
    password: str


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
    fence: bool
    began: float = 0.0
    sales: list[Sale] = field(default_factory=list)
    refused: list[Sale] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of all events of the offices
    states: dict[int, str] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    lost_nodes: list[tuple[float, str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    row: int = 0  # what the row says in the end

    def begin(self) -> float:
        """Begin now; return the moment at which the act is to end."""
        self.states = dict.fromkeys(range(1, self.offices + 1), self._idle())
        self.began = time.monotonic()
        return self.began + self.seconds

    def _idle(self) -> str:
        return "waiting" if self.locked else "selling"

    def clock(self) -> str:
        return f"{time.monotonic() - self.began:4.1f} s"

    def hear(self, event: str, office: int, facts: Mapping[str, Any]) -> None:
        """Note an event of an office."""
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
        """Count the sales of each office, in order of the offices."""
        count = Counter(sale.office for sale in self.sales)
        return [count[office] for office in range(1, self.offices + 1)]

    def sections(self) -> list[Sale]:
        """Return each time in the critical section, in order of entering."""
        return sorted(self.sales + self.refused, key=lambda sale: sale.entered)

    def overlaps(self) -> int:
        """Count the times that began before an earlier one had ended."""
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


class Acts(NamedTuple):
    """The acts of the offices: with lock and fence, with the lock alone, with neither."""

    fenced: Act
    locked: Act
    neither: Act


def office_failures(acts: Acts) -> Iterator[str]:
    """Yield what did not hold in the offices, or what was not shown; nothing if all was well."""
    yield from _fence_failures(acts.fenced)
    if acts.locked.lost_updates() <= 0:
        yield "without the fence no update was lost, so this run proves nothing"
    if acts.neither.lost_updates() <= 0:
        yield "without the lock no update was lost, so this run proves nothing"


def _fence_failures(fenced: Act) -> Iterator[str]:
    if overlaps := fenced.overlaps():
        yield f"{overlaps} sales overlapped with the lock and the fence"
    if lost := fenced.lost_updates():
        yield f"{lost} updates were lost with the lock and the fence"
    if not fenced.fences_increase():
        yield "the fences did not increase from holder to holder"
    if 0 in fenced.turns():
        yield f"an office sold nothing: {fenced.turns()}"
    if [how for _, how in fenced.lost_nodes] != ["killed", "hung"]:
        yield "the nodes were not killed and hung as planned"
    for moment, how in fenced.lost_nodes:
        if not fenced.sales_after(moment):
            yield f"nothing was sold any more after a node was {how}"
    if len(fenced.refused) < max(1, fenced.counts["frozen"]):
        yield "no office froze, or its stale write was not refused by the row"


OUTAGE = 2.0  # seconds after the loss of a node in which a request may fail with 503


@dataclass
class Traffic:
    """What happened on the site, as several threads saw it.

    In a count by bool, True is with the lock and False without it.
    """

    began: float = field(default_factory=time.monotonic)
    customers: Counter[bool] = field(default_factory=Counter)  # each clicks twice
    served: Counter[bool] = field(default_factory=Counter)
    again: int = 0  # how often neither click worked, so that the customer clicked again
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    asked: int = 0  # messages that ask for a report
    built: int = 0
    skipped: int = 0
    complaints: list[str] = field(default_factory=list)
    unavailable: list[float] = field(default_factory=list)  # when a 503 came
    lost_nodes: list[float] = field(default_factory=list)
    lacks: list[tuple[float, float]] = field(default_factory=list)  # from when to when
    errors: int = 0  # requests, of the crowd or of people, that failed in the web server
    # what the database says
    orders: Counter[bool] = field(default_factory=Counter)
    sold_twice: Counter[bool] = field(default_factory=Counter)
    together: int = 0  # runs of one report that overlapped
    before_loss: int = 0  # customers that were served when the first node was lost
    log: list[str] = field(default_factory=list)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def clock(self) -> str:
        return f"{time.monotonic() - self.began:4.1f} s"

    def note(self, text: str) -> None:
        self.log.append(f"{self.clock()}  {text}")

    def come(self, *, locked: bool) -> None:
        with self._counting:
            self.customers[locked] += 1

    def serve(self, *, locked: bool) -> None:
        with self._counting:
            self.served[locked] += 1

    def send_away(self) -> None:
        with self._counting:
            self.again += 1

    def lose_node(self, text: str) -> None:
        self.before_loss = self.before_loss or self.served.total()
        self.lost_nodes.append(time.monotonic())
        self.note(text)

    def lack_majority(self) -> None:
        """Note that visitors have killed so many nodes that no majority is left."""
        now = time.monotonic()
        goes_on = bool(self.lacks) and now - self.lacks[-1][1] <= OUTAGE
        began, _ = self.lacks.pop() if goes_on else (now, now)
        self.lacks.append((began, now))

    def see(self, status: int, what: str) -> None:
        """Note the status of a response."""
        with self._counting:
            self.responses[what, status] += 1
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.unavailable.append(time.monotonic())
        elif status not in EXPECTED[what]:
            self.complain(f"{what}: {status}")

    def complain(self, text: str) -> None:
        self.complaints.append(text)

    def refused(self, *what: str) -> int:
        """Count the responses with status 409."""
        return sum(self.responses[each, HTTPStatus.CONFLICT] for each in what)

    def unexplained(self) -> int:
        """Count the responses with status 503 when no node had just been lost, or too many."""
        spans = [*((lost, lost) for lost in self.lost_nodes), *self.lacks]
        return sum(
            not any(began - 0.5 <= at <= ended + OUTAGE for began, ended in spans)
            for at in self.unavailable
        )


EXPECTED = {
    "page": {HTTPStatus.OK},
    "order": {HTTPStatus.FOUND, HTTPStatus.CONFLICT},
    "order_unlocked": {HTTPStatus.FOUND},
    "export": {HTTPStatus.OK, HTTPStatus.CONFLICT},
}


def traffic_failures(traffic: Traffic) -> Iterator[str]:
    """Yield what did not hold on the site; nothing if all did."""
    if traffic.orders[True] != traffic.customers[True]:
        yield (
            f"{traffic.customers[True]} customers clicked twice at the locked view, and there are "
            f"{traffic.orders[True]} orders"
        )
    if traffic.sold_twice[True] or not traffic.refused("order"):
        yield (
            f"{traffic.sold_twice[True]} orders were taken twice under the lock, and "
            f"{traffic.refused('order')} clicks were refused"
        )
    if traffic.sold_twice[False] <= 0:
        yield "without the lock no order was taken twice, so this run proves nothing"
    if traffic.served.total() <= traffic.before_loss or not traffic.lost_nodes:
        yield "no node was killed, or nobody was served any more"
    if traffic.together:
        yield f"{traffic.together} runs of one report overlapped"
    if traffic.built + traffic.skipped != traffic.asked or not traffic.skipped:
        yield f"{traffic.asked} messages, {traffic.built} built and {traffic.skipped} skipped"
    if traffic.errors:
        yield f"{traffic.errors} requests failed in the web server (500)"
    if count := traffic.unexplained():
        yield f"{count} requests were answered with 503, and no node had just been lost"
    for text, count in Counter(traffic.complaints).most_common(5):
        yield f"{text} ({count} times)"
