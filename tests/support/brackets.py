"""A language in which each string of ours is in brackets, so that all others are seen."""

from __future__ import annotations

from pathlib import Path

from babel.messages.catalog import Catalog

from dev.tools.messages import PACKAGE, compiled, wanted


def write(folder: Path) -> None:
    """Write its catalogue, as German."""
    made = Catalog(locale="de")
    for each in wanted(PACKAGE):
        if each.id:
            several = isinstance(each.id, tuple)
            text = tuple(f"⟦{form}⟧" for form in each.id) if several else f"⟦{each.id}⟧"
            made.add(each.id, text, context=each.context)
    messages = folder / "de/LC_MESSAGES"
    messages.mkdir(parents=True)
    (messages / "django.mo").write_bytes(compiled(made))
