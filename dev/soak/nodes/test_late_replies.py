"""Links over which replies are late, with many threads."""

from __future__ import annotations

import threading
import time

from tests.support.links import LONG
from tests.support.loops import group_of, keys_on, owing, template
from tests.support.waiting import eventually


def test_many_threads_while_a_node_stops_and_goes_on(three):
    """Links that owe replies serve all threads; no name stays taken, and no request fails."""
    group = group_of(three.urls, LONG)
    redlock, failures, over = template(group), [], threading.Event()

    def work(number: int) -> None:
        try:
            while not over.is_set():
                with redlock(f"of:{number}"), redlock(f"nested:{number}"):
                    pass
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    workers = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for each in workers:
        each.start()
    for _ in range(10):
        three.pause(2)
        time.sleep(0.03)
        three.resume(2)
        time.sleep(0.03)
    over.set()
    for each in workers:
        each.join()
    assert failures == []
    eventually(lambda: owing(group.nodes) == [0] * 3)
    eventually(lambda: keys_on(three) == [[]] * 3)
    group.close()
