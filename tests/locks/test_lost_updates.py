"""Processes that add to one counter, in the right order of lock and COMMIT and in the wrong one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.locks.counting import TABLES

ROOT = Path(__file__).parents[2]
PROCESSES = 4


def lost(alias: dict[str, Any], folder: Path, order: str, *, rounds: int) -> tuple[int, str]:
    """How many of the additions of all processes are not in the counter; what Python warned of."""
    file = folder / f"{order}.sqlite3"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as database:
        database.executescript(TABLES)
    told = {"alias": alias, "file": str(file), "order": order, "rounds": rounds}
    command = [sys.executable, "-m", "tests.locks.counting", json.dumps(told)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, said
    with closing(sqlite3.connect(file)) as database:
        ((counted,),) = database.execute("SELECT n FROM counter")
        ((entries,),) = database.execute("SELECT count(*) FROM journal")
    assert entries == PROCESSES * rounds * 200
    return PROCESSES * rounds - counted, said[0]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_no_update_is_lost_where_the_lock_outlives_the_commit(patient_nodes, tmp_path):
    """400 additions of 4 processes by `.atomic()` make 400; with the lock inside, some are lost.

    There Python names the line that takes the lock.
    """
    alias = patient_nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False)
    assert lost(alias, tmp_path, "atomic", rounds=100) == (0, "")
    for _ in range(10):
        missing, said = lost(alias, tmp_path, "inside", rounds=25)
        assert said.count("LockInTransactionWarning") == 1
        assert "counting.py" in said
        if missing:
            return
    pytest.fail("the broken order lost nothing")
