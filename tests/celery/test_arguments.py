"""The key of a call: equal calls, and no others, have one."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from django_redlock.celery import locked_task
from django_redlock.work.arguments import canonical, digest

from .desk import (
    held_name,
)

# Neither a stall in an example nor a slow machine says anything about keys.
patiently = hypothesis(deadline=None, suppress_health_check=[HealthCheck.too_slow])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_float_is_what_a_queue_in_a_database_gives_back():
    """A column of jsonb writes 1e16 out, and then it is an integer."""
    assert canonical([1e16]) == canonical([10**16])
    assert canonical([1.0]) != canonical([1])


@pytest.mark.slow
@patiently
@given(PLAIN, PLAIN)
def test_two_values_have_one_canonical_form_exactly_if_they_are_one_value(first, second):
    """The canonical form tells apart what JSON tells apart, and nothing else."""
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (canonical(first) == canonical(second)) is same
    assert canonical(json.loads(json.dumps(first))) == canonical(first)


@dataclass
class Order:
    """An argument of a task that pickles."""

    number: object


@pytest.mark.parametrize(
    "values",
    [
        [1, "1", 1.0, True, "True", b"1", None, "None", decimal.Decimal(1), [1], {1}, {1: 1}],
        ["", [], {}, set(), b"", 0, 0.0, -0.0, False, [[]], [""], {"": ""}],
        [["a", "b"], ["a,b"], ['a","b'], [["a"], "b"], {"a": "b"}, {"a", "b"}],
        [dt.date(2026, 3, 1), dt.datetime(2026, 3, 1, tzinfo=dt.UTC)],
        [Order(1), Order("1"), {"number": 1}, PurePosixPath("a"), "a", uuid.UUID(int=1)],
    ],
)
def test_values_of_different_types_differ(values):
    """1 and "1", and whatever else is written alike, are different arguments."""
    forms = [canonical(value) for value in values]
    assert len(set(forms)) == len(forms)


def test_what_is_not_plain_data_is_refused_without_being_shown():
    """An object's text may hold its address, so no key is made of it; nor is it quoted."""

    class Secretive:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(TypeError, match=r"no key can be made of a .*Secretive: name the") as error:
        digest({"argument": Secretive()})
    assert "hunter2" not in str(error.value)


def test_arguments_that_contain_themselves_are_refused():
    """Arguments without a bottom are a TypeError that says what to do, and no RecursionError."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match=r"contain themselves: name those that matter"):
        digest({"argument": endless})


def test_one_call_has_one_key_however_it_is_written(desk):
    """Positional is keyword, defaults are applied, lists are tuples; ids differ."""

    def build(report, size=3, *rest, flag=False, **more):
        return held_name()

    task = desk.task(locked_task(build))

    def name(*args, **kwargs):
        return task.apply(args, kwargs).get()

    assert name(1) == name(report=1) == name(1, 3) == name(1, size=3, flag=False)
    assert name(1, more=[1, 2], also={}) == name(also={}, more=(1, 2), report=1)
    assert name(1, 2, 3) != name(1, 2, 4)
    different = [name(1), name("1"), name(1, 4), name(1, flag=True), name([1]), name(1, x=1)]
    assert len(set(different)) == len(different)


def test_a_default_key_shows_no_argument(desk):
    """Arguments are digested, so neither a key nor a status page shows a password."""

    def login(user, password):
        return held_name()

    name = desk.task(locked_task(login)).apply(("ada",), {"password": "hunter2"}).get()
    assert name == f"task:desk.login:{digest({'user': 'ada', 'password': 'hunter2'})}"
