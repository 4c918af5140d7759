"""A FenceField is written by ``fenced`` alone, whatever else writes the row."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django import forms
from django.contrib.admin import ModelAdmin, site
from django.core import serializers
from django.core.management import call_command
from django.db import models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import MigrationWriter
from django.db.models import F, Value
from django.test import RequestFactory, override_settings
from django.test.utils import isolate_apps

from django_redlock.fencing import FenceField, field
from django_redlock.fencing.field import Token
from tests.support.addresses import explained

from .models import BoxSeat, FrontSeat, Seat, Square, Stall, Ticket, Twice

pytestmark = pytest.mark.django_db


def fence_of(seat: models.Model) -> int:
    """What the row has."""
    (fence,) = type(seat)._base_manager.filter(pk=seat.pk).values_list("fence", flat=True)
    return int(fence)


@pytest.fixture
def seat() -> Seat:
    """A row that a holder with fence 7 has claimed."""
    seat = Seat.objects.create(owner="ann")
    assert (seat.fence, fence_of(seat)) == (0, 0)
    assert Seat.objects.filter(pk=seat.pk).update(fence=Token(7)) == 1
    return seat


def _saved(seat: Seat) -> None:
    seat.save()


def _saved_after_a_change(seat: Seat) -> None:
    seat.fence = 3
    seat.save()


def _saved_by_name(seat: Seat) -> None:
    seat.fence = 3
    seat.save(update_fields=["fence", "owner"])


def _updated_or_created(seat: Seat) -> None:
    Seat.objects.update_or_create(pk=seat.pk, defaults={"owner": "bob", "fence": 3})


def _updated_in_bulk(seat: Seat) -> None:
    Seat.objects.bulk_update([seat], ["owner"])


def _updated_with_itself(seat: Seat) -> None:
    Seat.objects.update(fence=F("fence"), owner="bob")


def _saved_by_the_admin(seat: Seat) -> None:
    admin: ModelAdmin[Seat] = ModelAdmin(Seat, site)
    request = RequestFactory().post("/", {"owner": "bob", "price": 1, "fence": 3})
    form = admin.get_form(request, seat)(request.POST, instance=seat)
    assert "fence" not in form.fields
    admin.save_model(request, form.save(commit=False), form, change=True)


def _saved_by_a_form(seat: Seat) -> None:
    form = forms.modelform_factory(Seat, fields=["owner"])({"owner": "bob"}, instance=seat)
    form.save()


def _upserted(seat: Seat) -> None:
    Seat.objects.bulk_create(
        [Seat(pk=seat.pk, owner="bob")],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["owner"],
    )


ORDINARY = [
    _saved,
    _saved_after_a_change,
    _saved_by_name,
    _updated_or_created,
    _updated_in_bulk,
    _updated_with_itself,
    _saved_by_the_admin,
    _saved_by_a_form,
    _upserted,
]


@pytest.mark.parametrize("write", ORDINARY)
def test_what_ordinary_code_writes_leaves_the_fence(seat: Seat, write: Any) -> None:
    """It was read before the claim, and has 0."""
    write(seat)
    assert fence_of(seat) == 7


def test_a_field_that_is_saved_like_others_is_found(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail."""

    def plain(self: FenceField, instance: models.Model, add: bool) -> Any:
        return Token(getattr(instance, self.attname))

    monkeypatch.setattr(FenceField, "pre_save", plain)
    _saved(seat)
    assert fence_of(seat) == 0


REFUSED = {
    "update": lambda _: Seat.objects.update(fence=3),
    "update of an expression": lambda _: Seat.objects.update(fence=F("fence") + 1),
    "update with a value": lambda _: Seat.objects.update(fence=Value(3)),
    "update of another column": lambda _: Seat.objects.update(fence=F("price")),
    "bulk_update": lambda seat: Seat.objects.bulk_update([seat], ["fence"]),
    "bulk_create that updates": lambda seat: Seat.objects.bulk_create(
        [Seat(pk=seat.pk)], update_conflicts=True, unique_fields=["id"], update_fields=["fence"]
    ),
}


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED)
def test_who_writes_the_fence_is_refused(seat: Seat, write: Any) -> None:
    """With the field's name, and what to do."""
    told = r"only fenced\(\) writes fencing.Seat.fence: leave it out"
    with pytest.raises(TypeError, match=told), transaction.atomic():
        write(seat)
    assert fence_of(seat) == 7


def test_a_copy_of_a_row_begins_at_0(seat: Seat) -> None:
    """It is a new row, which nobody has claimed."""
    seat.refresh_from_db()
    seat.pk, seat._state.adding = None, True
    seat.save()
    assert (seat.fence, fence_of(seat)) == (0, 0)
    (made,) = Seat.objects.bulk_create([Seat(owner="cy", fence=5)])
    assert fence_of(made) == 0


def test_a_row_that_was_deleted_meanwhile_begins_at_0(seat: Seat) -> None:
    """``save()`` inserts what it cannot update."""
    seat.refresh_from_db()
    Seat.objects.all().delete()
    seat.save()
    assert fence_of(seat) == 0


@pytest.mark.parametrize("model", [Seat, FrontSeat])
def test_a_fixture_sets_what_it_has(seat: Seat, model: type[Seat], tmp_path: Any) -> None:
    """As for every field: it replaces the row."""
    text = serializers.serialize("json", model._base_manager.all())
    (row,) = json.loads(text)
    assert row["fields"]["fence"] == 7
    row["fields"]["fence"] = 5
    (tmp_path / "seats.json").write_text(json.dumps([row]))
    call_command("loaddata", str(tmp_path / "seats.json"), verbosity=0)
    assert fence_of(seat) == 5
    Seat.objects.all().delete()
    call_command("loaddata", str(tmp_path / "seats.json"), verbosity=0)
    assert fence_of(seat) == 5


def test_a_child_with_a_table_of_its_own_leaves_its_parents_fence(seat: Seat) -> None:
    """As an instance that was read earlier."""
    box = BoxSeat.objects.create(view="good")
    Seat.objects.filter(pk=box.pk).update(fence=Token(9))
    box.save()
    assert fence_of(Seat(pk=box.pk)) == 9
    stall = Stall.objects.create(label="a")
    Stall.objects.filter(pk=stall.pk).update(fence=Token(9))
    stall.save()
    assert fence_of(stall) == 9


def test_fences_by_other_names_and_keys() -> None:
    """Of an abstract parent, of a named column, of a row with two key columns."""
    ticket = Ticket.objects.create(code="x", guard=4)
    Ticket.objects.update(guard=Token(9))
    ticket.save()
    Twice.objects.create().save()
    square = Square.objects.create(row=1, column=2)
    square.save()
    assert Ticket.objects.get().guard == 9
    assert fence_of(square) == 0


# -- the declaration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"null": True}, "takes no null="),
        ({"unique": True}, "takes no unique="),
        ({"primary_key": True}, "takes no primary_key="),
        ({"choices": [(1, "one")]}, "takes no choices="),
        ({"db_default": 5}, "db_default= of a FenceField is 0"),
        ({"db_default": Value(0)}, "db_default= of a FenceField is 0"),
        ({"default": 5}, "default= of a FenceField is 0"),
        ({"editable": True}, "editable= of a FenceField is False"),
    ],
)
def test_arguments_that_protect_nothing_are_refused(arguments: Any, told: str) -> None:
    """With what to do."""
    with pytest.raises(TypeError, match=told):
        FenceField(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"default": 0, "db_default": 0, "editable": False}])
def test_a_migration_stores_the_public_name(arguments: Any) -> None:
    """And nothing that is the same for each."""
    made = FenceField(db_index=True, **arguments)
    made.set_attributes_from_name("fence")
    _, path, args, kwargs = made.deconstruct()
    assert (path, args, kwargs) == ("django_redlock.fencing.FenceField", [], {"db_index": True})
    text, imports = MigrationWriter.serialize(made)
    assert text == "django_redlock.fencing.FenceField(db_index=True)"
    assert imports == {"import django_redlock.fencing"}


def test_two_fences_are_told_by_a_check() -> None:
    """Once, at the first."""
    found = [*Twice.check(), *Seat.check()]
    assert [(each.id, each.obj) for each in found] == [(field.W010, Twice._meta.get_field("first"))]
    assert "first, second" in found[0].msg
    assert explained(found[0].hint)
    out = StringIO()
    with override_settings(SILENCED_SYSTEM_CHECKS=[]):
        call_command("check", "fencing", stderr=out)
    assert field.W010 in out.getvalue()


def test_models_of_migrations_are_not_watched() -> None:
    """They are made anew for each state; a signal would keep them."""
    before = len(models.signals.pre_save.receivers)
    state = ProjectState()
    state.add_model(ModelState("old", "Old", [("fence", FenceField(primary_key=False))]))
    assert state.apps.get_model("old", "Old")
    assert len(models.signals.pre_save.receivers) == before


@isolate_apps("tests.fencing")
def test_a_second_fence_beside_that_of_a_parent_is_told():
    """The parent's own check knows no child."""

    class Cellar(Stall):
        own = FenceField()

        class Meta:
            app_label = "tests_fencing"

    found = [each for each in Cellar.check() if each.id == field.W010]
    assert [each.obj.name for each in found] == ["own"]
