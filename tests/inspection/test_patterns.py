"""Patterns of names: what they mean, and that nobody can make one that takes for ever."""

from __future__ import annotations

from typing import SupportsIndex

import pytest

from django_redlock.inspection import patterns
from django_redlock.inspection.patterns import LONGEST, parse


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("report:*", ["report:", "report:1", "report:a:b/c"], ["report", "a report:1"]),
        ("*:done", ["x:done", ":done"], ["x:done:"]),
        ("*a*b*", ["ab", "xaxbx", "aab"], ["ba", "a"]),
        ("**", ["", "x"], []),
        ("a?c", ["abc", "aéc", "a:c"], ["ac", "abbc"]),
        ("[abc]x", ["ax", "bx"], ["dx", "x", "abcx"]),
        ("[a-c]x", ["ax", "bx", "cx"], ["dx", "-x"]),
        ("[c-a]x", ["bx"], ["dx", "-x"]),
        ("[!a]x", ["bx", "!x"], ["ax", "x"]),
        ("[^a]x", ["bx", "^x"], ["ax", "x"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[!]]", ["a"], ["]"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[é-ü]", ["ö"], ["e"]),
        ("[[a]", ["[", "a"], ["b"]),
        ("[&&~|.]", ["&", "~", "|", "."], ["a"]),
        ("a.b(c)*", ["a.b(c)", "a.b(c)d"], ["axb(c)"]),
        (r"a\*b*", ["a*b", "a*bc"], ["axb", r"a\*b"]),
        (r"\?*", ["?x"], ["ax"]),
        (r"\[x]*", ["[x]", "[x]1"], ["x"]),
        (r"[\]]", ["]"], ["\\"]),
        (r"[\a-c]", ["b"], ["\\", "-"]),
        (r"\\*", ["\\x"], ["x"]),
        (r"a\b*", [r"a\bc"], ["abc"]),
    ],
)
def test_what_a_pattern_means(pattern, matching, others):
    """Wildcards stand for characters, everything else for itself; case and all of a name count."""
    parsed = parse(pattern)
    assert parsed.is_pattern
    assert parsed.name == pattern
    assert [name for name in matching if not parsed.matches(name)] == []
    assert [name for name in others if parsed.matches(name)] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("invoice:42", "invoice:42"),
        (r"a\*b", "a*b"),
        (r"a\?", "a?"),
        (r"cart\[5]", "cart[5]"),
        (r"cart\[5\]", "cart[5]"),
        (r"a\\b", r"a\b"),
        (r"a\b", r"a\b"),
        ("a\\", "a\\"),
        ("[ab", "[ab"),
        ("[", "["),
        ("[!]", "[!]"),
        ("a]", "a]"),
        ("[\\", "[\\"),
        ("", ""),
    ],
)
def test_what_is_no_pattern(text, name):
    """Without a wildcard a text means one name; a backslash takes a wildcard its meaning."""
    parsed = parse(text)
    assert (parsed.is_pattern, parsed.name) == (False, name)
    assert parsed.matches(name)


def test_case_is_ignored_where_that_is_wanted():
    """A search of people finds names in any case."""
    assert parse("REPORT:[A-C]*", ignore_case=True).matches("Report:bx")
    assert not parse("REPORT:*").matches("Report:b")


@pytest.mark.parametrize("pattern", ["*a" * 250 + "*b", "?*" * 250 + "b", "*" + "?" * 400 + "*b"])
def test_no_pattern_takes_for_ever(pattern):
    """One that tries all ways to match finds no end, and nor does this test then."""
    assert not parse(pattern).matches("a" * 512)


def test_a_pattern_is_as_long_as_it_may_be():
    """Each character of the longest name may have a backslash; no text is longer than that."""
    name = "*" * (LONGEST // 2)
    assert len(name) == 512
    assert parse("\\*" * 512).name == name
    with pytest.raises(ValueError, match=r"^the pattern 'x{80}'… is longer than 1024 characters$"):
        parse("x" * (LONGEST + 1))


SHAPES = [
    "[",
    "[!",
    "[a",
    "[a-",
    "[]",
    "[!]",
    "[a]",
    "[\\]",
    "[\\a-",
    "]",
    "*a",
    "?*",
    "**",
    "\\",
    "\\*",
]


class Counted(str):  # noqa: SLOT000 - it counts in an attribute
    """A text that counts how often a parser has looked at it: no clock is asked."""

    looks = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.looks += 1
        return super().__getitem__(key)


def looks(text: str) -> int:
    """How often the parser looks at a part of the text."""
    counted = Counted(text)
    patterns.parse(counted)
    return counted.looks


def test_parsing_takes_a_time_that_grows_with_the_length():
    """Four times the text takes four times the steps, whatever it repeats."""
    for shape in SHAPES:
        short, long = looks(shape * 40), looks(shape * 160)
        assert 40 <= short <= long <= 4.5 * short, shape


def test_a_bracket_that_is_looked_for_again_and_again_is_noticed(monkeypatch):
    """A parser that looks for the end of each bracket takes sixteen times the steps."""

    def parse(text: str) -> None:
        for at, char in enumerate(text):
            if char == "[":
                patterns._one_of(text, at)

    monkeypatch.setattr(patterns, "parse", parse)
    with pytest.raises(AssertionError):
        test_parsing_takes_a_time_that_grows_with_the_length()
