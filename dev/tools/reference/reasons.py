"""The tables of reasons, of ``core.reasons``: code, sentence, and what to do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from django_redlock.core.reasons import RIGHTS, ReasonCode

from .markdown import code, noted, table

TO_RIGHTS = "[Settings](settings.md#an-acl-user-for-the-nodes)"
HEADER = ("Code", "Sentence", "What to do, and what it means")


def tables() -> str:
    """Return a table for each group of codes, below the comment that begins the group."""
    more = noted([each.value for each in ReasonCode], "reasons", all_of_them=False)
    found = dict(groups())
    begins = noted(found, "reasons", "groups", all_of_them=False)
    parts = []
    for head, codes in found.items():
        rows = [(code(each), sentence(each), _do(each, more[each.value])) for each in codes]
        begin = f"{begins[head]}\n\n" if begins[head] else ""
        parts.append(f"## {head}\n\n{begin}{table(HEADER, rows)}")
    return "\n".join(parts)


def groups() -> Iterator[tuple[str, list[ReasonCode]]]:
    """Yield the groups of codes with the comments above them, in the order of the code."""
    head, codes = "", list[ReasonCode]()
    for line in inspect.getsource(ReasonCode).splitlines():
        comment = re.fullmatch(r" {4}# ([A-Z].*)\.", line)
        member = re.match(r" {4}([A-Z_]+) = \(", line)
        if comment:
            if codes:
                yield head, codes
            head, codes = comment[1], []
        elif member:
            codes.append(ReasonCode[member[1]])
    yield head, codes


def sentence(code: ReasonCode) -> str:
    """Return the sentence of a code, its data in italics."""
    text = code.sentence.replace("*", r"\*").replace(RIGHTS, TO_RIGHTS)
    return re.sub(r"\{(\w+)[^}]*\}", r"*\1*", text)


def _do(code: ReasonCode, note: str) -> str:
    action = f"{code.action[:1].upper()}{code.action[1:]}." if code.action else ""
    return f"{action} {note}".strip()
