"""``idempotent_work``: a task that is delivered again returns its first result."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_redlock import LockTaken, NodesUnavailable, conf, current_lease, redlock
from django_redlock.idempotency import idempotent, idempotent_work
from django_redlock.idempotency import work as of_work
from django_redlock.idempotency.decorator import WAIT
from django_redlock.idempotency.models import Record
from django_redlock.inspection.survey import survey
from django_redlock.transactions import COMMITTED
from tests.support.waiting import eventually

from .shop import KEY, Shop, order, orders_made, records

pytestmark = pytest.mark.django_db


def charge(
    key: Any = 7, result: Any = None, last: Callable[[], object] = bool, **options: Any
) -> tuple[bool, Any]:
    """Make an order under a key; return whether it was done before, and the result."""
    with idempotent_work("charge", key, **options) as work:
        if not work.done:
            order(None)  # type: ignore[arg-type]
            work.result = {"receipt": uuid.uuid4().hex} if result is None else result
            last()
    return work.done, work.result


def test_the_second_time_gets_the_result_of_the_first():
    """In one transaction and in a lock, and by as few questions as a view."""
    done, result = charge()
    assert not done
    assert charge() == (True, result)
    assert charge("7") == (True, result)
    assert charge(8)[1] != result
    assert orders_made() == 2
    assert [each.status for each in records()] == [None, None]


def test_the_body_of_the_block_has_a_lease_and_a_transaction():
    """Which are over afterwards; what was done before needs neither."""
    with idempotent_work("charge", 7) as work:
        assert not work.done
        lease = current_lease()
        assert lease is not None
        assert lease.name == "idempotency:charge:7"
        assert connection.in_atomic_block
    assert redlock(lease.name).try_acquire() is not None
    with idempotent_work("charge", 7) as work:
        assert work.done
        assert current_lease() is None


def test_an_error_leaves_nothing():
    """The next time is a first one."""
    with pytest.raises(ZeroDivisionError), idempotent_work("charge", 7) as work:
        work.result = order(None).status_code / 0  # type: ignore[arg-type]
    assert (orders_made(), records()) == (0, [])
    assert not charge()[0]


def test_a_result_is_set_only_where_it_is_stored():
    """A block that has not asked whether the work is done is told, and so is one that is over."""
    done, result = charge()
    advice = "set it inside of the block, and do that and the work if not work.done"
    with pytest.raises(RuntimeError, match=advice), idempotent_work("charge", 7) as work:
        work.result = "another"
    with idempotent_work("charge", 8) as work:
        assert not work.done
    with pytest.raises(RuntimeError, match="under the key '8' is not stored"):
        work.result = "too late"
    assert charge() == (True, result) != (done, result)
    assert charge(8) == (True, None)


def test_a_body_that_has_not_asked_is_rolled_back(transactional_db):
    """It would do the work each time; the second time it is told as well, behind its work."""
    advice = "write 'with idempotent_work.* as work:' and, around the work, 'if not work.done:'"
    with pytest.raises(RuntimeError, match=advice), idempotent_work("charge", 7) as work:
        work.result = order(None).status_code  # type: ignore[arg-type]
    assert (orders_made(), records()) == (0, [])
    charge()
    with pytest.raises(RuntimeError, match=advice), idempotent_work("charge", 7):
        pass
    for key in (7, 8):
        with pytest.raises(ZeroDivisionError), idempotent_work("charge", key):
            raise ZeroDivisionError  # the body's own error is what the caller gets


def fail() -> None:
    """What ``on_commit`` may have been given."""
    raise ZeroDivisionError


def test_an_error_behind_the_commit_leaves_the_record(transactional_db):
    """The record is in the transaction of the work: the next delivery does nothing."""
    with pytest.raises(ZeroDivisionError) as caught:
        charge(last=lambda: transaction.on_commit(fail))
    assert caught.value.__notes__ == [COMMITTED]
    assert charge()[0]
    assert orders_made() == 1


def test_a_body_that_is_rolled_back_without_an_error_is_told(transactional_db):
    """Nothing is kept, neither the work nor the record, and the caller gets an error."""
    with pytest.raises(TransactionManagementError):
        charge(last=lambda: transaction.set_rollback(True))
    assert (orders_made(), records()) == (0, [])


def test_a_record_is_no_key():
    """Its text may be that of another one, whose work would be taken for done."""
    with pytest.raises(TypeError, match="give its pk"):
        idempotent_work("charge", Group(name="a"))


def test_what_json_can_have():
    """Dates, UUIDs and decimals become texts; what cannot be stored rolls back."""
    day = dt.date(2026, 7, 1)
    given = [None, 1.5, {"a": [day, decimal.Decimal("1.50"), uuid.UUID(int=1)]}]
    charge(result=given)
    assert charge()[1] == [None, 1.5, {"a": ["2026-07-01", "1.50", str(uuid.UUID(int=1))]}]
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        charge(8, result=object())
    assert orders_made() == 1
    with idempotent_work("charge", 9) as work:  # without a result
        assert not work.done
    with idempotent_work("charge", 9) as work:
        assert (work.done, work.result) == (True, None)


def test_a_taken_lock_and_no_majority(memory):
    """They raise what a lock raises, which names the work."""
    named = "'idempotency:charge:7': held by "
    with redlock("idempotency:charge:7"), pytest.raises(LockTaken, match=named):
        charge(wait=0)
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable):
        charge()
    assert (orders_made(), records()) == (0, [])


def test_a_second_delivery_waits_for_the_first(monkeypatch):
    """Without an option, as ``idempotent`` does: whoever is at work has a moment to finish."""
    assert vars(of_work)["WAIT"] == WAIT > 0
    monkeypatch.setattr(of_work, "WAIT", 3600.0)  # no stall of this machine ends it
    held, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with redlock("idempotency:charge:7"):
            held.set()
            assert may_end.wait(60)

    def end_it() -> None:
        eventually(one_waits)
        may_end.set()

    with ThreadPoolExecutor(2) as pool:
        done = pool.submit(first)
        assert held.wait(60)
        pool.submit(end_it)
        assert not charge()[0]
        done.result()


def one_waits() -> bool:
    """Whether somebody waits for a lock."""
    return survey(conf.backend("default"), memory=True).waiting == 1


def test_names_that_no_lock_can_have():
    """A scope and a key may be any texts."""
    for key in ("{7}", "x" * 600, "a\nb"):
        _, result = charge(key)
        assert charge(key) == (True, result)


def test_other_work_under_the_same_key():
    """By its fingerprint; or a view's, whose records stand in the same table."""
    charge(fingerprint="7 euros")
    assert charge(fingerprint="7 euros")[0]
    with pytest.raises(ValueError, match="'charge' has done something else under the key '7'"):
        charge(fingerprint="8 euros")
    shop = Shop(idempotent(scope="anybody")(order))
    shop.send()
    assert charge(9, fingerprint="€" * 300)[1] == charge(9, fingerprint="€" * 300)[1]
    with pytest.raises(ValueError, match="something else"), idempotent_work("anybody", KEY):
        pass
    with idempotent_work("anybody", "mine") as work:
        assert not work.done
    assert shop.send("mine").status_code == 422


def test_a_result_is_kept_for_a_while():
    """Afterwards the key is new."""
    _, result = charge(keep=60)
    Record.objects.update(expires=timezone.now() - dt.timedelta(seconds=1))
    done, other = charge()
    assert not done
    assert other != result


def test_inside_a_transaction_it_is_refused(transactional_db):
    """Its record would be committed with what is around it, or not at all."""
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        charge()
    assert records() == []


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("charge", None), {}, "needs a scope and a key"),
        (("charge", ""), {}, "needs a scope and a key"),
        (("", 7), {}, "needs a scope and a key"),
        (("charge", b"7"), {}, "needs a scope and a key"),
        ((7, 7), {}, "scope must be a text, not int"),
        (("charge", 7), {"fingerprint": 7}, "fingerprint must be a text"),
        (("charge", 7), {"keep": -1}, "keep must be above 0"),
        (("charge", 7), {"using": 7}, "using must be the alias of a database"),
        (("charge", 7), {"ttl": "x"}, "ttl"),
        ((), {}, r"'scope'; write idempotent_work\('charge', order_id\): a scope and a key"),
        (
            ("charge", 7),
            {"min_hold": 5},
            "idempotent_work has no keyword 'min_hold'; it takes alias",
        ),
    ],
)
def test_wrong_arguments(arguments, options, text):
    """Each is told at once, with its name."""
    with pytest.raises((TypeError, ValueError), match=text):
        idempotent_work(*arguments, **options)
