"""Names and holders are text wherever people read them, whatever they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
from django.utils.html import escape
from django.utils.safestring import mark_safe

from django_redlock.core.reasons import printable
from django_redlock.nodes.memory import MemoryNodes
from tests.support.hostile import HOSTILE
from tests.support.looked_at import A, put, status, stop_clocks

from .test_admin import browser, harmless, look
from .test_admin import rows as rows_of_the_page
from .test_template_tag import render

Place: TypeAlias = Callable[..., None]

pytestmark = pytest.mark.django_db
LABEL = 100  # characters of the name that are the holder's, too
INVISIBLE = "a\tb", "web\x1b[2J\r\nfake"  # none can be locked, but another program may write them


@pytest.fixture
def locked(memory: MemoryNodes) -> Place:
    """Lock one name, by a holder of the same name or another."""
    stop_clocks(memory)

    def lock(name: str, holder: str = "") -> None:
        for node in memory.nodes:
            node.held.clear()
        put(memory, name, f"{A}:5:{(holder or name)[:LABEL]}", *range(5))

    return lock


def in_the_list(locked: Place, text: str) -> None:
    """The admin's page has the elements that it has for a harmless name."""
    viewer = browser("view_lock")
    locked("harmless")
    elements = harmless(look(viewer))
    locked(text)
    page = look(viewer)
    assert harmless(page) == elements
    if text not in INVISIBLE:
        holder, _, held_for = rows_of_the_page(page)[printable(text)][2].rpartition("\n")
        assert (holder, held_for[:4]) == (printable(text[:LABEL]), "for ")


def in_the_report(locked: Place, text: str) -> None:
    """The command prints each in one line, escapes what is invisible, and cuts nothing off."""
    locked(text)
    out = status()[1]
    assert not {"\u202e", "\x1b", "\t", "\r"} & set(out)
    (row,) = [line for line in out.splitlines() if " 5 of 5 " in line]
    assert row.startswith(printable(text))
    assert printable(text[:LABEL]) in row.removeprefix(printable(text))
    if text not in INVISIBLE:  # it can be asked for
        assert status(text)[1].count("held") == 2  # once as the head of a column


def in_json(locked: Place, text: str) -> None:
    """The command's JSON has the name as it is."""
    locked(text)
    (lock,) = json.loads(status("--json")[1])["aliases"]["default"]["locks"]
    assert lock["name"] == text


def in_a_template(locked: Place, text: str) -> None:
    """The tag's holder is escaped, also where the name was marked safe."""
    locked("x", text)
    page = render("{% redlock_state name as x %}{{ x.holder }}", name=mark_safe("x"))
    assert page == escape(printable(text[:LABEL]))
    assert A[:12] not in render("{% redlock_state 'x' as x %}{{ x }}")


OFTEN = HOSTILE[1], INVISIBLE[1]  # the others at night
TEXTS = [
    pytest.param(text, marks=() if text in OFTEN else pytest.mark.nightly)
    for text in (*HOSTILE, *INVISIBLE)
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("place", [in_the_list, in_the_report, in_json, in_a_template])
def test_names_and_holders_are_text(locked, place, text):
    """No markup, no turned writing, nothing that moves the cursor, nothing cut off."""
    place(locked, text)
