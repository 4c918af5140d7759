"""What ``django_redlock.tasks`` needs: Django 6, and no Celery; and what is said without it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from django_redlock import tasks

ALONE = """
import sys
class Missing:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] == "celery":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing)
from django.conf import settings
settings.configure(TASKS={"default": {
    "BACKEND": "django_redlock.tasks.UniqueBackend",
    "OPTIONS": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
}})
from django.tasks import task_backends
from django_redlock.tasks import UniqueBackend, checks, locked_task
assert isinstance(task_backends["default"], UniqueBackend)
assert [each for each in sys.modules if each.startswith("django_redlock.celery")] == []
"""
DISCOVERED = """
from celery.loaders.base import find_related_module
import sys
find_related_module("django_redlock", "tasks")
assert "django_redlock.tasks" in sys.modules
assert [each for each in sys.modules if each.startswith("django.tasks")] == []
"""


def test_without_django_6_its_names_say_what_is_needed(monkeypatch):
    """And the module can be imported: Celery looks for a module of this name in each app."""
    monkeypatch.setattr(tasks, "find_spec", lambda _: None)
    for name in tasks.__all__:
        with pytest.raises(ModuleNotFoundError, match=r"needs django\.tasks: upgrade to Django 6"):
            getattr(tasks, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tasks.nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            ALONE,
            marks=pytest.mark.skipif(not find_spec("django.tasks"), reason="Django 6 has tasks"),
        ),
        DISCOVERED,
    ],
    ids=["without Celery", "discovered by Celery"],
)
def test_what_is_imported(program):
    """Without Celery all of it works; Celery's autodiscovery imports nothing of it."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
