"""A holder in an event loop that is frozen for longer than its ttl; on real nodes."""

from __future__ import annotations

import json
import signal
from contextlib import closing

import pytest

from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

from .test_renewal import group_of, made, nodes
from .test_renewal_elsewhere import SETTINGS, invoice, line, running

__all__ = ["nodes"]

FROZEN = f"""{SETTINGS}
import asyncio, os, sqlite3
from contextlib import closing
where, claimed, meanwhile = sys.argv[2:]

async def main(table):
    told = threading.Event()
    async with redlock("invoice", ttl=2, wait=20, on_lost=lambda _: told.set()) as lease:
        fence = lease.fence
        rows = table.execute("UPDATE invoice SET fence = ? WHERE fence <= ?", (fence, fence))
        print(json.dumps([rows.rowcount, lease.lost]), flush=True)
        while not os.path.exists(claimed):  # frozen in here
            if meanwhile == "awaiting":
                await asyncio.sleep(0.001)
        lost, ensured = look(lease)
        rows = table.execute("UPDATE invoice SET total = 1 WHERE fence = ?", (fence,))
        told_too = await asyncio.to_thread(told.wait, 60)
        print(json.dumps([lost, ensured, rows.rowcount, told_too]), flush=True)

with closing(sqlite3.connect(where, isolation_level=None)) as table:
    asyncio.run(main(table))
"""  # noqa: S608 - no injection: a script


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["awaiting", "working"])
def test_a_frozen_task_wakes_up_lost_and_its_write_is_refused(nodes, tmp_path, meanwhile):
    """Stopped past its ttl, a task knows at its first look, and the row refuses it.

    It knows by the clock: where the task was at work, no timer of its loop has run before.
    """
    path, claimed = tmp_path / "shop.sqlite3", tmp_path / "claimed"
    with invoice(path) as table, closing(group_of(nodes)) as group:
        words = ",".join(nodes.urls), str(path), str(claimed), meanwhile
        with running(FROZEN, *words) as frozen:
            assert json.loads(line(frozen)) == [1, False]
            frozen.send_signal(signal.SIGSTOP)
            eventually(lambda: process_state(frozen.pid) == "T")
            lease = made(group, ttl=60, renew=False)("invoice", wait=60).acquire()
            rows = table.execute(
                "UPDATE invoice SET fence = ? WHERE fence <= ?", (lease.fence, lease.fence)
            )
            assert rows.rowcount == 1
            claimed.touch()  # what the frozen one sees from now on, it sees too late
            frozen.send_signal(signal.SIGCONT)
            assert json.loads(line(frozen)) == [True, False, 0, True]
            assert frozen.wait(120) == 0
        lease.ensure()
        assert table.execute("SELECT total, fence FROM invoice").fetchall() == [(0, lease.fence)]
        lease.release()
