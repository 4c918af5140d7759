"""What the system checks say: their ids, texts and hints, read from the code that makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from .markdown import ROOT, table

PACKAGE: Final = ROOT / "django_redlock"
NUMBER: Final = re.compile(r"[EW]\d{3}")
SHOWN: Final = frozenset({"Error", "Warning"})


class Message(NamedTuple):
    """One message of a check, with *data* in its texts."""

    number: str
    text: str
    hints: tuple[str, ...]


def section(number: str) -> str:
    """Return the heading of an id, what ``check`` prints, and what to do.

    Raises:
        ValueError: no check has the id.
    """
    found = [each for each in messages() if each.number == number]
    if not found:
        msg = f"no check has the id {number}"
        raise ValueError(msg)
    lines = [f"## {number}: {ids()[number]}\n"]
    for each in found:
        if each.text:
            lines.append(f"> {each.text}\n")
        if each.hints:
            lines.append(f"**Do:** {' Or: '.join(each.hints)}\n")
    return "\n".join(lines)


def overview() -> str:
    """Return the table of all ids, with the comment that the code has beside each."""
    deploy = _of_deploy()
    rows = [
        (
            f"[{number}](#{number.lower()})",
            "error" if number.startswith("E") else "warning",
            "`--deploy`" if number in deploy else "always",
            f"{meaning[:1].upper()}{meaning[1:]}.",
        )
        for number, meaning in sorted(ids().items())
    ]
    return table(("Id", "Level", "When", "What is wrong"), rows)


@cache
def ids() -> dict[str, str]:
    """Return all ids with their comments."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for number, comment in re.findall(
            r'^([EW]\d{3}): Final = "django_redlock\.\1"(?:  # (.*))?$',
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            # Two modules may have one id; the first comment tells.
            found[number] = found.get(number) or comment.removeprefix("--deploy: ")
    bare = [number for number, text in found.items() if not text]
    if bare:
        msg = f"these ids have no comment in the code: {bare}"
        raise ValueError(msg)
    return found


def _of_deploy() -> set[str]:
    text = (PACKAGE / "checks.py").read_text(encoding="utf-8")
    return set(re.findall(r"^([EW]\d{3}): .*# --deploy:", text, re.MULTILINE))


@cache
def messages() -> tuple[Message, ...]:
    """Return the messages of all checks, in the order of the code."""
    return tuple(each for path in sorted(PACKAGE.rglob("*.py")) for each in _of_file(path))


def _of_file(path: Path) -> Iterator[Message]:
    text = path.read_text(encoding="utf-8")
    if "checks." not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = {each.arg: each.value for each in node.keywords}
        number = given.get("id")
        if node.func.attr not in SHOWN or not isinstance(number, ast.Name):
            continue
        if NUMBER.fullmatch(number.id):
            hint = given.get("hint")
            hints = [] if hint is None else [_said(each) for each in _branches(hint)]
            yield Message(number.id, _said(node.args[0]), tuple(each for each in hints if each))


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body)
        yield from _branches(value.orelse)
    else:
        yield value


def _said(value: ast.expr) -> str:
    """Return a text of the code; what it fills in is in italics. "": it is made elsewhere."""
    if isinstance(value, ast.Constant):
        return _quoted(str(value.value))
    if not isinstance(value, ast.JoinedStr):
        return ""
    text = "".join(
        str(each.value) if isinstance(each, ast.Constant) else _data(each) for each in value.values
    )
    return _quoted(re.sub(r" See \x00CHECKS\x01\w+$", "", text))


def _data(value: ast.expr) -> str:
    if not isinstance(value, ast.FormattedValue):
        return ""
    return f"\0{_name(value.value)}\1"


def _name(value: ast.expr) -> str:
    """Return what a reader may call a value."""
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Attribute):
        return _name(value.value) if value.attr in {"name", "label", "path"} else value.attr
    if isinstance(value, ast.Subscript):
        key = value.slice
        return (
            str(key.value)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
            else (_name(value.value))
        )
    if isinstance(value, ast.BinOp):
        return f"{_name(value.left)} {_sign(value.op)} {_name(value.right)}"
    if isinstance(value, ast.Constant):
        return str(value.value)
    return "…"


def _sign(operator: ast.operator) -> str:
    return {"Mult": "×", "Div": "/", "Sub": "−", "Add": "+"}[type(operator).__name__]


def _quoted(text: str) -> str:
    """Return a text as Markdown: nothing in it is a sign but the italics of its data."""
    plain = re.sub(r"([\\`*_<>\[\]|{}])", r"\\\1", text)
    return re.sub(r"\x00(.*?)\x01", r"*\1*", plain)
