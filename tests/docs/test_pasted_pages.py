"""Who pastes the examples of a page into a new project has left nothing out."""

from __future__ import annotations

import builtins
import re
import symtable
from pathlib import Path

import pytest

from tests.docs.pages import (
    INSTALL,
    README,
    ROOT,
    TUTORIAL,
    Block,
    Reader,
    blocks,
    examples,
    reader,
)

HOW_TO = ROOT / "docs/how-to"
PAGES = [README, INSTALL, TUTORIAL, *sorted(HOW_TO.glob("*.md"))]
# What startproject writes, and what a page says in words that it stands for.
GIVEN = {"INSTALLED_APPS", "MIDDLEWARE", "BASE_DIR", "urlpatterns", "NODES", "__file__"}
SETTINGS = """\
INSTALLED_APPS += ["django_redlock"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""


def unknown(source: str) -> set[str]:
    """The names that a text uses and has from nowhere."""
    top = symtable.symtable(source, "page", "exec")
    known = {each.get_name() for each in top.get_symbols() if each.is_assigned()}
    known |= {each.get_name() for each in top.get_symbols() if each.is_imported()}
    tables, used = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {each.get_name() for each in table.get_symbols() if each.is_global()}
        used |= {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    return used - known - set(dir(builtins))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_imports_what_its_examples_use(page):
    """Each name in an example is imported or defined above it, in the same file."""
    for file, source in examples(page).items():
        assert unknown(source) <= GIVEN, file


def new_project(someone: Reader, page: Path) -> None:
    """A project with the settings of the README, and the files of a page."""
    someone.begin("django-admin startproject mysite .")
    someone.write(Block("python", "mysite/settings.py", SETTINGS))
    for block in blocks(page):
        if block.file:
            someone.write(block)


SHELL = ["asyncio", "cheat-sheet", "errors", "locks", "long-jobs", "testing", "views"]


@pytest.mark.parametrize("name", SHELL)
def test_the_examples_of_a_page_run_in_a_new_project(tmp_path, name):
    """What a page shows is typed into the shell of a new project, from top to bottom."""
    page = HOW_TO / f"{name}.md"
    with reader(tmp_path, "mysite.settings") as someone:
        new_project(someone, page)
        someone.type(examples(page)["the shell"])


def test_the_admin_page_is_there_in_a_new_project(tmp_path):
    """With what its page says, an own admin site and Django's own show the locks."""
    page = HOW_TO / "status.md"
    with reader(tmp_path, "mysite.settings") as someone:
        new_project(someone, page)
        for command in re.findall(r"^\$ python manage.py (.*)$", page.read_text(), re.MULTILINE):
            someone.manage(command)
        someone.manage("migrate")
        someone.type("""\
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("boss"))
for site in ("admin", "operations"):
    answer = client.get(reverse(f"{site}:django_redlock_lockkey_changelist"))
    print(site, answer.status_code)
""")
        assert someone.seen.endswith("admin 200\noperations 200\n")
