"""The check of the catalogues: what each lacks is found."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from django_redlock.core import reasons
from tests.docs.pages import ROOT
from tools import messages
from tools.messages import compiled, faults, read, update, wanted, written

NAME = "locale/de/LC_MESSAGES/django.po"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    copy = tmp_path / "django_redlock"
    shutil.copytree(messages.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@functools.cache
def as_they_are() -> Catalog:
    """The strings of the package; reading them takes a second."""
    return wanted(messages.PACKAGE)


def found(package: Path, *, changed: bool = True) -> list[str]:
    """What the check says of the German catalogue; ``changed``: of a source that is another."""
    return list(faults(package / NAME, wanted(package) if changed else as_they_are()))


def replace(path: Path, old: str, new: str) -> None:
    """Change a text that a file has once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_catalogues_are_complete(package):
    """As `make lint` says, for three languages at least; each can be written as it is."""
    paths = messages.catalogues(package)
    assert {path.parent.parent.name for path in paths} >= {"de", "ja", "zh_Hans"}
    for path in paths:
        before = path.read_bytes(), path.with_suffix(".mo").read_bytes()
        assert list(faults(path, as_they_are())) == []
        update(path, as_they_are())
        assert (path.read_bytes(), path.with_suffix(".mo").read_bytes()) == before
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert "tools.messages --check" in lint


# -- broken variants -------------------------------------------------------------------------------

NOTHING = 'msgid "There is nothing to do."\nmsgstr "Es ist nichts zu tun."\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (NOTHING, "", "is missing"),
        (NOTHING, NOTHING.replace("Es ist nichts zu tun.", ""), "is not translated"),
        (NOTHING, f"#, fuzzy\n{NOTHING}", "is fuzzy"),
        (NOTHING, f'{NOTHING}\n#~ msgid "Gone"\n#~ msgstr "Weg"\n', "is obsolete"),
        (NOTHING, f'{NOTHING}\nmsgid "Gone"\nmsgstr "Weg"\n', "is in no source any more"),
        ('msgstr "Fence %(fence)s"', 'msgstr "Fence {fence}"', "has other placeholders"),
        ('msgstr "noch %(seconds_left)s s"', 'msgstr "noch s"', "has other placeholders"),
        ('msgstr "Fence %(fence)s"', 'msgstr "Fence %(zaun)s"', "has other placeholders"),
        (
            'msgstr "niemand hält {name!r}"',
            'msgstr "niemand hält {name}"',
            "has other placeholders",
        ),
        ('msgstr "nie erreicht"', 'msgstr "nie {erreicht}"', "has other placeholders"),
        (
            'msgstr[1] "%(count)s weitere Tasks; --limit zeigt mehr."',
            'msgstr[1] "weitere Tasks; --limit zeigt mehr."',
            "has other placeholders",
        ),
        (
            'msgstr[1] "%(count)s weitere Tasks; --limit zeigt mehr."',
            'msgstr[1] ""',
            "is not translated",
        ),
    ],
)
def test_a_fault_of_a_catalogue_is_found(package, old, new, said):
    """And no other is, once the .mo is that of the catalogue."""
    path = package / NAME
    replace(path, old, new)
    path.with_suffix(".mo").write_bytes(compiled(read(path)))
    (fault,) = found(package, changed=False)
    assert fault.startswith(said)


def test_a_stale_mo_is_found(package):
    """What was compiled of another text, and what was never compiled."""
    replace(package / NAME, "Es ist nichts zu tun.", "Nichts ist zu tun.")
    assert found(package, changed=False) == ["django.mo is not that of django.po"]
    (package / NAME).with_suffix(".mo").unlink()
    assert found(package, changed=False) == ["django.mo is not that of django.po"]


def code(package: Path) -> None:
    """A command says something new."""
    path = package / "management/commands/redlock_release.py"
    replace(path, 'gettext("nothing was done")', 'gettext("nothing at all was done")')


def template(package: Path) -> None:
    """A page does."""
    path = package / "templates/admin/django_redlock/lockkey/one.html"
    replace(
        path, '{% translate "Back to the locks" %}', "{% blocktranslate %}Go{% endblocktranslate %}"
    )


def plural(package: Path) -> None:
    """A page counts something else."""
    path = package / "templates/admin/django_redlock/lockkey/tasks.html"
    replace(path, "{{ count }} task{% plural %}", "{{ count }} job{% plural %}")


def sentence(package: Path) -> None:
    """A sentence of the core is another."""
    path = package / "inspection/survey.py"
    replace(path, '"Nothing needs attention."', '"All is well."')


@pytest.mark.parametrize("change", [code, template, plural, sentence])
def test_a_string_that_no_catalogue_has_is_found(package, change: Callable[[Path], None]):
    """Wherever it is; and the one that it replaces."""
    change(package)
    missing, *others = found(package)
    assert missing.startswith("is missing: ")
    assert [each.partition(":")[0] for each in others] == ["is in no source any more"]


def test_a_reason_that_no_catalogue_has_is_found(package, monkeypatch):
    """The table of reasons is one of the sources."""
    monkeypatch.setitem(reasons.MORE, "new", " (and more of {new})")
    assert found(package) == ["is missing: ' (and more of {new})'"]


# -- make messages ---------------------------------------------------------------------------------


def test_an_update_leaves_what_is_new_to_a_translator(package):
    """It adds the string, drops what is gone, keeps all others and the terms at the head."""
    sentence(package)
    code(package)
    path = package / NAME
    head = path.read_text(encoding="utf-8").partition('msgid ""')[0]
    update(path, wanted(package))
    text = path.read_text(encoding="utf-8")
    assert text.startswith(head)
    assert "Nothing needs attention." not in text
    assert {each.partition(":")[0] for each in found(package)} <= {"is not translated", "is fuzzy"}
    assert len(found(package)) == 2


def test_a_language_is_begun(package):
    """Its catalogue has every string and no translation, and tells no date."""
    path = package / "locale/nl/LC_MESSAGES/django.po"
    strings = as_they_are()
    update(path, strings)
    begun = read(path)
    assert len(begun) == len(strings) == len(list(faults(path, strings)))
    assert "Date" not in written(begun)
    assert "Plural-Forms: nplurals=2; plural=(n != 1)" in written(begun)


def test_the_check_fails_and_says_where(package, capsys):
    """It changes nothing."""
    messages.main(["--check"], package)
    assert f"{NAME}: {len(as_they_are())} strings, 0 faults\n" in capsys.readouterr().out
    replace(package / NAME, NOTHING, "")
    before = (package / NAME).read_bytes()
    with pytest.raises(SystemExit, match="make messages"):
        messages.main(["--check"], package)
    said = capsys.readouterr().out.splitlines()
    assert f"django_redlock/{NAME}: is missing: 'There is nothing to do.'" in said
    assert (package / NAME).read_bytes() == before
