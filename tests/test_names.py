"""Retired words: none is an identifier of the package, and no docstring or comment uses one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import django_redlock
from tests.support.retired import EVERYWHERE, retired

PACKAGE = Path(django_redlock.__file__).parent
SOURCES = sorted(path for ending in ("py", "lua") for path in PACKAGE.rglob(f"*.{ending}"))
IDENTIFIER = re.compile(rf"_*(?:words?|lines?|{EVERYWHERE})_*", re.IGNORECASE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def identifiers(source: str, language: str) -> set[str]:
    """Every name in a source; of a Lua script, without its comments and strings."""
    if language == ".lua":
        return set(re.findall(r"[A-Za-z_]\w*", re.sub(r"--.*|'[^']*'", "", source)))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def retired_names(source: str, language: str) -> set[str]:
    """The identifiers that are a retired word, in any case, with or without underscores."""
    return set(filter(IDENTIFIER.fullmatch, identifiers(source, language)))


def prose(source: str, language: str) -> str:
    """The docstrings and comments of a source."""
    if language == ".lua":
        return " ".join(re.findall(r"--(.*)", source))
    documented = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = (token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
    # A sentence may go on in the next comment, as one of a docstring does in its next row.
    return "\n".join([*filter(None, map(ast.get_docstring, documented)), " ".join(comments)])


def named(path: Path) -> str:
    """The path of a source inside the package."""
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_identifier_is_a_retired_word(path):
    """Requests, connections and wake-ups are called so in code, as the glossary calls them."""
    assert retired_names(path.read_text(encoding="utf-8"), path.suffix) == set()


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_docstring_uses_a_retired_word(path):
    """Docstrings and comments use the terms of the glossary, as the pages do."""
    assert retired(re.sub(r"\s+", " ", prose(path.read_text("utf-8"), path.suffix))) == []


@pytest.mark.parametrize(
    ("source", "language", "found"),
    [
        ("def _word(Lines): line = passwords = headline", ".py", {"_word", "Lines", "line"}),
        ('"""word"""\nx = "line"  # stands', ".py", set()),
        ("local word = 'line' -- lines\nreturn wording", ".lua", {"word"}),
    ],
)
def test_a_retired_identifier_is_noticed(source, language, found):
    """As a whole identifier, and not inside a longer one, a text or a comment."""
    assert retired_names(source, language) == found


@pytest.mark.parametrize(
    ("source", "language", "found"),
    [
        ('"""Whoever stands\nin line."""', ".py", ["Whoever", "stands", "in line"]),
        ("class A:\n    def f(self):\n        '''An alarm.'''", ".py", ["alarm"]),
        ("x = 'a ghost'  # what came\n# of it", ".py", ["came of"]),
        ('def f(twin):\n    """Return ``twin``."""\n    return "a crew"', ".py", []),
        ("-- a tenancy\nlocal lane = 'rota'", ".lua", ["tenancy"]),
    ],
)
def test_a_retired_word_in_a_docstring_is_noticed(source, language, found):
    """In docstrings and comments, also at the end of a row; not in code nor in other texts."""
    assert retired(re.sub(r"\s+", " ", prose(source, language))) == found
