"""What the system checks say: their ids, texts and hints, read from the code that makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from django_redlock import conf
from django_redlock.checks import DRIFT
from django_redlock.leases.lease import RENEWALS

from .markdown import ROOT, table

PACKAGE: Final = ROOT / "django_redlock"
NUMBER: Final = re.compile(r"[EW]\d{3}")
# What a reader may call a name of the code; "": the text does without it.
READABLE: Final = {
    "DRIFT": f"{DRIFT:g}",
    "FLEETING": "why that does not last",
    "RENEWALS": f"{RENEWALS}",
    "__module__": "module",
    "_meta": "the model",
    "line": "the view",
    "more": "",
    "names": "task",
    "shown": "limits",
    "values": "value",
    "where": "the place in the code",
}
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
    return "\n".join(dict.fromkeys(lines))  # two places may say the same


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
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            yield from _of_function(function)


def _of_function(function: ast.FunctionDef) -> Iterator[Message]:
    texts = _texts(function)
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = {each.arg: each.value for each in node.keywords}
        number = given.get("id")
        if node.func.attr not in SHOWN or not isinstance(number, ast.Name):
            continue
        if NUMBER.fullmatch(number.id):
            hint = given.get("hint")
            hints = [] if hint is None else [_said(each, texts) for each in _branches(hint)]
            text = _said(node.args[0], texts)
            yield Message(number.id, text, tuple(each for each in hints if each))


def _texts(function: ast.FunctionDef) -> dict[str, ast.JoinedStr]:
    """Return the texts to which a function gives names, such as ``where``."""
    found: dict[str, ast.JoinedStr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            names = target.elts if both and isinstance(target, ast.Tuple) else [target]
            values = value.elts if both and isinstance(value, ast.Tuple) else [value]
            for name, text in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(text, ast.JoinedStr):
                    found[name.id] = text
    return found


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body)
        yield from _branches(value.orelse)
    else:
        yield value


def _said(value: ast.expr, texts: Mapping[str, ast.JoinedStr]) -> str:
    """Return a text of the code; what it fills in is in italics. "": it is made elsewhere."""
    if isinstance(value, ast.Constant):
        return _quoted(str(value.value))
    if not isinstance(value, ast.JoinedStr):
        return ""
    return _quoted(re.sub(r" See \x00CHECKS\x01\w+$", "", _filled(value, texts)))


def _filled(text: ast.JoinedStr, texts: Mapping[str, ast.JoinedStr]) -> str:
    parts = []
    for each in text.values:
        if isinstance(each, ast.Constant):
            parts.append(str(each.value))
        elif isinstance(each, ast.FormattedValue):
            name = each.value.id if isinstance(each.value, ast.Name) else ""
            if known := texts.get(name):
                parts.append(_filled(known, {}))
            elif called := _name(each.value):
                parts.append(f"\0{called}\1")
    return "".join(parts)


def _name(value: ast.expr) -> str:
    """Return what a reader may call a value."""
    found = "…"
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        found = READABLE.get(value.func.id, found)
    elif isinstance(value, ast.Name):
        found = READABLE.get(value.id, value.id)
    elif isinstance(value, ast.Attribute):
        inner = value.attr in {"name", "label", "path"}
        found = _name(value.value) if inner else READABLE.get(value.attr, value.attr)
    elif isinstance(value, ast.Subscript):
        key = value.slice
        is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
        found = str(ast.literal_eval(key)) if is_text else _name(value.value)
        if isinstance(value.value, ast.Attribute) and value.value.attr == "DEFAULTS":
            found = f"{conf.DEFAULTS[found]}"
    elif isinstance(value, ast.BinOp):
        found = f"{_name(value.left)} {_sign(value.op)} {_name(value.right)}"
    elif isinstance(value, ast.Constant):
        found = str(value.value)
    return found


def _sign(operator: ast.operator) -> str:
    return {"Mult": "×", "Div": "/", "Sub": "−", "Add": "+"}[type(operator).__name__]


def _quoted(text: str) -> str:
    """Return a text as Markdown: nothing in it is a sign but the italics of its data."""
    plain = re.sub(r"([\\`*_<>\[\]|{}])", r"\\\1", text)
    return re.sub(r"\x00(.*?)\x01", r"*\1*", plain)
