"""What ``import django_redlock`` imports besides Django and redis-py: next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Prints what this module has brought besides what a project with Django and redis-py has anyway,
# and what is part of the interpreter, as ``gc``.
BROUGHT = """
import importlib, json, sys
import django.db.models, redis
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - before - set(sys.builtin_module_names))))
"""
# Parts that a project imports when it uses them.
LATER = {
    *("admin", "celery", "checks", "conf", "inspection", "management", "otel", "signals"),
    *("fanout", "testing", "transport", "views"),
}


def brought(module: str) -> list[str]:
    """The modules that importing this one adds."""
    command = [sys.executable, "-c", BROUGHT, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_importing_the_package_brings_only_what_describes_locks():
    """No nodes, no settings, and nothing of the parts for views, tasks, admin and tests."""
    found = brought("django_redlock")
    assert "django_redlock.locks.lock" in found
    assert [each for each in found if each.split(".")[0] != "django_redlock"] == []
    assert [each for each in found if each.split(".")[1:2] and each.split(".")[1] in LATER] == []


@pytest.mark.slow
def test_the_first_use_brings_nothing_heavy():
    """Settings and nodes need no other library, and nothing of asyncio that redis-py has not."""
    kinds = {each.split(".")[0] for each in brought("django_redlock.conf")}
    assert kinds <= {"django_redlock", "django", "importlib"}


@pytest.mark.slow
def test_other_parts_are_noticed():
    """The checks above can fail."""
    assert any("inspection" in each for each in brought("django_redlock.inspection"))
    assert any(each.split(".")[0] == "celery" for each in brought("django_redlock.celery"))


# As on Windows.
WITHOUT_POLL = """
import select
del select.poll
from django.conf import settings
settings.configure(REDLOCK={"default": {"NODES": ["redis://127.0.0.1:1"]}})
from django_redlock import redlock
redlock("name").acquire()
"""


@pytest.mark.slow
def test_a_system_without_poll_is_told():
    """The error of the first lock says what to do there."""
    command = [sys.executable, "-c", WITHOUT_POLL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip().rpartition("\n")[2] == (
        "RuntimeError: django-redlock waits for sockets by select.poll, which Windows lacks: use "
        "WSL there"
    )
