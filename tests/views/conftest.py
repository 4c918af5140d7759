"""For all tests of views: nodes in memory. For some: databases under ATOMIC_REQUESTS."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import modify_settings, override_settings
from rest_framework.settings import api_settings

from django_redlock import conf
from django_redlock.nodes.memory import MemoryNodes

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def memory(django_db_setup: None, django_db_blocker: Any) -> Iterator[MemoryNodes]:
    """Five fresh nodes in memory; and the end of a request looks at the databases of the tests."""
    nodes = [f"memory://views-{next(NUMBERS)}" for _ in range(5)]
    with django_db_blocker.unblock(), override_settings(REDLOCK={"default": {"NODES": nodes}}):
        group = conf.backend("default").group
        assert isinstance(group, MemoryNodes)
        yield group


@contextmanager
def database(alias: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    """One more database, an SQLite file with a table, under ATOMIC_REQUESTS."""
    setting = connections.settings["default"] | {
        "NAME": home / f"{alias}.sqlite3",
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL", "timeout": 20},
    }
    monkeypatch.setitem(connections.settings, alias, setting)
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE orders (cart TEXT)")
        yield
    finally:
        connections[alias].close()
        del connections[alias]


@pytest.fixture
def orders(memory: MemoryNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A database under ATOMIC_REQUESTS."""
    with database("orders", monkeypatch, tmp_path):
        yield


@pytest.fixture
def bills(orders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A second one."""
    with database("bills", monkeypatch, tmp_path):
        yield


@pytest.fixture
def handled() -> Iterator[None]:
    """The settings of REST framework with our handler; it reads them once."""
    handler = "django_redlock.views.rest_framework.exception_handler"
    with (
        modify_settings(INSTALLED_APPS={"append": "rest_framework"}),
        override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": handler}),
    ):
        api_settings.reload()
        yield
    api_settings.reload()
