"""The page "API" has every public name, and nothing that is not there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from django_redlock.inspection import Report
from django_redlock.leases import Lease
from django_redlock.locks import Lock, LockTemplate
from tests.docs.pages import ROOT
from tests.test_layers import PUBLIC

PAGES = ("api", "signals", "metrics")
TEXT = "\n".join((ROOT / f"docs/reference/{name}.md").read_text() for name in PAGES)
# The modules whose ``__all__`` is for users.
MODULES = (
    *("django_redlock", "django_redlock.errors", "django_redlock.views", "django_redlock.celery"),
    *("django_redlock.views.rest_framework", "django_redlock.idempotency", "django_redlock.tasks"),
    *("django_redlock.inspection", "django_redlock.management", "django_redlock.testing"),
    *("django_redlock.leases", "django_redlock.locks"),
)
# Methods that other parts of the package call.
INTERNAL = {
    Lock: {"ahold", "checked", "durable", "filled", "hold", "left", "of_calls", "transaction"},
    Lease: {
        *("denied", "disown", "end", "ended", "ending", "expire", "hear_renewal", "held"),
        *("lose", "loss", "phase", "recording", "renew_at", "run_out", "take_extension"),
        *("take_renewal", "tell", "tell_lost", "tell_once", "told", "torn", "touch", "untold"),
        *("locked", "owned"),  # they say what to write in their place
    },
    LockTemplate: {"options"},
    Report: {"advice", "heard", "summary"},
}


def documented() -> set[str]:
    """The names of directives of the pages."""
    return set(re.findall(r"^\.\. (?:auto|py:)\w+:: (django_redlock[\w.]*)", TEXT, re.MULTILINE))


def members(cls: type) -> set[str]:
    """The members that the page shows of a class."""
    (found,) = re.findall(
        rf"^\.\. autoclass:: \S+\.{cls.__name__}(?:\(\))?\n   :members: (.+)$", TEXT, re.MULTILINE
    )
    return set(found.split(", "))


def public() -> set[str]:
    """The names that users import."""
    found = {path.replace(":", ".") for path in PUBLIC}
    for module in MODULES:
        found |= {f"{module}.{each}" for each in importlib.import_module(module).__all__}
    return found


def place(path: str) -> Any:
    """What a name means; the name itself where its package is missing."""
    module, _, name = path.rpartition(".")
    while module:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError:
            return path
        except AttributeError:
            return path
    return path


def test_every_public_name_is_documented():
    """By one of the names by which it can be imported."""
    shown = documented()
    things = [place(each) for each in shown]
    data = {each for each in shown if each.startswith("django_redlock.signals.")}
    missing = [
        name
        for name in public() - shown - data
        if not any(place(name) is each for each in things)
        and f"`{name.rpartition('.')[2]}`" not in TEXT
        and not name.startswith(("django_redlock.signals.", "django_redlock.tasks."))
    ]
    assert missing == []
    for name in importlib.import_module("django_redlock.tasks").__all__:
        assert re.search(rf"\b{name}\b", TEXT), name


def test_every_name_of_the_page_is_there():
    """Autodoc would fail the build; names that are written by hand would not."""
    for name in documented():
        if not name.startswith(("django_redlock.tasks.", "django_redlock.views.ninja.")):
            assert place(name) is not name, name


@pytest.mark.parametrize("cls", INTERNAL, ids=lambda each: each.__name__)
def test_every_method_is_documented(cls):
    """Those of the a-family, too; what only the package calls is listed here."""
    own = {
        name
        for name, each in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(each) or isinstance(each, property | classmethod))
    }
    aside = INTERNAL[cls] | ({"alias"} if cls in {Lock, LockTemplate} else set())
    assert own - aside == members(cls)


def described() -> Iterator[tuple[str, Any]]:
    """The functions, and the listed members of classes, of the pages, each with its name."""
    for path in sorted(documented()):
        thing = place(path)
        if inspect.isclass(thing):
            directive = rf"^\.\. autoclass:: {re.escape(path)}(?:\(\))?\n   :members: (.+)$"
            shown = re.search(directive, TEXT, re.MULTILINE)
            for name in shown[1].split(", ") if shown else ():
                yield f"{path}.{name}", inspect.getattr_static(thing, name, None)
        elif callable(thing):
            yield path, thing


def test_no_description_is_shown_as_a_type():
    """Of a property, and of what is returned: what stands before a colon is taken for one."""
    wrong = []
    for name, thing in described():
        text = inspect.getdoc(thing) or ""
        first = text.partition("\n")[0] if isinstance(thing, property) else ""
        found = re.search(r"^Returns:\n\s+(.+)$", text, re.MULTILINE)
        lines = [re.sub(r"``.*?``", "", line) for line in (first, found[1] if found else "")]
        if any(":" in line for line in lines):
            wrong.append(name)
    assert len(list(described())) > 50
    assert wrong == []
