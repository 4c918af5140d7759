"""Which requests are equal: the fields of a view's key, and who asks."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from django_redlock.core.names import check_fields, used

if TYPE_CHECKING:
    from django.http import HttpRequest

DEFAULT_KEY: Final = "view:{who}:{method}:{path}"  # who first: nobody can spell another's name

_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def default_fields(request: HttpRequest, *_: Any, **__: Any) -> dict[str, Any]:
    """What ``DEFAULT_KEY`` is filled from."""
    return {"who": who(request), "method": request.method, "path": request.path}


def who(request: HttpRequest) -> str:
    """Who asks: the user, else the session, else the client's address.

    Each kind has its own names, and no part of them can run into the next one. A session key
    is as good as a password, so it is hashed.
    """
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated and user.pk is not None:
        return f"user:{quote(str(user.pk), safe='')}"
    session = getattr(request, "session", None)  # second: looking up the user has checked it
    if session is not None and session.session_key:
        return f"session:{hashlib.sha256(session.session_key.encode()).hexdigest()[:32]}"
    return f"address:{quote(request.META.get('REMOTE_ADDR') or '', safe='')}"


def view_fields(view: Callable[..., Any], names: Sequence[str]) -> Callable[..., dict[str, Any]]:
    """How the arguments of a view become the fields of its names.

    ``request`` is always one of them. Where the view takes any keyword, any name is allowed.

    Raises:
        ValueError: a field that nothing fills, or a name that is not a template.
    """
    parameters: list[inspect.Parameter] = []
    if not isinstance(view, functools.partial):  # method_decorator's: checked at decoration
        parameters = list(inspect.signature(view).parameters.values())
        _check(names, parameters)
    positional = [each.name for each in parameters if each.kind in _BY_POSITION]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}

    def fields(*args: Any, **kwargs: Any) -> dict[str, Any]:
        by_position = dict(zip(positional, args, strict=False))
        return defaults | by_position | kwargs | {"request": args[0]}

    return fields


def _check(names: Sequence[str], parameters: Sequence[inspect.Parameter]) -> None:
    known = {"request", *(each.name for each in parameters)}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        known |= {each for name in names for each in used(name) if each.isidentifier()}
    accepted = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(known)]
    check_fields(names, inspect.Signature(accepted))
