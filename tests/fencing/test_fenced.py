"""``fenced`` claims rows at entry, and lets only the last holder that claimed them write."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_redlock import LeaseLost, redlock
from django_redlock.core.reasons import ReasonCode
from django_redlock.fencing import (
    FencedRows,
    RemoteHolder,
    StaleFence,
    afenced,
    claim,
    fenced,
)
from django_redlock.fencing.field import Token
from django_redlock.leases.lease import Lease

from .models import BoxSeat, FrontSeat, Hall, Sale, Seat, Square, Stall, Ticket, Twice

pytestmark = pytest.mark.django_db


@pytest.fixture
def seat() -> Seat:
    """A row."""
    return Seat.objects.create()


@pytest.fixture
def seats() -> list[Seat]:
    """Three rows."""
    return [Seat.objects.create(price=price) for price in (1, 2, 3)]


@pytest.fixture
def lease() -> Iterator[Lease]:
    """The holder."""
    with redlock("seat") as lease:
        yield lease


def claimed_by_a_successor(*seats: Seat) -> int:
    """Somebody else enters, as when a holder slept past its lease; their fence."""
    number = 2**62
    Seat.objects.filter(pk__in=[seat.pk for seat in seats]).update(fence=Token(number))
    return number


def test_the_last_holder_writes(seat: Seat) -> None:
    """The README's example; the next holder has a higher fence."""
    for owner in ("ann", "bob"):
        with redlock("seat") as lease:
            claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
            assert Seat.objects.get().fence == lease.fence
            row = claimed.get()
            assert row.fence == lease.fence
            assert claimed.update(owner=owner, price=F("price") + 1) == 1
    assert Seat.objects.values_list("owner", "price").get() == ("bob", 2)


WRITES: dict[str, Callable[[FencedRows[Seat], Seat], object]] = {
    "update": lambda claimed, _: claimed.update(owner="late"),
    "save": lambda claimed, row: claimed.save(row),
    "save of a column": lambda claimed, row: claimed.save(row, update_fields=["owner"]),
    "delete": lambda claimed, _: claimed.delete(),
    "get": lambda claimed, _: claimed.get(),
    "iterate": lambda claimed, _: list(claimed),
    "aupdate": lambda claimed, _: asyncio.run(claimed.aupdate(owner="late")),
    "asave": lambda claimed, row: asyncio.run(claimed.asave(row)),
    "adelete": lambda claimed, _: asyncio.run(claimed.adelete()),
    "aget": lambda claimed, _: asyncio.run(claimed.aget()),
    "alist": lambda claimed, _: asyncio.run(claimed.alist()),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_who_slept_past_its_lease_changes_nothing(seat: Seat, lease: Lease, act: Any) -> None:
    """A successor has claimed, and has only read as yet."""
    claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
    row = claimed.get()
    row.owner = "late"
    number = claimed_by_a_successor(seat)
    with pytest.raises(StaleFence, match="a later holder has claimed Seat") as caught:
        act(claimed, row)
    assert Seat.objects.values_list("owner", "fence").get() == ("", number)
    assert isinstance(caught.value, LeaseLost)
    assert (caught.value.keys, caught.value.name) == ((seat.pk,), "seat")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - as a queue does
    assert again.code == ReasonCode.STALE_FENCE
    assert (again.keys, str(again)) == ((seat.pk,), str(caught.value))


@pytest.mark.parametrize("act", ["update", "save", "delete"])
def test_who_writes_without_a_look_at_the_fence_is_found(
    seat: Seat, lease: Lease, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail."""

    def by_key_alone(self: FencedRows[Seat], keys: Any) -> models.QuerySet[Seat]:
        return self._model._base_manager.filter(pk__in=keys)

    monkeypatch.setattr(FencedRows, "_ours", by_key_alone)
    claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
    row = claimed.get()
    row.owner = "late"
    claimed_by_a_successor(seat)
    WRITES[act](claimed, row)
    assert set(Seat.objects.values_list("owner", flat=True)) in ({"late"}, set())


def test_a_successors_row_is_not_claimed(seat: Seat, lease: Lease) -> None:
    """The lease had time left when it was asked, and none when the database was."""
    number = claimed_by_a_successor(seat)
    with pytest.raises(StaleFence) as caught:
        fenced(lease, Seat.objects.filter(pk=seat.pk))
    assert caught.value.keys == (seat.pk,)
    assert Seat.objects.get().fence == number


def test_a_claim_that_ignores_the_fence_is_found(
    seat: Seat, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail."""

    def any_fence(lease: Lease, rows: models.QuerySet[Any], name: str) -> int:
        return rows.update(**{name: Token(lease.fence)})

    monkeypatch.setattr(claim, "_write", any_fence)
    claimed_by_a_successor(seat)
    fenced(lease, Seat.objects.filter(pk=seat.pk))
    assert Seat.objects.get().fence == lease.fence


def test_one_of_several_rows_is_a_successors(seats: list[Seat], lease: Lease) -> None:
    """No row is claimed or changed; the error names those that are lost."""
    claimed_by_a_successor(seats[1])
    with pytest.raises(StaleFence) as caught:
        fenced(lease, Seat.objects.all())
    assert caught.value.keys == (seats[1].pk,)
    assert set(Seat.objects.exclude(pk=seats[1].pk).values_list("fence", flat=True)) == {0}
    claimed = fenced(lease, Seat.objects.exclude(pk=seats[1].pk))
    claimed_by_a_successor(seats[2])
    for act in (
        lambda: claimed.update(owner="late"),
        claimed.delete,
        lambda: list(claimed),
        lambda: claimed.save(seats[2]),
    ):
        with pytest.raises(StaleFence) as caught:
            act()
        assert caught.value.keys == (seats[2].pk,)
    assert set(Seat.objects.values_list("owner", flat=True)) == {""}
    claimed.save(seats[0])


def test_a_row_that_is_gone_is_stale(seat: Seat, lease: Lease) -> None:
    """A later holder deleted it."""
    claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
    Seat.objects.all().delete()
    with pytest.raises(StaleFence):
        claimed.update(owner="late")
    seat.pk = claimed.keys[0]
    with pytest.raises(StaleFence):
        claimed.save(seat)
    assert not Seat.objects.exists()


def test_no_row_is_told_as_django_does(lease: Lease) -> None:
    """By the model's own error."""
    with pytest.raises(Seat.DoesNotExist, match="no Seat to claim"):
        fenced(lease, Seat.objects.filter(pk=1))
    with pytest.raises(Seat.DoesNotExist):
        fenced(lease, Seat.objects.none())


def test_a_lease_that_is_over_claims_nothing(seat: Seat) -> None:
    """The lease is asked first."""
    lease = redlock("seat").acquire()
    lease.release()
    with pytest.raises(LeaseLost):
        fenced(lease, Seat.objects.filter(pk=seat.pk))
    assert Seat.objects.get().fence == 0


def test_the_claim_pins_the_rows(seats: list[Seat], lease: Lease) -> None:
    """What made the queryset find them may change, and what it finds later is not claimed."""
    claimed = fenced(lease, Seat.objects.filter(owner=""))
    assert claimed.update(owner="ann") == 3
    later = Seat.objects.create()
    assert claimed.update(price=F("price") * 10) == 3
    assert sorted(row.price for row in claimed) == [10, 20, 30]
    assert later.pk not in claimed.keys
    assert len(claimed) == 3
    with pytest.raises(Seat.MultipleObjectsReturned, match="3 rows were claimed"):
        claimed.get()


def test_deleting_takes_what_hangs_on_the_rows(seat: Seat, lease: Lease) -> None:
    """As Django's delete does, and tells of it."""
    Sale.objects.create(seat=seat)
    claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
    assert claimed.delete() == (2, {"fencing.Seat": 1, "fencing.Sale": 1})


def test_a_row_that_was_not_claimed_is_not_saved(seats: list[Seat], lease: Lease) -> None:
    """Nor anything else."""
    claimed = fenced(lease, Seat.objects.filter(pk=seats[0].pk))
    for other in (seats[1], Seat(), Hall.objects.create(), None):
        with pytest.raises(ValueError, match="none of the rows that were claimed"):
            claimed.save(other)  # type: ignore[arg-type]


def test_update_changes_its_own_columns_only(seat: Seat, lease: Lease) -> None:
    """Neither the key nor the fence, nor a column of another table."""
    claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
    for values in ({"pk": 5}, {"id": 5}):
        with pytest.raises(TypeError, match="does not change their key"):
            claimed.update(**values)
    with pytest.raises(TypeError, match=r"only fenced\(\) writes"):
        claimed.update(fence=5)
    with pytest.raises(TypeError, match="takes the columns to change"):
        claimed.update()
    with pytest.raises(ValueError, match="claimed in the database 'default'"):
        claimed.save(seat, using="other")
    stall = Stall.objects.create()
    of_stall = fenced(lease, Stall.objects.filter(pk=stall.pk))
    assert of_stall.update(rent=7) == 1
    with pytest.raises(TypeError, match="label is in the table of Place"):
        of_stall.update(label="b")
    row = of_stall.get()
    row.label = "b"
    of_stall.save(row)
    assert Stall.objects.values_list("label", "rent").get() == ("b", 7)


def test_rows_with_other_keys_and_fences(lease: Lease) -> None:
    """Text, two columns, a proxy, two fences."""
    Ticket.objects.create(code="x")
    fenced(lease, Ticket.objects.filter(code="x")).update(paid=True)
    assert Ticket.objects.values_list("paid", "guard").get() == (True, lease.fence)
    Square.objects.bulk_create([Square(row=1, column=column) for column in (1, 2)])
    square = fenced(lease, Square.objects.filter(pk=(1, 2)))
    assert square.keys == ((1, 2),)
    square.update(owner="ann")
    square.save(square.get())
    assert fenced(lease, Square.objects.filter(row=1)).update(owner="bob") == 2
    front = fenced(lease, FrontSeat.objects.filter(pk=Seat.objects.create().pk))
    front.save(front.get())
    front.save(Seat.objects.get())  # type: ignore[arg-type]
    Twice.objects.create()
    fenced(lease, Twice.objects.all(), "second").update(text="a")
    assert Twice.objects.values_list("first", "second").get() == (0, lease.fence)


def test_a_rollback_undoes_the_claim(seat: Seat, lease: Lease) -> None:
    """And what was written; the row accepts the holder again."""
    with transaction.atomic():
        fenced(lease, Seat.objects.filter(pk=seat.pk)).update(owner="ann")
        transaction.set_rollback(True)
    assert Seat.objects.values_list("owner", "fence").get() == ("", 0)
    fenced(lease, Seat.objects.filter(pk=seat.pk)).update(owner="ann")


@pytest.mark.django_db(transaction=True)
def test_a_task_writes_while_it_holds(seat: Seat) -> None:
    """Each async name, once."""

    async def main() -> None:
        async with redlock("seat") as lease:
            claimed = await afenced(lease, Seat.objects.filter(pk=seat.pk))
            row = await claimed.aget()
            assert await claimed.aupdate(owner="ann") == 1
            row.owner = "bob"
            await claimed.asave(row, update_fields=["owner"])
            assert [row.owner for row in await claimed.alist()] == ["bob"]
            assert await claimed.adelete() == (1, {"fencing.Seat": 1})
            with pytest.raises(Seat.DoesNotExist):
                await afenced(lease, Seat.objects.filter(pk=seat.pk))

    asyncio.run(main())


def test_how_many_statements(seat: Seat, lease: Lease) -> None:
    """One to claim a row by its key, one to read it, one to write it."""
    with CaptureQueriesContext(connection) as asked:
        claimed = fenced(lease, Seat.objects.filter(pk=seat.pk))
        claimed.get()
        claimed.update(owner="ann")
    kinds = [query["sql"].split()[0] for query in asked.captured_queries]
    assert kinds == ["UPDATE", "SELECT", "UPDATE"]


def test_the_database_may_count_changed_rows_only(
    seat: Seat, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MariaDB without FOUND_ROWS: a claim that changes nothing is looked at."""
    Seat.objects.filter(pk=seat.pk).update(fence=Token(lease.fence))
    monkeypatch.setattr(claim, "_write", lambda *_: 0)
    assert fenced(lease, Seat.objects.filter(pk=seat.pk)).keys == (seat.pk,)


# -- bad input ------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a slice": (lambda: Seat.objects.all()[:2], "a slice"),
    "distinct": (Seat.objects.distinct, r"distinct\(\)"),
    "a union": (lambda: Seat.objects.filter(pk=1).union(Seat.objects.filter(pk=2)), r"union\(\)"),
    "an aggregate": (lambda: Seat.objects.annotate(n=models.Count("pk")), "an aggregate"),
    "an aggregate of a join": (
        lambda: Seat.objects.annotate(n=models.Count("sale")).filter(n__gt=1),
        "an aggregate",
    ),
    "a join": (lambda: Seat.objects.filter(hall__city="Bern"), "a condition on another table"),
    "a reverse join": (lambda: Seat.objects.filter(sale__pk=1), "a condition on another table"),
    "an excluded join": (lambda: Seat.objects.exclude(sale__pk=1), "a subquery"),
    "keys of a queryset": (
        lambda: Seat.objects.filter(hall__in=Hall.objects.filter(city="Bern")),
        "a subquery",
    ),
    "exists": (
        lambda: Seat.objects.filter(models.Exists(Sale.objects.filter(seat=models.OuterRef("pk")))),
        "a subquery",
    ),
    "an annotated subquery": (
        lambda: Seat.objects.annotate(
            n=models.Subquery(Sale.objects.filter(seat=models.OuterRef("pk")).values("pk")[:1])
        ).filter(n=1),
        "a subquery",
    ),
    "extra": (lambda: Seat.objects.extra(tables=["fencing_hall"]), r"extra\(\)"),
    "a fence": (lambda: Seat.objects.filter(fence__lt=5), "a condition on the FenceField"),
    "a fence in an or": (
        lambda: Seat.objects.filter(models.Q(owner="") | ~models.Q(fence=F("price"))),
        "a condition on the FenceField",
    ),
    "no queryset": (Seat, "takes a queryset"),
    "a model": (lambda: Seat, "takes a queryset"),
    "no fence": (Hall.objects.all, "fencing.Hall has no FenceField: add"),
    "two fences": (Twice.objects.all, r"more than one FenceField: say field="),
    "a parent's fence": (
        BoxSeat.objects.all,
        "is in the table of Seat: claim Seat.objects",
    ),
}


@pytest.mark.parametrize(("make", "told"), BAD.values(), ids=BAD)
def test_what_cannot_be_claimed_is_refused(make: Any, told: str, lease: Lease) -> None:
    """Before anything is asked of the database, with what to do."""
    with CaptureQueriesContext(connection) as asked, pytest.raises(TypeError, match=told):
        fenced(lease, make())
    assert asked.captured_queries == []


GOOD: dict[str, Callable[[], models.QuerySet[Any]]] = {
    "a manager": lambda: Seat.objects,  # type: ignore[dict-item, return-value]
    "all": Seat.objects.all,
    "conditions": lambda: Seat.objects.filter(owner="", price__in=[0, 1]).exclude(price=7),
    "or": lambda: Seat.objects.filter(models.Q(owner="") | models.Q(price=1)),
    "columns": lambda: Seat.objects.filter(price__lte=F("price") + 1),
    "a related key": lambda: Seat.objects.filter(models.Q(hall=1) | models.Q(hall_id=None)),
    "an annotation": lambda: Seat.objects.annotate(more=F("price") + 1).filter(more=1),
    "an order": lambda: Seat.objects.order_by("hall__city"),
    "values": lambda: Seat.objects.values("owner"),
    "deferred": lambda: Seat.objects.only("owner"),
    "joined for reading": lambda: Seat.objects.select_related("hall"),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_what_can_be_claimed(make: Any, seat: Seat, lease: Lease) -> None:
    """By one UPDATE without another SELECT in it."""
    with CaptureQueriesContext(connection) as asked:
        assert fenced(lease, make()).keys == (seat.pk,)
    (update,) = [each["sql"] for each in asked.captured_queries if "UPDATE" in each["sql"]]
    assert update.count("SELECT") == 0
    assert "JOIN" not in update


def test_no_lease_and_no_such_field(seat: Seat, lease: Lease) -> None:
    """What is no lease, or no field of fences, is refused, with what is wanted."""
    for other in (None, redlock("seat"), 7):
        with pytest.raises(TypeError, match="takes a lease, as of 'with redlock"):
            fenced(other, Seat.objects.all())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Its first .* of the type QuerySet$"):
        fenced(Seat.objects.all(), lease)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no FenceField 'other'; it has \\['fence'\\]"):
        fenced(lease, Seat.objects.all(), field="other")


def test_a_holder_elsewhere_sends_its_fence(seat: Seat) -> None:
    """By a header, which is text; it is refused when a later one has claimed the row."""
    for fence in ("7", 8, "8"):
        holder = RemoteHolder("seat", fence)  # type: ignore[arg-type]
        fenced(holder, Seat.objects.filter(pk=seat.pk)).update(owner=str(fence))
    assert Seat.objects.values_list("owner", "fence").get() == ("8", 8)
    with pytest.raises(StaleFence, match="this holder's fence is 7") as caught:
        fenced(RemoteHolder("seat", 7), Seat.objects.filter(pk=seat.pk))
    assert caught.value.name == "seat"


@pytest.mark.parametrize(
    "fence",
    [-1, 2**63, 10**30, 1.5, True, None, "", "-1", "1.0", " 7", "\u0667", "x", b"7", "9" * 5000],
)
def test_a_fence_that_is_no_number_is_refused(fence: Any) -> None:
    """Whatever a client sends, before the database is asked."""
    with pytest.raises(ValueError, match="fence must be a whole number from 0"):
        RemoteHolder("seat", fence)
