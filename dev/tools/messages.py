"""`make messages`: the catalogues of translations; `--check`, in `make lint`, says what they lack.

Strings come from calls of gettext in Python and from tags of templates. Babel reads and writes the
catalogues, so nobody needs GNU gettext.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import read_mo, write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

PACKAGE: Final = Path(__file__).resolve().parents[2] / "django_redlock"
KEYWORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop")),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), ((1, "c"), 2)),
    **dict.fromkeys(("npgettext", "npgettext_lazy"), ((1, "c"), 2, 3)),
}
CALL: Final = re.compile(rf"\b(?:{'|'.join(KEYWORDS)})\(")
DJANGOS: Final = frozenset({"Home", "Search"})  # in Django's own catalogues
PLACEHOLDER: Final = re.compile(r"%\(\w+\)[a-z]|\{\w+(?:!\w)?(?::[^{}]*)?\}")
KEPT: Final = ("Language:", "Plural-Forms:", "MIME-Version:", "Content-")  # lines of a .po's head


def wanted(package: Path) -> Catalog:
    """Return every string that is to be translated, without translations."""
    catalog = Catalog()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.html")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":  # as code in which only the calls are code
            text = "\n".join(line.strip() for line in templatize(text).splitlines())
        if not CALL.search(text):  # most files: reading them as code takes seconds
            continue
        name = str(path.relative_to(package.parent))
        for _, message, _, context in extract("python", io.BytesIO(text.encode()), KEYWORDS):
            if message not in DJANGOS:
                catalog.add(message, locations=[(name, 1)], context=context)
    return catalog


def read(path: Path) -> Catalog:
    """Read a catalogue; one that is not there yet is empty."""
    language = path.parent.parent.name
    if not path.exists():
        head = f"# {language}: translations of django-redlock. First the terms, as they are used."
        return Catalog(locale=language, header_comment=head, fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


def text_of(catalog: Catalog) -> str:
    """Return the text of a .po; it has no date, so that it changes only with its strings."""
    file = io.BytesIO()
    write_po(file, catalog, width=100, include_lineno=False, ignore_obsolete=True)
    head, end, rest = file.getvalue().decode().partition("\n\n")
    kept = [line for line in head.split("\n") if line[:1] != '"' or line.startswith(KEPT, 1)]
    return "\n".join(kept) + end + rest


def updated(path: Path, strings: Catalog) -> str:
    """Return the text of a .po with these strings.

    What is new is empty or, by a guess, fuzzy; what is gone is dropped.
    """
    catalog = read(path)
    catalog.update(strings)
    return text_of(catalog)


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
    """Bring a catalogue up to date, with its .mo."""
    text = updated(path, strings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    found, made = path.with_suffix(".mo"), compiled(read(path))
    if not found.exists() or texts_of(found.read_bytes()) != texts_of(made):
        found.write_bytes(made)


def faults(path: Path, strings: Catalog) -> Iterator[str]:
    """Yield what is wrong with a catalogue."""
    if path.read_text(encoding="utf-8") != updated(path, strings):
        yield "its strings are not those of the package: make messages"
    catalog = read(path)
    for each in catalog:
        if not each.id:
            continue
        texts = each.id if isinstance(each.id, tuple) else (each.id,)
        forms = each.string if isinstance(each.string, tuple) else (each.string,)
        if not all(forms) or len(forms) != (catalog.num_plurals if len(texts) > 1 else 1):
            yield f"is not translated: {each.id!r}"
        elif each.fuzzy:
            yield f"is fuzzy: {each.id!r}"
        elif len({frozenset(PLACEHOLDER.findall(str(text))) for text in (texts[-1], *forms)}) > 1:
            yield f"has other placeholders: {each.id!r}"
    found = path.with_suffix(".mo")
    if not found.exists() or texts_of(found.read_bytes()) != texts_of(compiled(catalog)):
        yield f"{found.name} is not that of {path.name}: make messages"


def main(arguments: list[str] | None = None, package: Path = PACKAGE) -> None:
    """Update the catalogues of the package, or check them."""
    parser = argparse.ArgumentParser(prog="python -m dev.tools.messages", description=__doc__)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help="begin these: fr, pt_BR")
    parser.add_argument("--check", action="store_true", help="change nothing, and say what lacks")
    asked = parser.parse_args(arguments)
    strings, there = wanted(package), set(package.glob("locale/*/LC_MESSAGES/django.po"))
    if not asked.check:
        there |= {package / f"locale/{each}/LC_MESSAGES/django.po" for each in asked.languages}
        for path in there:
            update(path, strings)
    wrong = 0
    for path in sorted(there):
        found = list(faults(path, strings))
        name = path.relative_to(package.parent)
        print(f"{name}: {len(strings)} strings, {len(found)} faults")
        print("".join(f"{name}: {fault}\n" for fault in found), end="")
        wrong += len(found)
    if asked.check and wrong:
        sys.exit("Translate what lacks, and write: make messages")


if __name__ == "__main__":
    main()
