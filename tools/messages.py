"""`make messages`: the catalogues of translations; `--check`, in `make lint`, says what they lack.

Strings come from calls in Python, from tags of templates, and from the tables whose texts are
translated where they are shown. Babel reads and writes the catalogues, so nobody needs GNU gettext.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_python
from babel.messages.mofile import read_mo, write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

from django_redlock.core import reasons
from django_redlock.inspection import recent, rows
from django_redlock.inspection.probe import Level, NodeState
from django_redlock.inspection.survey import LockStatus
from django_redlock.inspection.tasks import TaskState

PACKAGE: Final = Path(__file__).resolve().parent.parent / "django_redlock"
CONTEXT: Final = "redlock"  # of short words, and of the templates of reasons: see ``rows.word``
# What a call's arguments mean: "c" the context, "s" a text, "p" its plural.
CALLS: Final = {
    "_": "s",
    "gettext": "s",
    "gettext_lazy": "s",
    "gettext_noop": "s",
    "ngettext": "sp",
    "pgettext": "cs",
    "pgettext_lazy": "cs",
    "npgettext": "csp",
    "word": "s",
    "Sentence": "s",
}
CALL: Final = re.compile(rf"\b(?:{'|'.join(CALLS)})\(")
IN_CONTEXT: Final = frozenset({"word", "Sentence"})
DJANGOS: Final = frozenset({"Home", "Search"})  # in Django's own catalogues
PLACEHOLDER: Final = re.compile(r"%\(\w+\)[a-z]|\{\w+(?:!\w)?(?::[^{}]*)?\}")
KEPT: Final = ("Language:", "Plural-Forms:", "MIME-Version:", "Content-")  # lines of a .po's head

Found: TypeAlias = tuple[str, tuple[str, ...], str | None]  # the file, text and plural, context


# -- what is to be translated ---------------------------------------------------------------------


def in_code(package: Path) -> Iterator[Found]:
    """Yield the strings of the calls in Python, and of the tags of templates."""
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.html")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":  # as code in which only the calls are code
            text = "\n".join(line.strip() for line in templatize(text).splitlines())
        if not CALL.search(text):  # most files: reading them as code takes seconds
            continue
        name = str(path.relative_to(package.parent))
        calls: Any = extract_python(io.BytesIO(text.encode()), dict.fromkeys(CALLS), [], {})
        for _, call, given, _ in calls:
            arguments = given if isinstance(given, tuple) else (given,)
            meant = dict(zip(CALLS[call], arguments, strict=False))
            texts = tuple(meant[kind] for kind in "sp" if meant.get(kind))
            if texts and texts[0] not in DJANGOS:
                yield name, texts, CONTEXT if call in IN_CONTEXT else meant.get("c")


def in_tables() -> Iterator[Found]:
    """Yield the texts of the tables that are shown to people."""
    code, kinds = "django_redlock/core/reasons.py", "django_redlock/inspection/rows.py"
    for row in reasons.ReasonCode:
        yield from ((code, (text,), CONTEXT) for text in (row.sentence, row.action, row.brief))
    for more in (reasons.MORE, reasons.IF_EMPTY):
        yield from ((code, (text,), CONTEXT) for text in more.values())
    for values in (NodeState, Level, LockStatus, TaskState, recent.KINDS, [rows.WELL]):
        yield from ((kinds, (str(value),), CONTEXT) for value in values)
    columns = rows.STATUS_COLUMNS, rows.CHECK_COLUMNS, rows.LOCK_COLUMNS, rows.TASK_COLUMNS
    for heads in columns:
        yield from ((kinds, (head.replace("_", " "),), CONTEXT) for head in heads)


def wanted(package: Path) -> Catalog:
    """Return every string that is to be translated, without translations."""
    catalog = Catalog()
    for name, texts, context in [*in_code(package), *in_tables()]:
        if texts[0] and not re.fullmatch(r"\{\w+\}", texts[0]):
            text = texts if len(texts) > 1 else texts[0]
            catalog.add(text, locations=[(name, 1)], context=context)
    return catalog


# -- catalogues -----------------------------------------------------------------------------------


def catalogues(package: Path) -> list[Path]:
    """Return the catalogues that there are, one for each language."""
    return sorted(package.glob("locale/*/LC_MESSAGES/django.po"))


def read(path: Path) -> Catalog:
    """Read a catalogue; one that is not there yet is empty."""
    language = path.parent.parent.name
    if not path.exists():
        head = f"# {language}: translations of django-redlock. First the terms, as they are used."
        return Catalog(locale=language, header_comment=head, fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


def written(catalog: Catalog) -> str:
    """Return the text of a .po, which changes only when a string does."""
    file = io.BytesIO()
    write_po(file, catalog, width=100, include_lineno=False, ignore_obsolete=True)
    head, end, rest = file.getvalue().decode().partition("\n\n")
    lines = head.splitlines(keepends=False)
    kept = [line for line in lines if line[:1] != '"' or line.startswith(KEPT, 1)]
    return "\n".join(kept) + end + rest


def compiled(catalog: Catalog) -> bytes:
    """Return the .mo of a catalogue."""
    file = io.BytesIO()
    write_mo(file, catalog)
    return file.getvalue()


def texts_of(compiled: bytes) -> dict[object, object]:
    """Return what a .mo translates, without its head, which tells the version of Babel."""
    catalog = read_mo(io.BytesIO(compiled))
    return {(str(each.id), each.context): each.string for each in catalog if each.id}


def update(path: Path, strings: Catalog) -> None:
    """Bring a catalogue up to date, with its .mo; what is new is empty or, by a guess, fuzzy."""
    catalog = read(path)
    catalog.update(strings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(catalog), encoding="utf-8")
    found, made = path.with_suffix(".mo"), compiled(read(path))
    if not found.exists() or texts_of(found.read_bytes()) != texts_of(made):
        found.write_bytes(made)


# -- the check ------------------------------------------------------------------------------------


def faults(path: Path, strings: Catalog) -> Iterator[str]:
    """Yield what is wrong with a catalogue."""
    catalog = read(path)
    for each in strings:
        if each.id and catalog.get(each.id, each.context) is None:
            yield f"is missing: {each.id!r}"
    for each in catalog:
        if not each.id:
            continue
        if strings.get(each.id, each.context) is None:
            yield f"is in no source any more: {each.id!r}"
        yield from (f"{fault}: {each.id!r}" for fault in _faults_of(each, catalog.num_plurals))
    yield from (f"is obsolete: {each.id!r}" for each in catalog.obsolete.values())
    found = path.with_suffix(".mo")
    if not found.exists() or texts_of(found.read_bytes()) != texts_of(compiled(catalog)):
        yield f"{found.name} is not that of {path.name}"


def _faults_of(message: Message, plurals: int) -> Iterator[str]:
    """Yield what is wrong with a translation."""
    texts = message.id if isinstance(message.id, tuple) else (message.id,)
    forms = message.string if isinstance(message.string, tuple) else (message.string,)
    if not all(forms) or len(forms) != (plurals if len(texts) > 1 else 1):
        yield "is not translated"
        return
    if message.fuzzy:
        yield "is fuzzy"
    fields = set(PLACEHOLDER.findall(str(texts[-1])))
    for form in forms:
        if set(PLACEHOLDER.findall(str(form))) != fields:
            yield f"has other placeholders in {form!r}"


def main(arguments: list[str] | None = None, package: Path = PACKAGE) -> None:
    """Update the catalogues of the package, or check them."""
    parser = argparse.ArgumentParser(prog="python -m tools.messages", description=__doc__)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help="begin these: fr, pt_BR")
    parser.add_argument("--check", action="store_true", help="change nothing, and say what lacks")
    asked = parser.parse_args(arguments)
    strings = wanted(package)
    if not asked.check:
        new = [package / f"locale/{each}/LC_MESSAGES/django.po" for each in asked.languages]
        for path in sorted({*catalogues(package), *new}):
            update(path, strings)
    wrong = {path: list(faults(path, strings)) for path in catalogues(package)}
    for path, found in wrong.items():
        name = path.relative_to(package.parent)
        print(f"{name}: {len(strings)} strings, {len(found)} faults")
        print("".join(f"{name}: {fault}\n" for fault in found), end="")
    if asked.check and any(wrong.values()):
        sys.exit("Translate what lacks, and write: make messages")


if __name__ == "__main__":
    main()
