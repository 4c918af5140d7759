"""The floors of the package: each module imports only from floors below its own."""

from __future__ import annotations

import ast
import functools
import importlib
import pickle
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import django_redlock
from django_redlock import LeaseLost, LockTaken, NodesUnavailable
from django_redlock.errors import Answer, Vote

PACKAGE = Path(django_redlock.__file__).parent

# From the ground up. A name is a module of the root, or a folder with all that is in it.
FLOORS = (
    "extras",
    "core",
    "interruption",
    "events",
    "nodes",
    "backend",
    "inspection",
    "leases",
    "locks",
    "transactions",
    "conf",
    "__init__",
    "errors",
    "signals",
    "otel",
    "checks",
    "health",
    "models",
    "fencing",
    "forms",
    "admin",
    "work",
    "views",
    "idempotency",
    "celery",
    "tasks",
    "testing",
    "apps",
    "management",
    "templatetags",
    "migrations",
)
PUBLIC = (
    "django_redlock:redlock",
    "django_redlock:redlocks",
    "django_redlock:LockTaken",
    "django_redlock:NodesUnavailable",
    "django_redlock:LeaseLost",
    "django_redlock:RedlockError",
    "django_redlock:current_lease",
    "django_redlock:assert_locked",
    "django_redlock:close",
    "django_redlock.admin:LockKeyAdmin",
    "django_redlock.fencing:FenceField",
    "django_redlock.fencing:FencedRows",
    "django_redlock.fencing:RemoteHolder",
    "django_redlock.fencing:StaleFence",
    "django_redlock.fencing:afenced",
    "django_redlock.fencing:fenced",
    "django_redlock.celery:LockedTask",
    "django_redlock.celery:Skipped",
    "django_redlock.celery:locked_task",
    "django_redlock.conf:backend",
    "django_redlock.errors:Answer",
    "django_redlock.errors:LockTaken",
    "django_redlock.errors:RedlockError",
    "django_redlock.errors:Vote",
    "django_redlock.events:subscribe",
    "django_redlock.health:RedlockNodes",
    "django_redlock.idempotency:IdempotentWork",
    "django_redlock.idempotency:NotReplayable",
    "django_redlock.idempotency:idempotent",
    "django_redlock.idempotency:idempotent_work",
    "django_redlock.inspection:LockState",
    "django_redlock.inspection:survey",
    "django_redlock.leases:Lease",
    "django_redlock.locks:Lock",
    "django_redlock.locks:LockTemplate",
    "django_redlock.models:LockKey",
    "django_redlock.otel:instrument",
    "django_redlock.signals:lease_lost",
    *(
        f"django_redlock.tasks:{each}"
        for each in ("Deferred", "UniqueBackend", "locked_task", "unmark")
        if find_spec("django.tasks")  # Django 6
    ),
    "django_redlock.testing:EmbeddedNode",
    "django_redlock.testing:EmbeddedNodes",
    "django_redlock.testing:LeavesNoLocks",
    "django_redlock.testing:assert_free",
    "django_redlock.testing:assert_taken",
    "django_redlock.testing:stale",
    "django_redlock.testing:taken",
    "django_redlock.testing:unavailable",
    "django_redlock.testing.plugin:redlock_leaves_nothing",
    "django_redlock.testing.plugin:redlock_nodes",
    "django_redlock.views:IgnoreRefusals",
    "django_redlock.views:LockedRequest",
    "django_redlock.views:RedlockMiddleware",
    "django_redlock.views:Refusal",
    "django_redlock.views:client",
    "django_redlock.views:refusal_of",
    "django_redlock.views:single_flight",
    "django_redlock.views.ninja:non_atomic",
    "django_redlock.views.rest_framework:exception_handler",
    "django_redlock.views.rest_framework:single_flight",
)
# The package's own names are looked up when they are used.
LAZY = {("__init__", "conf")}


def modules() -> dict[str, Path]:
    """Every module by its dotted name inside the package; a folder by the name of the folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(name)] = path
    return found


MODULES = modules()


def imported(source: str, inside: str, *, folder: bool) -> Iterator[str]:
    """The package's modules that this source imports, wherever in it, for types only as well."""
    here = ["django_redlock", *inside.split(".")]
    package = here if folder else here[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            full = ".".join(filter(None, [base, node.module or ""]))
            yield from filter(None, (known(full, each.name) for each in node.names))
        elif isinstance(node, ast.Import):
            yield from filter(None, (known(each.name) for each in node.names))


def known(module: str, name: str = "") -> str:
    """The module of the package that is meant, or ""; the longest name that is one."""
    if module.split(".", maxsplit=1)[0] != "django_redlock":
        return ""
    inside = ".".join(module.split(".")[1:])
    for each in (f"{inside}.{name}".strip("."), inside):
        if each in MODULES:
            return each
    return "__init__" if not inside else ""


def floor(name: str) -> int:
    """Which floor a module is on."""
    return FLOORS.index(name.split(".", maxsplit=1)[0])


@functools.cache  # each process that collects tests would parse the whole package
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    return {
        name: set(
            imported(path.read_text(encoding="utf-8"), name, folder=path.name == "__init__.py")
        )
        - {name}
        for name, path in MODULES.items()
    }


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_on_a_floor(name):
    """The author of a folder says where it stands."""
    assert name.split(".")[0] in FLOORS


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name):
    """From its own folder, or from a floor below."""
    upwards = {
        each for each in graph()[name] if floor(each) > floor(name) and (name, each) not in LAZY
    }
    assert upwards == set()


@pytest.mark.parametrize("path", PUBLIC)
def test_public_names_stay_where_they_are(path):
    """Whatever moves inside the house."""
    module, _, name = path.partition(":")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("kind", [LeaseLost, LockTaken, NodesUnavailable])
def test_stored_errors_can_be_read(kind):
    """Celery stores an error's module and name, and its pickle."""
    assert kind.__module__ == "django_redlock.errors"
    error = kind("why", name="name", votes=(Vote("a", Answer.UNKNOWN),))
    read = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(read), str(read), read.votes) == (kind, str(error), error.votes)


def test_there_is_no_circle():
    """Neither between modules nor, inside a folder, between its folders."""
    steps = {
        name: {each for each in found if (name, each) not in LAZY}
        for name, found in graph().items()
    }
    TopologicalSorter(steps).prepare()


def test_the_drawing_shows_the_floors():
    """The page "Architecture" draws the floors in the order of the list, the highest at the top."""
    page = (PACKAGE.parent / "docs/dev/architecture.md").read_text()
    drawn = re.findall(r"^│ (.*?) *│", page, re.MULTILINE)
    heights = [
        sorted(FLOORS.index(name.strip("/")) for name in row.split()) for row in reversed(drawn)
    ]
    assert len(heights) >= 8
    assert all(low[-1] < high[0] for low, high in pairwise(heights))


def test_the_page_names_the_file_for_each_question():
    """What the table of the page "Architecture" sends a reader to is there."""
    page = (PACKAGE.parent / "docs/dev/architecture.md").read_text()
    table = page[page.index("| You look for |") : page.index("## The way of one lock")]
    looked_for = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:]
    assert len(looked_for) >= 18
    for question, answer in looked_for:
        files = re.findall(r"`([\w/.]+)`(?: \(([^)]+)\))?", answer)
        assert any("/" in file or file.endswith(".py") for file, _ in files), question
        for file, names in files:
            room = PACKAGE / file
            assert room.exists(), (question, file)
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"\b{name}\b", room.read_text()), (question, file, name)
