"""``redlock(...).once(...).atomic()``: lock, BEGIN, body, COMMIT, record."""

# ruff: noqa: PT012 - what raises is a block with its end

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_redlock import LeaseLost, current_lease, redlock
from django_redlock.locks import once
from django_redlock.transactions import BEGUN
from tests.simulation.mutants import Patch, with_edits

from .test_atomic import NAME, count, execute, insert, rows

__all__ = ["rows"]  # the fixture sees that NAME is free and no transaction is open afterwards
WORK = "work"


def state() -> str:
    """What the nodes have of the name."""
    return str(redlock(WORK).state().kind)


def test_the_record_is_written_behind_the_commit(rows):
    """What ``on_commit`` runs sees the rows, and the name still held; then the work is done."""
    seen: list[tuple[int, str]] = []
    with redlock(WORK).once(keep=60).atomic(rows) as run:
        assert run.lease is current_lease()
        insert(rows)
        transaction.on_commit(lambda: seen.append((count(rows), state())), using=rows)
    assert seen == [(1, "held")]
    assert state() == "done"


def test_a_run_that_is_not_fresh_begins_no_transaction(rows):
    """There is nothing to do."""
    for _ in range(2):
        with redlock(WORK).once(keep=60).atomic(rows) as run:
            assert transaction.get_connection(rows).in_atomic_block is run.fresh
    assert not run.fresh


@pytest.mark.parametrize(("min_hold", "seconds"), [(0, 20), (2, 20), (55, 55)])
def test_the_name_stays_taken_for_min_hold_as_well(rows, min_hold, seconds):
    """Though the record would end before: a machine whose clock is late does not work, too."""
    with redlock(WORK, min_hold=min_hold).once(keep=20):
        pass
    found = redlock(WORK).state()
    assert str(found.kind) == "done"
    assert max(0, seconds - 30) < found.remaining <= seconds


def rolled_back_unrecorded(rows: str, error: type[Exception], body: Callable[[], object]) -> bool:
    """Whether a block that ends so leaves neither a row nor a record."""
    with pytest.raises(error), redlock(WORK).once(keep=60).atomic(rows):
        insert(rows)
        body()
    return count(rows) == 0 and state() == "free"


def lose() -> None:
    """Let the lease of the block end."""
    lease = current_lease()
    assert lease is not None
    lease.expire()


def test_what_is_rolled_back_is_not_recorded(rows):
    """A body that raised, a lease that was lost, a COMMIT that fails."""
    child = "INSERT INTO child VALUES (42)"  # its foreign key is checked by the COMMIT
    execute(rows, "PRAGMA foreign_keys = ON")
    assert rolled_back_unrecorded(rows, ZeroDivisionError, lambda: 1 / 0)
    assert rolled_back_unrecorded(rows, IntegrityError, lambda: execute(rows, child))
    with pytest.raises(LeaseLost), redlock(WORK).once(keep=60).atomic(rows):
        insert(rows)
        lose()
    assert count(rows) == 0


def test_a_record_before_the_commit_is_noticed(rows):
    """Broken: record, then COMMIT. Where that fails, the work is lost."""

    def hasty(end: Callable[..., Any]) -> Callable[..., Any]:
        def ended(block: Any, lock: Any, kind: Any) -> Any:
            if kind is None:
                block.held.backend.run(lock.record(block.held))
            return end(block, lock, kind)

        return ended

    child = "INSERT INTO child VALUES (42)"
    execute(rows, "PRAGMA foreign_keys = ON")
    broken = Patch(once.leave, "_end", hasty)
    lost = pytest.raises((IntegrityError, LeaseLost))
    with with_edits(broken), lost, redlock(WORK).once(keep=60).atomic(rows):
        execute(rows, child)
    assert state() == "done"


def test_it_is_refused_inside_another_transaction(rows):
    """As ``Lock.atomic`` is."""
    with transaction.atomic(rows):
        assert BEGUN
        with pytest.raises(RuntimeError, match="durable"), redlock(WORK).once(60).atomic(rows):
            pass


def test_a_decorated_function_is_one_transaction(rows):
    """A call that is not fresh returns None, and writes nothing."""

    @redlock("work:{n}").once(keep=60).atomic(rows)
    def work(n: int) -> int:
        insert(rows)
        return n

    assert [work(1), work(1), work(2)] == [1, None, 2]
    assert count(rows) == 2
    assert NAME != WORK
