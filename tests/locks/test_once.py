"""``redlock(...).once(...).atomic()``: lock, BEGIN, body, COMMIT, record."""

# ruff: noqa: PT012 - what raises is a block with its end

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction

from django_redlock import LeaseLost, current_lease, redlock
from django_redlock.locks import once
from django_redlock.transactions import BEGUN, COMMITTED, TransactionUnderLock
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
    with redlock(WORK, min_hold=min_hold).once(keep=20) as run:
        assert run.fresh
    found = redlock(WORK).state()
    assert str(found.kind) == "done"
    assert max(0, seconds - 30) < found.remaining <= seconds


def rolled_back_unrecorded(rows: str, error: type[Exception], body: Callable[[], object]) -> bool:
    """Whether a block that ends so leaves neither a row nor a record."""
    with pytest.raises(error), redlock(WORK).once(keep=60).atomic(rows) as run:
        assert run.fresh
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
    with pytest.raises(LeaseLost), redlock(WORK).once(keep=60).atomic(rows) as run:
        assert run.fresh
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
    broken = Patch(once.block_exit, "_end", hasty)
    lost = pytest.raises((IntegrityError, LeaseLost))
    with with_edits(broken), lost, redlock(WORK).once(keep=60).atomic(rows) as run:
        assert run.fresh
        execute(rows, child)
    assert state() == "done"


def tries(rows: str, last: Callable[[], object]) -> list[object]:
    """What three callers of the same work are told, whose body inserts a row and ends so."""
    found: list[object] = []
    for _ in range(3):
        try:
            with redlock(WORK).once(keep=60).atomic(rows) as run:
                if run.fresh:
                    insert(rows)
                    last()
            found.append(run.fresh)
        except (ZeroDivisionError, KeyboardInterrupt) as error:
            found.append((type(error), *getattr(error, "__notes__", ())))
    return found


def raises_behind_the_commit(rows: str, error: type[BaseException]) -> tuple[Any, int, str]:
    """What becomes of work whose function of ``on_commit`` raises: a broker is away."""

    def fail() -> None:
        raise error

    told = tries(rows, lambda: transaction.on_commit(fail, using=rows))
    return told, count(rows), state()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_behind_the_commit_leaves_the_record(rows, error):
    """The work is done: the first caller gets the error, and the others have nothing to do."""
    told = [(error, COMMITTED), False, False]
    assert raises_behind_the_commit(rows, error) == (told, 1, "done")


def test_a_commit_that_is_not_noted_is_noticed(rows):
    """Broken: an error is taken for a rollback. The work is done three times."""
    deaf = Patch(TransactionUnderLock, "_note", lambda _: lambda self: None)
    with with_edits(deaf):
        told = [(ZeroDivisionError,)] * 3
        assert raises_behind_the_commit(rows, ZeroDivisionError) == (told, 3, "free")


def catch_an_error(rows: str) -> None:
    """Catch an error of the database outside of a savepoint: Django rolls the block back."""
    with suppress(IntegrityError), transaction.atomic(using=rows, savepoint=False):
        execute(rows, "INSERT INTO parent VALUES (1), (1)")


def let_sqlite_roll_back(rows: str) -> None:
    """Catch an error at which SQLite ends the transaction by itself, which Django cannot know."""
    with suppress(IntegrityError):
        execute(rows, "INSERT OR ROLLBACK INTO parent VALUES (1), (1)")


ROLLED_BACK = {
    "set_rollback": lambda rows: transaction.set_rollback(True, using=rows),
    "an error that is caught": catch_an_error,
    "by the database itself": let_sqlite_roll_back,
}


@pytest.mark.parametrize("last", ROLLED_BACK.values(), ids=ROLLED_BACK)
def test_a_block_that_is_rolled_back_without_an_error_leaves_no_record(rows, last, caplog):
    """Each caller has the work to do, and the log says why."""
    told = tries(rows, lambda: last(rows))
    assert (told, count(rows), state()) == ([True] * 3, 0, "free")
    assert caplog.text.count("is not done, and leaves no record: its transaction") == 3


def test_a_record_of_what_is_rolled_back_is_noticed(rows):
    """Broken: whatever ended without an error is taken for committed."""
    trusting = Patch(TransactionUnderLock, "roll_back", lambda _: trust)
    with with_edits(trusting), pytest.raises(AssertionError):
        test_a_block_that_is_rolled_back_without_an_error_leaves_no_record(
            rows, ROLLED_BACK["set_rollback"], None
        )
    connections[rows].needs_rollback = False


def trust(self: TransactionUnderLock) -> None:
    """Roll back as Django does, and believe that it was the COMMIT."""
    if self._thread:
        self._atomic.__exit__(None, None, None)
        self._thread, self.committed = 0, True


@pytest.mark.django_db
def test_in_a_testcase_its_functions_are_the_only_ones(django_capture_on_commit_callbacks):
    """A test that captures what ``on_commit`` registered finds its own alone; the work is done."""
    with django_capture_on_commit_callbacks(execute=True) as captured:
        for _ in range(2):
            with redlock(WORK).once(keep=60).atomic() as run:
                if run.fresh:
                    Group.objects.create(name="kept")
                    transaction.on_commit(lambda: 7)
    assert [each() for each in captured] == [7]
    with redlock("other").once(keep=60).atomic() as run:
        assert run.fresh
        transaction.set_rollback(True)
    assert (state(), redlock("other").state().kind) == ("done", "free")
    redlock.revoke(WORK)


# -- a body that does not ask ---------------------------------------------------------------------


def test_a_body_that_has_not_asked_is_rolled_back(rows):
    """It would do the work each time: so nothing is written or recorded, wherever it runs."""
    advice = r"write 'with redlock.* as run:' and, around the work, 'if run\.fresh:'"
    with pytest.raises(RuntimeError, match=advice), redlock(WORK).once(keep=60).atomic(rows):
        insert(rows)
    assert (count(rows), state()) == (0, "free")
    with pytest.raises(ZeroDivisionError), redlock(WORK).once(keep=60).atomic(rows):
        raise ZeroDivisionError  # the body's own error is what the caller gets
    tries(rows, bool)
    with pytest.raises(RuntimeError, match=advice), redlock(WORK).once(keep=60).atomic(rows):
        pass


FORGETS = """\
import logging, sys
import django
from django.conf import settings

settings.configure(DEBUG=sys.argv[1] == "debug", REDLOCK={redlock!r})
django.setup()
logging.basicConfig(stream=sys.stdout, format="%(levelname)s")
from django_redlock import redlock

for _ in range(3):
    try:
        with redlock("digest").once(keep=60):
            print("a mail is sent")
        print("ended")
    except RuntimeError as error:
        print("'if run.fresh:'" in str(error))
print(redlock("digest").state().kind)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("debug", ["a mail is sent", "True"] * 3 + ["free"]),
        ("deployed", ["a mail is sent", "ERROR", "ended", *["a mail is sent", "True"] * 2, "done"]),
    ],
)
def test_a_process_whose_body_has_not_asked(patient_nodes, settings, how, said):
    """Under ``DEBUG`` its first run raises, and elsewhere the log names the line to write."""
    script = FORGETS.format(redlock=settings.REDLOCK)
    done = subprocess.run(
        [sys.executable, "-c", script, how], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == said


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
