"""A string that a visitor would read in the wrong language, or broken, is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dev.tools import messages
from dev.tools.messages import compiled, faults, read, update, wanted
from tests.docs.pages import ROOT

CODE = """
from django.utils.translation import gettext as _, ngettext, pgettext

def told(count):
    return _("Nobody holds {name!r}."), ngettext("%(count)s lock", "%(count)s locks", count)
"""
PAGE = "{% load i18n %}{% translate 'Home' %}{% blocktranslate %}Free{% endblocktranslate %}"
GERMAN: dict[object, Any] = {
    "Nobody holds {name!r}.": "Niemand hält {name!r}.",
    "Free": "Frei",
    ("%(count)s lock", "%(count)s locks"): ("%(count)s Sperre", "%(count)s Sperren"),
}


@pytest.fixture
def po(tmp_path: Path) -> Path:
    """The whole German catalogue of a package with a module and a page."""
    package = tmp_path / "django_redlock"
    path = package / "locale/de/LC_MESSAGES/django.po"
    package.mkdir()
    (package / "code.py").write_text(CODE)
    (package / "page.html").write_text(PAGE)
    update(path, wanted(package))
    catalog = read(path)
    for each in catalog:
        each.string = GERMAN.get(each.id, each.string)
    path.write_text(messages.text_of(catalog), encoding="utf-8")
    update(path, wanted(package))
    return path


def found(po: Path, old: str = "", new: str = "") -> list[str]:
    """What is said of the catalogue when one of its texts is another."""
    text = po.read_text(encoding="utf-8")
    assert old in text
    po.write_text(text.replace(old, new, 1), encoding="utf-8")
    po.with_suffix(".mo").write_bytes(compiled(read(po)))
    return [fault.partition(":")[0] for fault in faults(po, wanted(po.parents[3]))]


STALE = "its strings are not those of the package"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", []),
        ('msgid "Free"\nmsgstr "Frei"\n', "", [STALE]),
        ('msgid "Free"', 'msgid "Gone"\nmsgstr "Weg"\n\nmsgid "Free"', [STALE]),
        ('msgid "Free"', '#, fuzzy\nmsgid "Free"', ["is fuzzy"]),
        ('"Frei"', '""', ["is not translated"]),
        ('"%(count)s Sperren"', '""', ["is not translated"]),
        ('"%(count)s Sperren"', '"Sperren"', ["has other placeholders"]),
        ("hält {name!r}", "hält {name}", ["has other placeholders"]),
        ('"Frei"', '"{frei}"', ["has other placeholders"]),
    ],
)
def test_a_fault_of_a_catalogue_is_found(po, old, new, said):
    """And no other is, once the .mo is that of the catalogue; Django's own strings are Django's."""
    assert found(po, old, new) == said


def test_what_was_compiled_of_another_text_is_found(po):
    """Visitors see the .mo."""
    po.write_text(po.read_text(encoding="utf-8").replace('"Frei"', '"Offen"'), encoding="utf-8")
    assert list(faults(po, wanted(po.parents[3]))) == [
        "django.mo is not that of django.po: make messages"
    ]


def test_the_check_changes_nothing_and_fails(po, capsys):
    """`make lint` runs it; `make messages` adds and drops strings, and keeps the head."""
    package = po.parents[3]
    messages.main(["--check"], package)
    head = po.read_text(encoding="utf-8").partition('msgid ""')[0]
    (package / "page.html").write_text(PAGE.replace("Free", "Nothing is locked"))
    before = po.read_bytes()
    with pytest.raises(SystemExit, match="make messages"):
        messages.main(["--check"], package)
    assert po.read_bytes() == before
    assert f"django.po: {STALE}" in capsys.readouterr().out
    messages.main(["nl"], package)
    text = po.read_text(encoding="utf-8")
    assert text.startswith(head)
    assert "Nothing is locked" in text
    assert '"Free"' not in text
    assert (package / "locale/nl/LC_MESSAGES/django.mo").exists()
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert "tools.messages --check" in lint
