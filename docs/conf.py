"""How Sphinx builds these pages (make docs)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# autodoc imports the package, and parts of it need a configured Django.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

project = "django-redlock"
author = "django-redlock contributors"
copyright = f"2026, {author}"
release = version = installed_version(project)

# No intersphinx: the build needs no network.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "explanation/museum-table.md",  # this one and the next two are included
    "explanation/performance-figures.md",
    "explanation/what-was-run-record.md",
]
html_theme = "furo"
html_title = f"{project} {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist"]
# Links to a heading of another page are checked down to this level.
myst_heading_anchors = 3

# -- llms.txt: what a language model should know of these pages; see https://llmstxt.org

SITE = "https://django-redlock.readthedocs.io/en/latest"
# What each page is good for, in one sentence. A page without one fails the build.
PAGES = {
    "Begin": {
        "index": "What the package does, a first example, and which page answers which question.",
        "install": "Install the package, write the setting REDLOCK, and take a first lock.",
        "tutorial": "Five nodes on one machine, a lock, a stale write that is refused, two dead nodes.",
    },
    "How to": {
        "how-to/locks": "Take a lock by with, async with, a decorator or try_acquire; templates of names.",
        "how-to/waiting": "Wait in a fair queue, whose waiters a release wakes in order of arrival.",
        "how-to/errors": "What to do about LockTaken, NodesUnavailable and LeaseLost.",
        "how-to/long-jobs": "Hold a lock for hours: renewal, ensure(), max_hold, and who is told of a loss.",
        "how-to/transactions": "Put a database transaction into the lock, so that it commits before the release.",
        "how-to/fencing": "Let a database row refuse the write of a holder that was paused for too long.",
        "how-to/asyncio": "Use the same locks in coroutines and tasks, without blocking the event loop.",
        "how-to/views": "Run one of several equal requests to a view by @single_flight, and refuse the others.",
        "how-to/api-frameworks": "The same for views of Django REST framework and django-ninja.",
        "how-to/idempotency": "A client that sends a request again gets the first answer.",
        "how-to/celery": "Run a Celery task once at a time for each key, and queue no duplicate messages.",
        "how-to/celery-in-production": "Killed workers, visibility timeout, time limits, beat, what to watch.",
        "how-to/tasks": "Run one of Django's own tasks once at a time for each key, and enqueue no duplicates.",
        "how-to/one-server": "Run a cron job or management command on one server at a time by redlock_run.",
        "how-to/recipes": "Short recipes for usual cases, each run by the tests.",
        "how-to/testing": "Test a project with nodes in memory or real embedded ones, and simulate outages.",
        "how-to/nodes": "Set up five independent nodes with Docker Compose, systemd or Kubernetes.",
        "how-to/deployment": "Check the settings and the nodes before a deployment: check and redlock_check.",
        "how-to/servers": "What to set for gunicorn, uvicorn, uWSGI, Celery's pools, RQ and forks.",
        "how-to/operate": "Restart or replace a node, change settings on a running system, free a stuck lock.",
        "how-to/status": "See what is held: redlock_status, health checks, Prometheus, JSON.",
        "how-to/admin": "See all locks in Django's admin, take one away, and show a lock in a template.",
        "how-to/troubleshooting": "Find an error or a line of the log by its text, with cause and remedy.",
        "how-to/migrate": "Move from django-redis, redis-py, pottery and other locks, line by line.",
        "how-to/other-clients": "Share a lock with other Redlock clients, also of other languages.",
        "how-to/which-lock": "When to use a database lock, and when this one.",
    },
    "Explanation": {
        "explanation/redlock": "The Redlock algorithm, the critique of it, and what fencing tokens change.",
        "explanation/how-it-works": "The mechanism: what nodes are asked, what replies are worth, why it is right.",
        "explanation/promises": "Each promise of the package with the test that shows it, and what it does not promise.",
        "explanation/what-was-run": "What make nightly plays, how often, and how each run ended; how to repeat one.",
        "explanation/design": "Why things are as they are: decisions with their reasons and prices.",
        "explanation/architecture": "The floors of the code, where to find what, and the way of one lock.",
        "explanation/performance": "What a lock costs, measured beside bare sockets and other clients.",
        "explanation/museum": "Locks that people copy, each broken by a fault, with a table and pictures.",
    },
    "Reference": {
        "reference/api": "Every public class and function, with arguments, units and errors.",
        "reference/settings": "Every key of REDLOCK with type, unit and default, and how to configure the nodes.",
        "reference/signals": "Django signals about locks and messages of tasks, with their arguments.",
        "reference/metrics": "OpenTelemetry metrics and spans, the fields of the log, figures of nodes.",
        "reference/reasons": "The codes that say why a vote or a lock is missing, with their sentences.",
        "reference/versions": "Which versions of Python, Django, redis-py, Celery and servers work together.",
        "reference/celery-failures": "What becomes of messages and keys when workers, brokers or nodes die.",
        "reference/mutants": "Broken variants of the algorithm, and how the simulation catches each.",
        "reference/glossary": "The 26 terms of the project, each in one sense.",
    },
}


def llms_txt(titles: Mapping[str, str]) -> str:
    """Return the text that lists each page with its title, its address and what it is good for.

    Args:
        titles: of all pages, by name without suffix.

    Raises:
        ValueError: a page has no sentence, or a sentence no page.
    """
    listed = {page for pages in PAGES.values() for page in pages}
    if listed ^ titles.keys():
        raise ValueError(f"llms.txt and the pages differ in {sorted(listed ^ titles.keys())}")
    lines = [f"# {project}", "", "> Locks for Django that hold across processes and machines."]
    for part, pages in PAGES.items():
        lines += ["", f"## {part}", ""]
        lines += [f"- [{titles[page]}]({SITE}/{page}.html): {pages[page]}" for page in pages]
    return "\n".join(lines) + "\n"


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Write the list beside the pages."""
    if not error and app.builder.name == "html":
        titles = {page: title.astext() for page, title in app.env.titles.items()}
        Path(app.outdir, "llms.txt").write_text(llms_txt(titles), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", write_llms_txt)
