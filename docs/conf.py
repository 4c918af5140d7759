"""How Sphinx builds these pages (make docs)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# autodoc imports the package, and parts of it need a configured Django.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from dev.tools import reference  # noqa: E402 - it needs both

project = "django-redlock"
author = "django-redlock contributors"
copyright = f"2026, {author}"
release = version = installed_version(project)

# No intersphinx: the build needs no network.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_reredirects",
]
exclude_patterns = [
    "_build",
    "dev/*.md",  # for who works on the package: in the repository only
    "explanation/museum-table.md",  # this one and the next are included
    "explanation/performance-figures.md",
]
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["moved.js", "site.js"]
# No link to the source of a page: it has the places of what is generated, and not what stands there.
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
# Straight quotes and two hyphens stay: a reader copies `mode="…"` and `--json`, and looks for a text as it was
# printed.
smartquotes = False
# A button copies what is typed, without the prompt and without what is printed.
copybutton_prompt_text = r"\$ |>>> |\.\.\. |nodes> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist"]
# Links to a heading of another page are checked down to this level.
myst_heading_anchors = 3

# -- addresses that pages had before, and where to look now -------------------------------------------

DEV = "https://github.com/django-redlock/django-redlock/blob/main/docs/dev/"
OLD = {
    "explanation/architecture": f"{DEV}architecture.md",
    "explanation/design": f"{DEV}design.md",
    "explanation/what-was-run": "promises.html",
    "reference/mutants": f"{DEV}mutants.md",
    "how-to/waiting": "locks.html",
    "how-to/admin": "status.html",
    "how-to/recipes": "cheat-sheet.html",
}
# A page that is still there is no old address.
HERE = Path(__file__).resolve().parent
redirects = {page: to for page, to in OLD.items() if not (HERE / f"{page}.md").exists()}

# -- search -------------------------------------------------------------------------------------------

# What people type that a page does not say, or says too late: each becomes an entry of the index, which
# the search finds first. The first page of a list that is there has them.
SEARCHED = [
    (
        ["explanation/faq", "explanation/redlock"],
        ["FAQ", "frequently asked questions", "is it safe", "exactly once"],
    ),
    (["how-to/one-redis", "install"], ["quickstart", "quick start", "getting started"]),
    (
        ["how-to/celery-quick-start", "how-to/celery"],
        ["unique task", "singleton task", "celery-once", "duplicate task"],
    ),
    (
        ["how-to/runbook", "how-to/operate"],
        ["stuck lock", "force release", "break lock", "delete lock", "on call", "3 am"],
    ),
    (
        ["how-to/managed-services", "how-to/nodes"],
        ["heroku", "ElastiCache", "Upstash", "Memorystore", "managed Redis"],
    ),
    (["how-to/limits-once-leader", "how-to/locks"], ["semaphore", "once a day", "leader election"]),
    (["explanation/what-if", "explanation/how-it-works"], ["node dies", "failure modes"]),
    (["how-to/views"], ["double click", "double submit"]),
    (["how-to/idempotency"], ["Idempotency-Key", "retry a request"]),
    (["how-to/one-server"], ["cron", "celery beat on several servers"]),
    (["how-to/fencing"], ["fencing token", "stale write"]),
    (["how-to/testing"], ["pytest", "mock a lock"]),
    (["how-to/cheat-sheet", "how-to/locks"], ["cheat sheet"]),
]
# Proofs and figures, which the search would put before the page that a reader needs.
NOT_SEARCHED = {"explanation/museum", "explanation/performance", "explanation/promises"}


def entries_of(page: str) -> list[str]:
    """Return what the search finds a page by, besides its text."""
    there = HERE
    return [
        entry
        for pages, entries in SEARCHED
        if next((each for each in pages if (there / f"{each}.md").exists()), "") == page
        for entry in entries
    ]


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Put the generated parts and the entries of the index into the text of a page."""
    text = reference.for_the_site(source[0])
    entries = entries_of(page)
    if entries:
        head, title, rest = text.partition("\n")
        # The search lists an entry before all pages if it is a main one, and after them if it is not.
        main = ", ".join(f"! {entry}" for entry in entries)
        text = f"{head}{title}\n```{{index}} {main}\n```\n{rest}"
    source[0] = text


def hide(app: Sphinx, *_: object) -> None:
    """Leave the pages of proofs out of the search."""
    for page in NOT_SEARCHED:
        app.env.metadata[page]["nosearch"] = ""


# -- what a phone would break, and what is read aloud ------------------------------------------------

OPTION = re.compile(r'<span class="pre">(-[^<]{1,32})</span>')
# Sphinx's own, behind the name of a parameter.
DASH = re.compile(r"(<p>(?:<a [^>]*>)?<strong>[^\n]*?) -- ")
EMPTY_HEAD = re.compile(r'<th( class="head[^>]*>)(?:<p></p>)?</th>')
TABLE = re.compile(r'<table class="docutils.*?</table>', re.DOTALL)
ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
HEAD = re.compile(r'<t[hd] class="head[^>]*>(.*?)</t[hd]>', re.DOTALL)
CELL = re.compile(r'<td(?! class="head)([^>]*>(.*?)</td>)', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
NARROW = 44  # letters of the longest words of two columns that a phone shows side by side


def words_of(markup: str) -> list[str]:
    """Return the words of a piece of HTML, whose entities stay."""
    return TAG.sub("", markup).split()


def as_cards(found: re.Match[str]) -> str:
    """Give the cells of a wide table their headings, so that a phone can show each row as a card.

    The style sheet does the rest. Figures stay in columns: a reader compares them.
    """
    table = found[0]
    heads = [" ".join(words_of(head)).replace('"', "&quot;") for head in HEAD.findall(table)]
    rows = [cells for row in ROW.findall(table) if (cells := CELL.findall(row))]
    longest = [
        max((len(word) for _, cell in column for word in words_of(cell)), default=0)
        for column in zip(*rows, strict=True)
    ]
    if "text-right" in table or (not heads[2:] and sum(longest) <= NARROW):
        return table

    def card(row: re.Match[str]) -> str:
        names = iter(heads)
        cells = CELL.sub(
            lambda cell: f'<td role="cell" data-label="{next(names)}"{cell[1]}', row[0]
        )
        return cells.replace("<tr", '<tr role="row"', 1).replace('"cell"', '"rowheader"', 1)

    table = ROW.sub(card, table).replace("><p></p></td>", "></td>")
    # To some browsers a block is no part of a table, unless it says so.
    table = re.sub("<(thead|tbody)", r'<\1 role="rowgroup"', table)
    table = table.replace("<th ", '<th role="columnheader" ').replace(
        '<td class="head', '<td role="cell" class="head'
    )
    return table.replace('<table class="', '<table role="table" class="cards ', 1)


def mend(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Keep `--json` in one piece and wide tables on the screen; an empty cell is no heading."""
    body = OPTION.sub(r'<span class="pre option">\1</span>', context.get("body", ""))
    body = DASH.sub(r"\1 – ", body)
    context["body"] = TABLE.sub(as_cards, EMPTY_HEAD.sub(r"<td\1</td>", body))


# -- llms.txt: what a language model should know of these pages; see https://llmstxt.org

SITE = "https://django-redlock.readthedocs.io/en/latest"
# What each page is good for, in one sentence. A page without one fails the build.
PAGES = {
    "Begin": {
        "index": "What the package does, a first example, and which page answers which question.",
        "how-to/which-lock": "When a database lock is enough, and whether to run one node, three or five.",
        "install": "Install the package, and write the setting REDLOCK.",
        "how-to/one-redis": "Quick start: locks on the Redis you already have, and what its restart means.",
        "how-to/celery-quick-start": "Quick start: one run of a Celery task, no duplicate in the queue, three nodes.",
        "how-to/api-quick-start": "Quick start: REST framework or Ninja with PostgreSQL: paid once, created once.",
        "tutorial": "Five nodes on one machine, a lock, a stale write that is refused, two dead nodes.",
        "how-to/cheat-sheet": "Each way to take a lock, options, errors and commands on one page.",
    },
    "How to": {
        "how-to/locks": "Take a lock on one name or several, wait in line, and see who holds a lock.",
        "how-to/limits-once-leader": "Let up to k work at once, do work once a day, elect one leader.",
        "how-to/errors": "What LockTaken, NodesUnavailable and LeaseLost mean, and what users read.",
        "how-to/long-jobs": "Hold a lock for hours: renewal, ensure(), on_lost and max_hold.",
        "how-to/transactions": "Put a database transaction into the lock, so that it commits before the release.",
        "how-to/fencing": "Let a database row refuse the write of a holder that was paused for too long.",
        "how-to/beyond-the-database": "Fences for Redis values, HTTP services, object stores, files; APIs without fences.",
        "how-to/asyncio": "Locks in async views, coroutines and tasks, with timeouts and cancellation.",
        "how-to/views": "Run one of several equal requests to a view by @single_flight, and refuse the others.",
        "how-to/api-frameworks": "The same for views of Django REST framework and django-ninja.",
        "how-to/idempotency": "A client that sends a request again gets the first answer.",
        "how-to/celery": "Run a Celery task once at a time for each key, and queue no duplicate messages.",
        "how-to/celery-in-production": "Killed workers, visibility timeout, time limits, beat, what to watch.",
        "how-to/tasks": "Run one of Django's own tasks once at a time for each key, and enqueue no duplicates.",
        "how-to/one-server": "Run a cron job or management command on one server at a time by redlock_run.",
        "how-to/testing": "Test a project with nodes in memory or real embedded ones, and simulate outages.",
        "how-to/nodes": "Set up three or five independent nodes with Docker Compose, systemd or Kubernetes.",
        "how-to/managed-services": "ElastiCache, Heroku, Aiven and others: what counts as one node.",
        "how-to/deployment": "Check the settings and the nodes before a deployment: check and redlock_check.",
        "how-to/servers": "What to set for gunicorn, uvicorn, uWSGI, Celery's pools, RQ and forks.",
        "how-to/runbook": "A stuck lock, no majority, a node that is down: the command, and what not to do.",
        "how-to/operate": "Restart or replace a node, change a password, MAX_TTL or the key prefix.",
        "how-to/status": "What is held: redlock_status, the states, the admin page, a lock in a template.",
        "how-to/monitoring": "Alerts, a health view, Prometheus, Grafana, OpenTelemetry and the log.",
        "how-to/troubleshooting": "Find an error or a line of the log by its text, with cause and remedy.",
        "how-to/migrate": "Move from django-redis, redis-py, pottery and other locks, line by line.",
        "how-to/other-clients": "Share a lock with other Redlock clients, also of other languages.",
    },
    "Explanation": {
        "explanation/faq": "Is it safe, why five nodes, one ElastiCache, etcd, exactly once: short answers.",
        "explanation/redlock": "The Redlock algorithm, the critique of it, and what fencing tokens change.",
        "explanation/how-it-works": "The mechanism: what nodes are asked, what replies are worth, why it is right.",
        "explanation/what-if": "What locks, holders and waiters see when a node, a process or a clock fails.",
        "explanation/promises": "Each promise of the package with the test that shows it, and what it does not promise.",
        "explanation/performance": "What a lock costs, measured beside bare sockets and other clients.",
        "explanation/museum": "Locks that people copy, each broken by a fault, with a table and pictures.",
    },
    "Reference": {
        "reference/api": "Every public class and function, with arguments, units and errors.",
        "reference/settings": "Every key of REDLOCK with type, unit and default, and how to configure the nodes.",
        "reference/checks": "The system checks: what each says, what it means and what to do.",
        "reference/commands": "The commands: options, exit statuses, keys of the JSON, gauges for Prometheus.",
        "reference/options": "The options of each decorator with defaults, side by side.",
        "reference/signals": "Django signals about locks and messages of tasks, with their arguments.",
        "reference/metrics": "OpenTelemetry metrics and spans, the fields of the log, figures of nodes.",
        "reference/reasons": "The codes that say why a vote or a lock is missing, with their sentences.",
        "reference/versions": "Which versions of Python, Django, redis-py, Celery and servers work together.",
        "reference/glossary": "The terms of the project, each in one sense.",
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
    app.connect("source-read", complete)
    app.connect("env-updated", hide)
    app.connect("html-page-context", mend)
    app.connect("build-finished", write_llms_txt)
