"""Use the site: customers that click twice, and clerks that ask for a report three times.

They are threads of the demo and use HTTP and the broker, as any client. They note in
`facts.Traffic` what they saw; `audit` reads from the database what became of it.
"""

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Self

from . import endings
from .browser import TIMEOUT, Browser
from .facts import Traffic

TRIES = 10
COPIES = 3  # of each message
REPORT_PAUSE = 0.5
NAME = "Customer"  # in their orders; those of people have other names


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
        self._threads = [
            threading.Thread(target=self._run, args=(each,), daemon=True) for each in loops
        ]
        self._pending: list[Any] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self)
            with endings.after_this():
                for thread in self._threads:
                    thread.start()
            stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()
        self._pool.shutdown()
        self._pending.clear()  # while the broker runs: a result that is dropped sends it a message

    def leave(self) -> None:
        """Finish what was begun, and begin nothing more."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def settle(self, seconds: float) -> bool:
        """Wait until no message is pending; return whether that is so in time. After `leave`."""
        deadline = time.monotonic() + seconds
        while self._pending and time.monotonic() < deadline:
            self._collect()
            time.sleep(0.1)
        return not self._pending

    def _run(self, loop: Callable[[], None]) -> None:
        """Call `loop` again and again, from a random moment on."""
        self._stop.wait(random.uniform(0, self._pause))
        while not self._stop.is_set():
            try:
                loop()
            except Exception as error:  # noqa: BLE001 - it is shown in the end
                self._traffic.complain(f"{type(error).__name__}: {error}")
            self._stop.wait(self._pause * random.uniform(0.7, 1.3))

    def _twice(self, click: Callable[[], int]) -> list[int]:
        """Click twice at the same time; return both statuses."""
        together = threading.Barrier(2, timeout=TIMEOUT)

        def clicking() -> int:
            together.wait()
            return click()

        return [each.result() for each in [self._pool.submit(clicking) for _ in range(2)]]

    def _buy(self) -> None:
        """Order as a new customer, by a double click, until an order succeeds."""
        number = next(self._numbers)
        locked = number % 4 != 0
        show = random.choice(self._shows)
        path = f"/shows/{show}/{'order' if locked else 'order-unlocked'}/"
        # Each form has a token of its own, and a double click sends the same form twice.
        fields = {"name": f"{NAME} {number}", "seats": random.randint(1, 6), "click": uuid.uuid4()}
        browser = Browser(self._site)
        self._traffic.see(browser.ask("GET", f"/shows/{show}/"), "page")
        self._traffic.come(locked=locked)
        for _ in range(TRIES):
            statuses = self._twice(lambda: browser.ask("POST", path, fields))
            for status in statuses:
                self._traffic.see(status, "order" if locked else "order_unlocked")
            if HTTPStatus.FOUND in statuses:
                self._traffic.serve(locked=locked)
                return
            self._traffic.send_away()
            time.sleep(0.5)

    def _export(self) -> None:
        """Download a file twice at the same time; that takes longer than an order."""
        show = random.choice(self._shows)
        statuses = self._twice(lambda: Browser(self._site).ask("GET", f"/shows/{show}/orders.csv"))
        for status in statuses:
            self._traffic.see(status, "export")
        self._stop.wait(3 * self._pause)

    def _ask_for_reports(self) -> None:
        """Send the same message several times, for one show after the other."""
        from example_project.box_office.tasks import build_report

        show = self._shows[self._traffic.asked // COPIES % len(self._shows)]
        for _ in range(COPIES):
            self._pending.append(build_report.delay(show))
            self._traffic.asked += 1
        self._collect()
        self._stop.wait(REPORT_PAUSE)

    def _collect(self) -> None:
        """Count what became of the messages."""
        for result in list(self._pending):
            if not result.ready():
                continue
            self._pending.remove(result)
            if result.failed():
                self._traffic.complain(f"a report failed: {result.result}")
            elif isinstance(result.result, dict):
                self._traffic.skipped += 1
            else:
                self._traffic.built += 1
            result.forget()


def audit(traffic: Traffic) -> None:
    """Read the orders and reports that the crowd caused from the database."""
    from django.db.models import Count

    from example_project.box_office.models import Order, Report

    ordered = Order.objects.filter(name__startswith=NAME).order_by()
    for row in ordered.values("locked").annotate(
        orders=Count("pk"), names=Count("name", distinct=True)
    ):
        traffic.orders[row["locked"]] = row["orders"]
        traffic.sold_twice[row["locked"]] = row["orders"] - row["names"]
    runs = Report.objects.order_by("show", "began").values_list("show", "began", "ended")
    traffic.together = sum(
        show == next_show and (ended is None or began < ended)
        for (show, _, ended), (next_show, began, _) in pairwise(runs)
    )
