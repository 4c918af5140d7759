"""Check lock names, and fill in those of decorators.

The rule is the same everywhere. A name is 1 to 512 bytes of UTF-8 without control characters. A
name that a decorator builds from arguments may break the rule, because a client of the site chooses
the text; a digest then replaces it. Nothing is normalised: two spellings are two names.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
import string
import unicodedata
from collections.abc import Collection, Mapping
from decimal import Decimal
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import inspect
    from collections.abc import Iterable, Sequence

LONGEST: Final = 512  # bytes
MOST: Final = 128  # names in one lock
READABLE: Final = 80  # characters kept before a digest
_UNFILLED: Final = re.compile(r"(?:^|[:/.])(?:None|\[[^][]*\])(?:$|[:/.])|%[sdr]|\*$").search
UNSAVED: Final = " object (None)"  # how Django writes a model instance that has no primary key yet
OF_UNSAVED: Final = (
    "has a model instance in it that is not saved, and all such would share one lock: save it "
    "first, and write its primary key, as in f'invoice:{invoice.pk}'"
)


def check_names(name: object) -> tuple[str, ...]:
    """Return the names as a tuple.

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
        if is_record(name):
            msg += ": write its primary key into a text, as in f'user:{user.pk}'"
        elif callable(name):
            msg += ": a decorator has a name, as in @redlock('report:{year}')"
        raise TypeError(msg)
    if not 1 <= len(names) <= MOST:
        raise ValueError(f"a lock needs 1 to {MOST} names, not {len(names)}")
    checked = []
    for each in names:
        if not isinstance(each, str):
            msg = f"a lock's name must be a str, not {type(each).__name__}"
            if is_record(each):
                msg += ": write its primary key into a text, as in f'user:{user.pk}'"
            raise TypeError(msg)
        text = str(each)  # an enum's member is one text in an f-string and may hold another
        checked.append(text)
        objection = _objection(text)
        if objection:
            raise ValueError(objection)
    return tuple(checked)


def is_record(value: object) -> bool:
    """Tell whether this is a model instance, or a user without a primary key; also a lazy one.

    The core knows no Django, so it goes by what all models have. ``AnonymousUser`` is no model.
    """
    kind = getattr(value, "__class__", object)  # type() is that of the wrapper
    if isinstance(value, type) or not hasattr(kind, "pk"):
        return False
    return hasattr(kind, "_meta") or (hasattr(kind, "is_anonymous") and value.pk is None)  # type: ignore[attr-defined]


def refuse_record(field: str, value: object, owner: object = None) -> None:
    """Refuse a field whose text is no identity.

    That of a model instance is what its ``__str__`` makes: it may change while the lock is held,
    and two instances may share it. All instances that are not saved share the primary key None.

    Args:
        field: as it is written.
        value: of the field.
        owner: what has the field as its attribute.

    Raises:
        NoIdentity: the value is a model instance, several, the primary key of an unsaved one, or
            an object whose text is its address.
    """
    kind = value.__class__.__name__
    if value is None:
        if hasattr(owner, "_meta") and is_record(owner):
            why = f"None, because the {owner.__class__.__name__} is not saved: save it first"
            raise NoIdentity(field, why)
    elif is_record(value):
        why = f"a {kind}, whose text may change, and be that of others: write {{{field}.pk}}"
        if value.pk is None:  # type: ignore[attr-defined]
            why += ", or {client} in the key of a view, which tells anonymous visitors apart"
        raise NoIdentity(field, why)
    elif _has_records(value):
        why = f"a {kind} of model instances, whose text may change: write their primary keys"
        raise NoIdentity(field, why)
    elif _is_addressed(value):
        why = f"a {kind}, whose text is its address in this process: write what identifies it"
        raise NoIdentity(field, why)


class NoIdentity(Exception):  # noqa: N818 - internal: it leaves this package as a TypeError
    """The text of a field's value cannot tell what is locked."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{{{field}}} in a lock's name is {why}")


def _has_records(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_record, value))
    return hasattr(type(value), "as_manager")  # a QuerySet, whose text is cut off besides


def _is_addressed(value: object) -> bool:
    """Tell whether the text of an object is that of ``object``: its class and its address."""
    kind = type(value)
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_is_addressed, value))
    if isinstance(value, FunctionType | MethodType | BuiltinFunctionType):
        return True  # as of a property without its decorator
    return (
        kind.__str__ is object.__str__
        and kind.__repr__ is object.__repr__
        and kind.__format__ is object.__format__
    )


def did_you_mean(misspelt: object, known: Iterable[str]) -> str:
    """Return a question with the known one that this is like, or ""; capitals do not count."""
    by_capitals = {each.upper(): each for each in known}
    near = difflib.get_close_matches(str(misspelt).upper(), by_capitals, n=1)
    return f" (did you mean {by_capitals[near[0]]!r}?)" if near else ""


def check_alias(alias: object) -> None:
    """Check that an alias is a text.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(alias, str):
        msg = f"an alias of REDLOCK must be a str, as in 'default', not {type(alias).__name__}"
        raise TypeError(msg)


def looks_unfilled(name: str) -> bool:
    """Return whether a name looks as if its text were not what the author meant.

    Such a name is one for all callers: f"order:{None}", f"order:{[1, 2]}", "order:%s", "order:*".
    """
    return _UNFILLED(name) is not None


def check_no_fields(names: Sequence[str]) -> None:
    """Refuse braces outside a decorator: a forgotten ``f`` would lock one name for all.

    So would the text of a model instance that is not saved.

    Raises:
        ValueError: a name has a brace, or is that of such an instance.
    """
    for name in names:
        if UNSAVED in name:
            msg = f"the lock name {name!r} {OF_UNSAVED}"
            raise ValueError(msg)
        if "{" in name or "}" in name:
            msg = (
                f"the lock name {name!r} has braces, which only a decorator fills in; "
                "write an f-string, or leave the braces out"
            )
            raise ValueError(msg)


def check_fields(names: Sequence[str], signature: inspect.Signature) -> None:
    """Check that every field of a decorator's template is a parameter of the function.

    Raises:
        ValueError: it is not, or the template cannot be read.
    """
    for name in names:
        try:
            parts = list(string.Formatter().parse(name))
        except ValueError as error:
            msg = f"the lock name {name!r} is not a template: {error}"
            raise ValueError(msg) from None
        _check_parameters(name, [part[1] for part in parts], signature)
        _check_parameters(name, list(used(name)), signature)


def _check_parameters(
    name: str, fields: Sequence[str | None], signature: inspect.Signature
) -> None:
    for field in fields:
        if field is not None and root(field) not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            meant = did_you_mean(root(field), signature.parameters)
            msg = f"the lock name {name!r} uses {{{field}}}{meant}; the parameters are: {known}"
            raise ValueError(msg)


def check_values(names: tuple[str, ...], values: Mapping[str, object]) -> None:
    """Check that a template and its values belong together: each field has one, and no more.

    A template without a field is refused: it is the text of an f-string, or a name.

    Raises:
        TypeError: a field has no value, or a value no field.
        ValueError: it is no template.
    """
    fields = _fields(names)
    shown = names[0] if len(names) == 1 else list(names)
    if not fields:
        msg = (
            f"the template {shown!r} has no field, as {{pk}}: leave out the f before the quotes, "
            "and give the values by name, as in named('invoice:{pk}', pk=42); a name without "
            "values is no template: redlock('nightly')"
        )
        raise ValueError(msg)
    missing = [field for field in fields if field not in values]
    if missing:
        msg = f"the template {shown!r} needs a value: write {missing[0]}=…"
        if not values:
            msg += "; a decorator fills it from arguments: @redlock('invoice:{pk}')"
        raise TypeError(msg)
    surplus = [value for value in values if value not in fields]
    if surplus:
        msg = f"the template {shown!r} has no field {{{surplus[0]}}}"
        meant = did_you_mean(surplus[0], fields)
        msg += f"{meant}; an option is given before, as in redlock.using(ttl=30).named(…)"
        raise TypeError(msg)


@functools.lru_cache(maxsize=256)  # templates stand in the code: there are few
def _fields(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(field for name in names for field in used(name)))


class _Anything:
    """Something that has every attribute and every item, and can be formatted in every way."""

    def __getattribute__(self, _: str) -> _Anything:
        return self

    def __getitem__(self, _: object) -> _Anything:
        return self

    def __format__(self, _: str) -> str:
        return ""


class _Fields(dict[str, _Anything]):
    """Arguments of every name; afterwards, those that were used."""

    def __missing__(self, name: str) -> _Anything:
        self[name] = _Anything()
        return self[name]


def used(name: str) -> Iterable[str]:
    """Return the parameters that a template uses, those within a format included.

    Raises:
        ValueError: no arguments whatever could fill the template.
    """
    fields = _Fields()
    try:
        name.format_map(fields)
    except ValueError as error:
        msg = f"the lock name {name!r} is not a template: {error}"
        raise ValueError(msg) from None
    return fields


def has_fields(name: str) -> bool:
    """Return True if a template that was checked has a field."""
    return bool(_fields((name,)))


def root(field: str) -> str:
    """Return the parameter with which a field begins: ``request`` of ``request.user.pk``."""
    return field.replace("[", ".").split(".", 1)[0]


class _Filler(string.Formatter):
    """Fills in fields as ``str.format_map`` does, and looks at each value before it is text."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        found = super().get_field(field_name, args, kwargs)
        owner = None
        if found[0] is None and "." in field_name:
            owner, _ = super().get_field(field_name.rpartition(".")[0], args, kwargs)
        refuse_record(field_name, found[0], owner)
        self.refuse_more(field_name, found[0])
        if isinstance(found[0], float):
            return as_stored(found[0]), found[1]
        return found

    def refuse_more(self, field: str, value: object) -> None:
        """Refuse nothing else: the arguments of a function may be anything."""


class _StrictFiller(_Filler):
    """Fills in values that were given for this name alone: each is to be one text or number."""

    def refuse_more(self, field: str, value: object) -> None:
        """Refuse None, of which there are many, and what has several values in it."""
        if value is None:
            raise NoIdentity(field, "None: all locks without a value would be one")
        if isinstance(value, Collection) and not isinstance(value, str):
            kind = value.__class__.__name__
            why = f"a {kind}: write one text or number; several names are a list of templates"
            raise NoIdentity(field, why)


def as_stored(number: float) -> float:
    """Return a number as a column of jsonb gives it back: of 1e16 and above an int."""
    is_written_out = number.is_integer() and "e" in repr(number)
    return int(Decimal(repr(number))) if is_written_out else number


PLAIN: Final = frozenset({str, int})  # types whose text is what it says
_filler: Final = _Filler()
_strict: Final = _StrictFiller()


def fill(template: str, arguments: Mapping[str, object], *, strict: bool = False) -> str:
    """Return the name that a template is for some values; with a digest if it cannot be a name.

    Args:
        template: with fields.
        arguments: the values of the fields, by name.
        strict: whether None, bytes and collections are refused, too.

    Raises:
        TypeError: the text of a value is no identity: a model instance, say.
        ValueError: an argument lacks what a field names, or has no such format.
    """
    try:
        if _is_plain(template, arguments):  # in C, and nothing is to be looked at
            name = template.format_map(arguments)
        else:
            name = (_strict if strict else _filler).vformat(template, (), arguments)
    except NoIdentity as error:
        raise TypeError(str(error)) from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        msg = f"the lock name {template!r} cannot be filled: {_unfilled(template, arguments)}"
        raise ValueError(msg) from error
    except Exception as error:  # of an argument's own code
        error.add_note(f"while the lock name {template!r} was being filled")
        raise
    return shortened(name)


def _is_plain(template: str, arguments: Mapping[str, object]) -> bool:
    """Return True if each field is an argument itself, and that a text or a number."""
    if "." in template or "[" in template:
        return False
    return all(type(arguments.get(each)) in PLAIN for each in _fields((template,)))


def shortened(name: str) -> str:
    """Return the text, or its beginning and a digest of it if it is no valid name."""
    if not _objection(name):
        return name
    plain = "".join(c if _printable(c) else "?" for c in name[:READABLE])
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain}~{digest}"


def _unfilled(template: str, arguments: Mapping[str, object]) -> str:
    """Return which field it was, and what it lacks, without quoting an argument."""
    for _, field, form, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        if root(field) not in arguments:
            meant = did_you_mean(root(field), arguments)
            return f"{{{field}}} has no value{meant}; there are: {', '.join(arguments) or 'none'}"
        try:
            found, _ = string.Formatter().get_field(field, (), arguments)
        except AttributeError:
            return f"{{{field}}} names an attribute that is not there"
        except (LookupError, TypeError, ValueError):
            return f"{{{field}}} names an item that is not there"
        try:
            whole = f"{{0{f'!{conversion}' if conversion else ''}:{form}}}"
            whole.format(found, **arguments)
        except (AttributeError, LookupError, TypeError, ValueError):
            return f"a {type(found).__name__} does not have the format of {{{field}:{form}}}"
    return "an argument does not have what a field names"


def _objection(name: str) -> str:
    """Return why this can be no name; "" if it can."""
    if not name:
        return f"the lock name {name!r} is empty"
    if len(name) <= LONGEST:  # else the text may have millions of characters
        if not (name.isprintable() or all(map(_printable, name))):
            return f"the lock name {name[:READABLE]!r} has control characters"
        if len(name.encode()) <= LONGEST:
            return ""
    text = name[:READABLE]
    return f"the lock name {text!r} is longer than {LONGEST} bytes"


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cs"}
