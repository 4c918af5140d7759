"""Tell which requests are equal: the fields of a view's key, and the client.

A field of a key may have a default, as in ``{request.headers[X-Order]|none}``, for a request that
lacks what it names. ``str.format`` knows no such thing: the field is replaced by one whose value
is looked up first.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from django_redlock.core.names import (
    OF_UNSAVED,
    UNSAVED,
    NoIdentity,
    check_fields,
    is_record,
    refuse_record,
    used,
)

if TYPE_CHECKING:
    from django.http import HttpRequest

Names: TypeAlias = "str | Sequence[str]"
Key: TypeAlias = "Names | Callable[..., Names] | Callable[..., Awaitable[Names]]"
DEFAULT_KEY: Final = "view:{client}:{method}:{path}"  # client first: a path cannot imitate it

_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def default_fields(request: HttpRequest, *_: Any, **__: Any) -> dict[str, Any]:
    """Return the values of the fields of ``DEFAULT_KEY``."""
    method = "GET" if request.method == "HEAD" else request.method  # the view does the same
    return {"client": client(request), "method": method, "path": request.path}


def client(request: HttpRequest) -> str:
    """Identify the client: the user, else the session, else the address.

    Each of the three has names of its own, and a value cannot run into the next field. A session
    key is as good as a password, so it is hashed.
    """
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated and user.pk is not None:
        return f"user:{quote(str(user.pk), safe='')}"
    session = getattr(request, "session", None)  # second: looking up the user has checked it
    if session is not None and session.session_key:
        return f"session:{hashlib.sha256(session.session_key.encode()).hexdigest()[:32]}"
    return f"address:{quote(request.META.get('REMOTE_ADDR') or '', safe='')}"


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key with fields.

    Attributes:
        names: for ``str.format``; each field with a default is replaced.
        plain: the same with its fields as they are written, less the defaults.
        defaults: what replaces them: the field, and the text if the request lacks it.
    """

    names: str | tuple[str, ...]
    plain: tuple[str, ...]
    defaults: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, key: Any) -> KeyTemplate:
        """Split the defaults off; what is no text is left for the lock to refuse."""
        defaults: dict[str, tuple[str, str]] = {}
        if isinstance(key, str):
            name, plain = _split(key, defaults)
            return cls(name, (plain,), defaults)
        if not isinstance(key, list | tuple) or not all(isinstance(each, str) for each in key):
            return cls(key, (), defaults)
        split = [_split(each, defaults) for each in key]
        return cls(tuple(each[0] for each in split), tuple(each[1] for each in split), defaults)

    @property
    def fields(self) -> frozenset[str]:
        """Return the arguments of the view that it needs."""
        optional = {name for field, _ in self.defaults.values() for name in used(f"{{{field}}}")}
        named = {each for name in self.plain for each in used(name)}
        return frozenset(named - optional - {"request", "client"})

    def reader(self, view: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        """Return the function that makes the fields from the arguments of a call of the view.

        ``request`` is always a field, and so is ``client``, unless the view has an argument of
        that name. If the view takes any keyword, any field is allowed.

        Raises:
            ValueError: a field that nothing fills, or a name that is not a template.
        """
        parameters: list[inspect.Parameter] = []
        if not isinstance(view, functools.partial):  # method_decorator's: checked at decoration
            parameters = list(inspect.signature(view).parameters.values())
            _check(self.plain, parameters)
        positional = [each.name for each in parameters if each.kind in _BY_POSITION]
        own = {each.name: each.default for each in parameters if each.default is not each.empty}
        asks_client = any("{client" in name for name in self.plain)

        def fields(*args: Any, **kwargs: Any) -> dict[str, Any]:
            by_position = dict(zip(positional, args, strict=False))
            values = own | by_position | kwargs | {"request": args[0]}
            if asks_client and "client" not in values:
                values["client"] = client(args[0])
            for name, (field, text) in self.defaults.items():
                values[name] = _found(field, values, text)
            return values

        return fields


def _split(name: str, defaults: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """Return the name with replaced fields, and the name without defaults; note the defaults."""
    if "|" not in name:
        return name, name
    try:
        parts = list(string.Formatter().parse(name))
    except ValueError:  # no template, which the check of the fields tells
        return name, name
    made, plain = [], []
    for literal, field, form, conversion in parts:
        text = literal.replace("{", "{{").replace("}", "}}")
        made.append(text)
        plain.append(text)
        if field is None:
            continue
        rest = f"{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}"
        where, bar, default = field.rpartition("|")
        replaced = f"{len(defaults)}|"  # the name of no argument
        if bar and "]" not in default:  # else the bar is part of an item's key
            defaults[replaced] = where, default
        else:
            where = replaced = field
        made.append(f"{{{replaced}{rest}}}")
        plain.append(f"{{{where}{rest}}}")
    return "".join(made), "".join(plain)


def _found(field: str, values: Mapping[str, Any], default: str) -> Any:
    """Return what the field names, or the default where it is missing or None."""
    try:
        found, _ = string.Formatter().get_field(field, (), values)
    except (AttributeError, LookupError, TypeError, ValueError):
        return default
    if found is None:
        return default
    try:
        refuse_record(field, found)
    except NoIdentity as error:
        raise TypeError(str(error)) from None
    return found


def _check(names: Sequence[str], parameters: Sequence[inspect.Parameter]) -> None:
    known = {"request", "client", *(each.name for each in parameters)}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        known |= {each for name in names for each in used(name) if each.isidentifier()}
    accepted = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(known)]
    check_fields(names, inspect.Signature(accepted))


def check_result(names: Any) -> list[str]:
    """Return the names that a key function made.

    Raises:
        TypeError: it returned no text, nor a list of texts, or that of an unsaved model instance.
        ValueError: a text is empty, or the list is: all such requests would share one lock.
    """
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        msg = f"key= must return a str, or a list of str, not {type(names).__name__}"
        if is_record(names):
            msg += ": write its primary key into a text, as in f'pay:{request.user.pk}'"
        raise TypeError(msg)
    if any(UNSAVED in name for name in found):
        msg = f"what key= returned {OF_UNSAVED}"
        raise TypeError(msg)
    if not found or not all(found):
        msg = "key= returned an empty name"
        raise ValueError(msg)
    return list(found)
