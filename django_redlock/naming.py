"""What a lock may be called.

One rule for every way in. A name is 1 to 512 bytes of UTF-8 without control characters; what
a decorator builds from arguments may break that, and is then replaced by a digest, because
there a stranger chooses the text. Nothing is normalised: two spellings are two names.
"""

from __future__ import annotations

import hashlib
import string
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping, Sequence

LONGEST: Final = 512  # bytes
MOST: Final = 128  # names in one lock
READABLE: Final = 80  # characters kept before a digest


def check_names(name: object) -> tuple[str, ...]:
    """The names as a tuple.

    Raises:
        TypeError: not a string, nor a list or tuple of strings.
        ValueError: empty, too long, too many, or with control characters.
    """
    if isinstance(name, str):
        names: Sequence[object] = (name,)
    elif isinstance(name, list | tuple):
        names = name
    else:
        msg = f"a lock's name must be a str or a list of str, not {type(name).__name__}"
        raise TypeError(msg)
    if not 1 <= len(names) <= MOST:
        msg = f"a lock needs 1 to {MOST} names, not {len(names)}"
        raise ValueError(msg)
    checked = []
    for each in names:
        if not isinstance(each, str):
            msg = f"a lock's name must be a str, not {type(each).__name__}"
            raise TypeError(msg)
        text = str(each)  # an enum's member is one text in an f-string and may hold another
        checked.append(text)
        reason = _objection(text)
        if reason:
            msg = f"the lock name {each[:READABLE]!r} {reason}"
            raise ValueError(msg)
    return tuple(checked)


def check_no_fields(names: Sequence[str]) -> None:
    """Refuse braces outside a decorator: a forgotten ``f`` would lock one name for all.

    Raises:
        ValueError: a name has a brace.
    """
    for name in names:
        if "{" in name or "}" in name:
            msg = (
                f"the lock name {name!r} has braces, which only a decorator fills in; "
                "write an f-string, or leave the braces out"
            )
            raise ValueError(msg)


def check_fields(names: Sequence[str], signature: inspect.Signature) -> None:
    """See that every field of a decorator's template is a parameter of the function.

    Raises:
        ValueError: it is not, or the template cannot be read.
    """
    for name in names:
        try:
            parts = list(string.Formatter().parse(name))
        except ValueError as error:
            msg = f"the lock name {name!r} is not a template: {error}"
            raise ValueError(msg) from None
        for _, field, _, _ in parts:
            if field is not None and root(field) not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                msg = f"the lock name {name!r} uses {{{field}}}; the parameters are: {known}"
                raise ValueError(msg)


def root(field: str) -> str:
    """The parameter with which a field begins: ``request`` of ``request.user.pk``."""
    return field.replace("[", ".").split(".", 1)[0]


def fill(template: str, arguments: Mapping[str, object]) -> str:
    """A decorator's name for one call; a digest where the text would not do as a name."""
    name = template.format_map(arguments)
    if not _objection(name):
        return name
    plain = "".join(c if _printable(c) else "?" for c in name)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain[:READABLE]}~{digest}"


def _objection(name: str) -> str:
    if not name:
        return "is empty"
    if not (name.isprintable() or all(map(_printable, name))):
        return "has control characters"
    if len(name.encode()) > LONGEST:
        return f"is longer than {LONGEST} bytes"
    return ""


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cs"}
