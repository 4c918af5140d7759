"""The lists of tests behind a promise: each with what its docstring says that it proves."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.verdicts import functions_with

from .markdown import ROOT, of_docstring


def tests(*ids: str) -> str:
    """Return a list of tests, each with what it proves, and whether `make nightly` alone plays it.

    Args:
        ids: of tests, as ``tests/nodes/test_votes.py::test_a_vote``.

    Raises:
        ValueError: there is no such test, or it has no docstring.
    """
    return "\n".join(f"- {_proves(each)} `{each}`{_nightly(each)}" for each in ids)


def _proves(test: str) -> str:
    path, _, name = test.partition("::")
    said = _docstrings(path).get(name)
    if not said:
        msg = f"there is no test {test} with a docstring"
        raise ValueError(msg)
    return of_docstring(said.partition("\n\n")[0])


def _nightly(test: str) -> str:
    path, _, name = test.partition("::")
    marked = functions_with({"nightly"}, ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return " (nightly)" if marked is None or name in marked else ""


@cache
def _docstrings(path: str) -> dict[str, str]:
    file = ROOT / path
    if not file.is_file():
        return {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        each.name: ast.get_docstring(each) or ""
        for each in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(each, functions)
    }
