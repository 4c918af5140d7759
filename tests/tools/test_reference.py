"""What is made of the code for the reference is what the code has."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from django.core import checks

from dev.tools.reference import checks as found_checks
from dev.tools.reference import (
    commands,
    expand,
    for_the_site,
    markdown,
    options,
    outcomes,
    reasons,
    rooms,
)
from dev.tools.reference import settings as found_settings
from django_redlock import conf, signals
from django_redlock.core.reasons import ReasonCode
from django_redlock.inspection import rows, survey
from django_redlock.locks.template import LockTemplate
from django_redlock.management import LOST, NOT_ENDED, TAKEN, UNKNOWN
from django_redlock.views import single_flight
from tests.docs.pages import ROOT, whole

REFERENCE = ROOT / "docs/reference"


def test_a_line_becomes_a_part():
    """In its place, and nothing else of the page changes."""
    page = "Before.\n\n<!-- generated: settings -->\n\nAfter.\n"
    expanded = expand(page)
    assert expanded.startswith("Before.\n\n| Key |")
    assert expanded.endswith(" |\n\nAfter.\n")
    assert expand("<!-- generated -->") == "<!-- generated -->"
    assert expand("- Item\n  <!-- generated: exits redlock_run -->").startswith("- Item\n  | Exit")


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "check W999",
        "options nobody",
        "tests tests/test_layers.py::nobody",
        "cells setnx-del/nothing",
    ],
)
def test_a_part_that_is_not_there_fails_the_build(line):
    """So that no page shows an empty place."""
    with pytest.raises(ValueError, match=line.rpartition(" ")[2]):
        expand(f"<!-- generated: {line} -->")


def test_links_to_old_places_lead_to_new_ones():
    """A check's section has a page of its own; what is in the repository only has its address."""
    assert for_the_site("[a](../reference/settings.md#w030)") == "[a](../reference/checks.md#w030)"
    assert for_the_site("[a](settings.md#system-checks)") == "[a](checks.md)"
    assert for_the_site("[a](../reference/settings.md#ttl)") == "[a](../reference/settings.md#ttl)"
    assert for_the_site("[a](../dev/design.md)") == (
        "[a](https://github.com/django-redlock/django-redlock/blob/main/docs/dev/design.md)"
    )


# -- notes ----------------------------------------------------------------------------------------


def test_notes_and_things_match(monkeypatch):
    """A note about nothing, and a thing without the note that it needs, are errors."""
    monkeypatch.setattr(markdown, "_notes", lambda: {"x": {"a": "A.", "b": "B.", "sub": {}}})
    assert markdown.noted(["b", "a"], "x") == {"b": "B.", "a": "A."}
    assert markdown.noted(["a", "b", "c"], "x", all_of_them=False)["c"] == ""
    with pytest.raises(ValueError, match=r"no note for \['c'\]"):
        markdown.noted(["a", "b", "c"], "x")
    with pytest.raises(ValueError, match=r"nothing that \['b'\] is about"):
        markdown.noted(["a"], "x", all_of_them=False)


# -- checks ---------------------------------------------------------------------------------------


def test_every_check_has_its_section():
    """In order, with its anchor, its text of the code and an action."""
    code = "".join(each.read_text() for each in found_checks.PACKAGE.rglob("*.py"))
    assert set(re.findall(r'"django_redlock\.([A-Z]\d+)"', code)) == found_checks.ids().keys()
    page = (REFERENCE / "checks.md").read_text()
    section = r"^\((\w+)\)=\n<!-- generated: check (\w+) -->$"
    found = re.findall(section, page, re.MULTILINE)
    assert [number for _, number in found] == sorted(found_checks.ids())
    assert all(anchor.upper() == number for anchor, number in found)
    for number in found_checks.ids():
        assert "**Do:**" in found_checks.section(number)


def test_a_check_says_what_the_page_shows(settings):
    """The text and the hint of a real message fit those that were read from the code."""
    settings.REDLOCK = {"default": {"NODES": ["redis://a", "redis://b"]}}
    (real,) = [
        each
        for each in checks.run_checks(tags=[checks.Tags.security])
        if each.id == "django_redlock.W012"
    ]
    (shown,) = [each for each in found_checks.messages() if each.number == "W012"]
    text = re.escape(re.sub(r"\\(.)", r"\1", shown.text)).replace(r"\*alias\*", ".*")
    assert re.fullmatch(text, real.msg)
    assert real.hint == f"{shown.hints[0]} See {found_checks_address('w012')}"


def test_a_check_shows_no_name_of_the_code():
    """What a text fills in is named for a reader: no attribute with underscores, no constant."""
    for each in found_checks.messages():
        for text in (each.text, *each.hints):
            assert "**" not in text, text
            for data in re.findall(r"\*(.+?)\*", text):
                assert not data.startswith("\\_"), text
                assert not data.isupper() or data.replace("\\", "") in conf.DEFAULTS, text


def found_checks_address(number: str) -> str:
    """The address of a section."""
    return f"https://django-redlock.readthedocs.io/en/latest/reference/checks.html#{number}"


# -- reasons --------------------------------------------------------------------------------------


def test_every_reason_is_in_a_group():
    """Each code once, with its sentence."""
    grouped = [code for _, codes in reasons.groups() for code in codes]
    assert grouped == list(ReasonCode)
    shown = re.findall(r"^\| `(\w+)` \| (.+?) \|", whole(REFERENCE / "reasons.md"), re.MULTILINE)
    assert [code for code, _ in shown if code in set(ReasonCode)] == [
        each.value for each in ReasonCode
    ]
    assert reasons.sentence(ReasonCode.NO_ANSWER) == "no answer for *seconds* s"


# -- options --------------------------------------------------------------------------------------


def simple(default: Any) -> str:
    """A default as the tables show it."""
    return repr(default).replace("'", '"')


@pytest.mark.parametrize(
    ("name", "function"), [("redlock", LockTemplate.__call__), ("single_flight", single_flight)]
)
def test_the_options_are_those_of_the_signature(name, function):
    """Names in order, and defaults; what an option does is in the docstring."""
    wanted = {
        each.name: "" if each.default is each.empty else simple(each.default)
        for each in inspect.signature(function).parameters.values()
        if each.name not in {"self", "first", "unknown"}
    }
    assert {each.name: each.default for each in options.options(name)} == wanted
    assert all(each.about for each in options.options(name))


@pytest.mark.parametrize(
    ("name", "option", "default"),
    [
        ("redlock", "ttl", "`TTL`"),
        ("single_flight", "key", "same client, method and path"),
        ("locked_task", "wait", "`0`"),
        ("locked_task", "using", '`"default"`'),
        ("idempotent", "keep", "`timedelta(days=1)`"),
        ("redlock", "on_lost", "`None`"),
        ("redlock", "name", ""),
    ],
)
def test_a_default_is_what_the_code_does(name, option, default):
    """What None stands for is in the column of defaults, where it is short, and not said twice."""
    (found,) = [each for each in options.options(name) if each.name == option]
    readable = found.readable()
    assert readable.default == default
    assert ("None: " in readable.about) == ("None: " in found.about and default == "`None`")


def test_every_source_of_options_is_read():
    """Those of packages that are not installed, too."""
    assert all(options.options(name) for name in options.SOURCES)


# -- commands -------------------------------------------------------------------------------------


def test_each_command_is_on_the_page():
    """With all of its options, and its exit statuses if it has some of its own."""
    page = whole(REFERENCE / "commands.md")
    assert len(commands.NAMES) >= 5
    for name in commands.NAMES:
        assert f"## {name}\n" in page
        assert commands.section(name).rstrip("\n") in page
        if list(commands.statuses(name)):
            assert commands.exits(name).rstrip("\n") in page


def test_the_exit_statuses_are_those_of_the_code():
    """Of the commands that show nodes those of their health, of redlock_run those of sysexits."""
    own = {str(each) for each in rows.EXIT.values()}
    assert dict(commands.statuses("redlock_check")).keys() == own
    assert dict(commands.statuses("redlock_status")).keys() == own - {"5"}
    run = dict(commands.statuses("redlock_run"))
    assert run.keys() == {"the command's", *map(str, (TAKEN, UNKNOWN, LOST, NOT_ENDED))}
    assert dict(commands.statuses("redlock_release")).keys() == {"0", "1", str(UNKNOWN)}


def test_the_labels_of_the_gauges():
    """As a survey of nodes in memory prints them."""
    made = conf.make("docs", {"NODES": ["memory://g1", "memory://g2", "memory://g3"]})
    text = rows.exposition([survey(made)])
    for gauge, labels in re.findall(r"^(redlock_\w+)\{(.*)\} ", text, re.MULTILINE):
        assert tuple(re.findall(r"(\w+)=", labels)) == commands.labels(gauge)


def test_an_option_shows_its_default_once():
    """Where the help has it, and else in brackets."""
    assert "(default: 1000)" in commands.section("redlock_status")
    assert commands.section("redlock_clear_idempotency").count("1000") == 1


# -- the other tables -----------------------------------------------------------------------------


def test_the_types_of_settings_have_tests():
    """``TYPES`` by hand is for keys that are no seconds; test_tables tries each type."""
    assert found_settings.TYPES.keys() <= conf.DEFAULTS.keys() - conf.SECONDS.keys()


def test_every_signal_is_on_the_page():
    """Each once."""
    page = whole(REFERENCE / "signals.md")
    every = [name for name, each in vars(signals).items() if isinstance(each, signals.RobustSignal)]
    for name in every:
        assert len(re.findall(rf"^\| `{name}` \|", page, re.MULTILINE)) == 1, name


def test_a_test_is_listed_with_what_it_proves():
    """The first paragraph of its docstring."""
    here = "tests/tools/test_reference.py::test_a_test_is_listed_with_what_it_proves"
    sizes = "tests/tools/test_sizes.py::test_a_folder_that_outgrows_its_number_is_named"
    folded = outcomes.tests(here, sizes)
    assert folded.startswith('<details class="tests"><summary>2 tests</summary>\n\n- ')
    assert folded.endswith("\n\n</details>")
    first, second = re.findall(r"^- (.*)", folded, re.MULTILINE)
    assert first == f"The first paragraph of its docstring. `{here}`"
    assert second.startswith("So is a folder without a number, ")


def test_the_arguments_of_a_part_may_have_lines_of_their_own():
    """As a long list has; the next part begins after it."""
    test = "tests/tools/test_reference.py::test_a_line_becomes_a_part"
    page = f"- A promise.\n  <!-- generated: tests\n  {test}\n  {test}\n  -->\n- Another.\n"
    assert expand(page).startswith('- A promise.\n  <details class="tests"><summary>2 tests')
    assert expand(page).endswith("\n\n  </details>\n- Another.\n")


def test_cells_of_the_museum_say_what_is_seen():
    """With the reason; where a table has several locks, each row names its lock."""
    one = rooms.cells("setnx-del/turns", "setnx-del/killed").splitlines()
    assert one[2] == "| Two clients take turns | holds | `setnx-del/turns` |"
    assert one[3].startswith("| The holder is killed | **stuck**. Nobody deletes the key")
    several = rooms.cells("setnx-del/killed", "redlock/paused").splitlines()
    assert several[2].startswith("| SETNX, then DEL: the holder is killed | ")


def test_pages_have_no_table_of_what_is_generated():
    """A table by hand beside the generated one would be out of date some day."""
    for name in ("settings", "checks", "commands", "options"):
        assert not re.search(r"^\|", (REFERENCE / f"{name}.md").read_text(), re.MULTILINE), name
