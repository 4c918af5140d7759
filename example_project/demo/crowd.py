"""Use the site: customers that click twice, and clerks that ask for a report three times.

They are threads of the demo and use HTTP and the broker, as any client.
"""

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Self

from .browser import Browser

TRIES = 10
COPIES = 3  # of each message
NAME = "Customer"  # in their orders; those of people have other names
OUTAGE = 2.0  # seconds after the loss of a node in which a request may fail with 503
FOUND, REFUSED, UNAVAILABLE = 302, 409, 503
EXPECTED = {"page": {200}, "with": {302, 409}, "without": {302}, "export": {200, 409}}


class Traffic:
    """What happened on the site. In a pair of counts, the first is with the lock.

    Attributes:
        counts: of the customers, "with" the lock and "without"; of responses, by what was asked for
            and the status; of reports that were "asked" for, "built" and "skipped".
        unavailable: the moments at which a 503 came.
        lost: the moments at which a node was lost.
        orders: the number of orders of those customers, by the database.
        twice: the number of orders that were one too many.
        together: the number of runs of one report that overlapped.
    """

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.complaints: list[str] = []
        self.unavailable: list[float] = []
        self.lost: list[float] = []
        self.orders = self.twice = (0, 0)
        self.together = 0
        self._counting = threading.Lock()

    def count(self, what: object) -> None:
        with self._counting:
            self.counts[what] += 1

    def see(self, status: int, what: str) -> None:
        """Note the status of a response."""
        self.count((what, status))
        if status == UNAVAILABLE:
            self.unavailable.append(time.monotonic())
        elif status not in EXPECTED[what]:
            self.complaints.append(f"{what}: {status}")

    def unexplained(self) -> int:
        """Count the responses with status 503 when no node had just been lost."""
        return sum(
            not any(lost - 0.5 <= at <= lost + OUTAGE for lost in self.lost)
            for at in self.unavailable
        )

    def audit(self) -> None:
        """Read the orders and reports that the crowd caused from the database."""
        from example_project.box_office.models import Order, Report

        ordered = Order.objects.filter(name__startswith=NAME)
        names = [
            ordered.filter(locked=locked).values_list("name", flat=True) for locked in (True, False)
        ]
        self.orders = len(names[0]), len(names[1])
        self.twice = len(names[0]) - len({*names[0]}), len(names[1]) - len({*names[1]})
        runs = Report.objects.order_by("show", "began").values_list("show", "began", "ended")
        self.together = sum(
            show == next_show and (ended is None or began < ended)
            for (show, _, ended), (next_show, began, _) in pairwise(runs)
        )

    def figures(self) -> list[str]:
        """Say all of it in lines."""
        count, (locked, unlocked) = self.counts, self.orders
        orders = f"double clicks: {count['with']}, orders: {locked}"
        return [
            f"{orders}; without the lock: {count['without']} and {unlocked}",
            f"clicks refused: {count['with', REFUSED]} (409), {len(self.unavailable)} (503)",
            "reports: {asked} asked for, {built} built, {skipped} skipped".format_map(count),
        ]

    def failures(self) -> Iterator[str]:
        """Yield what did not hold on the site; nothing if all did."""
        count = self.counts
        if self.orders[0] != count["with"] or self.twice[0] or not count["with", REFUSED]:
            yield f"{count['with']} double clicks under the lock made {self.orders[0]} orders"
        if not self.twice[1]:
            yield "without the lock no order was taken twice, so this run proves nothing"
        if self.together:
            yield f"{self.together} runs of one report overlapped"
        if count["built"] + count["skipped"] != count["asked"] or not count["skipped"]:
            yield f"{count['asked']} messages: {count['built']} built, {count['skipped']} skipped"
        if self.unexplained():
            yield f"{self.unexplained()} requests got a 503, and no node had just been lost"
        yield from self.complaints


class Crowd:
    """All customers and clerks, from `with` to `leave()` or its end.

    Args:
        customers: how many there are at once.
        pause: seconds between two orders of a customer, about; other threads wait longer.
    """

    def __init__(
        self, site: str, shows: Sequence[int], traffic: Traffic, *, customers: int, pause: float
    ) -> None:
        self._site = site
        self._shows = shows
        self._traffic = traffic
        self._pause = pause
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(2 * customers + 2, "click")  # two clicks for each
        loops = [self._buy] * customers + [self._export, self._ask_for_reports]
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in loops]
        self._pending: list[Any] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()
        self._pool.shutdown()
        self._pending.clear()  # while the broker runs: a result that is dropped sends it a message

    def leave(self) -> None:
        """Finish what was begun, and begin nothing more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def settle(self, seconds: float) -> None:
        """Wait until no message is pending, or so long. After `leave`."""
        deadline = time.monotonic() + seconds
        while self._pending and time.monotonic() < deadline:
            self._collect()
            time.sleep(0.1)

    def _run(self, loop: Callable[[], None]) -> None:
        self._stop.wait(random.uniform(0, self._pause))
        while not self._stop.is_set():
            try:
                loop()
            except Exception as error:  # noqa: BLE001 - it is shown in the end
                self._traffic.complaints.append(f"{type(error).__name__}: {error}")
            self._stop.wait(self._pause * random.uniform(0.7, 1.3))

    def _twice(self, click: Callable[[], int], what: str) -> list[int]:
        """Click twice at the same time; return both statuses."""
        statuses = [each.result() for each in [self._pool.submit(click) for _ in range(2)]]
        for status in statuses:
            self._traffic.see(status, what)
        return statuses

    def _buy(self) -> None:
        """Order as a new customer, by a double click, until an order succeeds."""
        number, browser = next(self._numbers), Browser(self._site)
        way, path = ("with", "/order/") if number % 4 else ("without", "/order-unlocked/")
        # Each form has a token of its own, and a double click sends the same form twice.
        fields = {"name": f"{NAME} {number}", "seats": random.randint(1, 6), "click": uuid.uuid4()}
        fields["show"] = random.choice(self._shows)
        self._traffic.see(browser.ask("GET", "/"), "page")
        self._traffic.count(way)
        for _ in range(TRIES):
            if FOUND in self._twice(lambda: browser.ask("POST", path, fields), way):
                return
            time.sleep(0.5)

    def _export(self) -> None:
        """Download a file twice at the same time; that takes longer than an order."""
        path = f"/shows/{random.choice(self._shows)}/orders.csv"
        self._twice(lambda: Browser(self._site).ask("GET", path), "export")
        self._stop.wait(3 * self._pause)

    def _ask_for_reports(self) -> None:
        """Send the same message several times, for one show after the other."""
        from example_project.box_office.tasks import build_report

        show = self._shows[self._traffic.counts["asked"] // COPIES % len(self._shows)]
        for _ in range(COPIES):
            self._pending.append(build_report.delay(show))
            self._traffic.count("asked")
        self._collect()
        self._stop.wait(self._pause)

    def _collect(self) -> None:
        """Count what became of the messages."""
        for result in [each for each in self._pending if each.ready()]:
            self._pending.remove(result)
            if result.failed():
                self._traffic.complaints.append(f"a report failed: {result.result}")
            else:
                self._traffic.count("skipped" if isinstance(result.result, dict) else "built")
            result.forget()
