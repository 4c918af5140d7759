"""The lists of tests behind a promise: each with what its docstring says that it proves."""

from __future__ import annotations

import ast
from functools import cache

from .markdown import ROOT, of_docstring


def tests(*ids: str) -> str:
    """Return a list of tests.

    Args:
        ids: of tests, as ``tests/nodes/test_votes.py::test_a_vote``.

    Raises:
        ValueError: there is no such test, or it has no docstring.
    """
    return "\n".join(f"- {_proves(each)} `{each}`" for each in ids)


def _proves(test: str) -> str:
    path, _, name = test.partition("::")
    said = _docstrings(path).get(name)
    if not said:
        msg = f"there is no test {test} with a docstring"
        raise ValueError(msg)
    return of_docstring(said.partition("\n\n")[0])


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
