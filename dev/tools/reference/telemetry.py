"""The table of the metrics, of the instruments that the package makes."""

from __future__ import annotations

import ast
import re
from typing import Final, NamedTuple

from . import markdown
from .markdown import ROOT, code, noted

SOURCE: Final = ROOT / "django_redlock" / "otel.py"
KINDS: Final = {"_seconds": "histogram", "create_counter": "counter", "_gauge": "gauge"}
LOCK: Final = ("redlock.alias", "redlock.template")
NODE: Final = ("redlock.alias", "redlock.node")
MORE: Final = re.compile(r"`(redlock\.\w+|error\.type)`")  # attributes that a note names


class Metric(NamedTuple):
    """One instrument."""

    name: str
    kind: str
    unit: str


def metrics() -> list[Metric]:
    """Return the instruments, in the order in which the code makes them."""
    found = []
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            texts = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            if called in KINDS and texts and texts[0].startswith("redlock."):
                unit = "s" if called == "_seconds" else texts[1]
                found.append((node.lineno, Metric(texts[0], KINDS[called], unit.strip("{}"))))
    return [metric for _, metric in sorted(found)]


def table() -> str:
    """Return the table of all metrics."""
    found = metrics()
    about = noted([each.name for each in found], "metrics")
    return markdown.table(
        ("Metric", "Kind, unit", "What it says", "Attributes"),
        (
            (
                code(each.name),
                each.kind + (", s" if each.unit == "s" else ""),
                about[each.name],
                ", ".join(map(code, attributes(each.name, about[each.name]))),
            )
            for each in found
        ),
    )


def attributes(name: str, note: str) -> list[str]:
    """Return the attributes of a metric: what all have, and what its note names."""
    return [*(NODE if ".node." in name else LOCK), *MORE.findall(note)]
