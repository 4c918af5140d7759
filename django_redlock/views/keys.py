"""Tell which requests are equal: the key of a view, and the client."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from asgiref.sync import iscoroutinefunction

from django_redlock.core.names import OF_UNSAVED, UNSAVED, check_fields, is_record, used
from django_redlock.locks.callables import check_call

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_redlock.locks.lock import Lock
    from django_redlock.locks.template import LockTemplate

Names: TypeAlias = "str | Sequence[str]"
Key: TypeAlias = "Names | Callable[..., Names] | Callable[..., Awaitable[Names]]"
DEFAULT_KEY: Final = "view:{client}:{method}:{path}"  # client first: a path cannot imitate it

_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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


class ViewKey:
    """The ``key`` of a view: makes the lock of a request.

    Args:
        template: makes locks, with the options of the view.
        key: a text with fields, several, or a function; None: ``DEFAULT_KEY``.
        strict: see ``core.names.fill``.

    Attributes:
        names: the names as they are written, with their fields.
        is_async: whether the key is a coroutine function.
        strict: as given.
    """

    def __init__(self, template: LockTemplate, key: Key | None, *, strict: bool = False) -> None:
        self._template = template
        self.strict: Final = strict
        self._function: Callable[..., Any] | None = key if callable(key) else None
        self._of_the_path = key is None
        self.is_async: Final = iscoroutinefunction(key)
        names: Any = "{key}" if callable(key) else DEFAULT_KEY if key is None else key
        self._lock: Final = template(names)  # which checks them
        self.names: Final[tuple[str, ...]] = (names,) if isinstance(names, str) else tuple(names)
        self._made_of = "" if callable(key) else ", ".join(self.names)

    def check(self, view: Callable[..., Any] | inspect.Signature) -> None:
        """Check the key against the arguments of a view. If it takes any, any field is allowed.

        Raises:
            TypeError: the function takes other arguments.
            ValueError: a field that nothing fills, or a name that is not a template.
        """
        if self._of_the_path:
            return
        signature = view if isinstance(view, inspect.Signature) else inspect.signature(view)
        parameters = list(signature.parameters.values())
        if self._function is not None:
            _check_function(self._function, parameters[1:])
            return
        known = {"request", "client", *signature.parameters}
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            known |= {each for name in self.names for each in used(name) if each.isidentifier()}
        only = inspect.Parameter.KEYWORD_ONLY
        accepted = [inspect.Parameter(name, only) for name in sorted(known)]
        check_fields(self.names, inspect.Signature(accepted))

    def reader(self, view: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return the function that makes the lock of a call of the view from its arguments.

        It raises ValueError for a request that lacks what the key needs. If the key is a coroutine
        function, so is this. Without a view, only arguments by name are fields.
        """
        function = self._function
        if function is None:
            fields = _fields_of_the_path if self._of_the_path else self._fields(view)
            made_of = self._made_of
            return lambda *args, **kwargs: self._lock.filled(
                fields(*args, **kwargs), template=made_of, strict=self.strict
            )
        if not self.is_async:
            return lambda *args, **kwargs: self._lock_of(function(*args, **kwargs))

        async def read(*args: Any, **kwargs: Any) -> Lock:
            return self._lock_of(await function(*args, **kwargs))

        return read

    def _fields(self, view: Callable[..., Any] | None) -> Callable[..., dict[str, Any]]:
        """Return the function that makes the values of the fields; an own ``client`` is kept."""
        parameters = [] if view is None else list(inspect.signature(view).parameters.values())
        positional = [each.name for each in parameters if each.kind in _BY_POSITION]
        own = {each.name: each.default for each in parameters if each.default is not each.empty}
        asks_client = any("{client" in name for name in self.names)

        def fields(*args: Any, **kwargs: Any) -> dict[str, Any]:
            by_position = dict(zip(positional, args, strict=False))
            values = own | by_position | kwargs | {"request": args[0]}
            if asks_client and "client" not in values:
                values["client"] = client(args[0])
            return values

        return fields

    def _lock_of(self, result: Any) -> Lock:
        """Return the lock of the names that the function returned; braces in them are text."""
        names = _checked_names(result)
        if len(names) == 1:
            return self._lock.filled({"key": names[0]}, template="")
        if self._template.options.limit is not None:  # no request can help it: a 500
            msg = f"limit takes one name, and key= returned {len(names)}: each has slots of its own"
            raise TypeError(msg)
        lock = self._template([f"{{key{i}}}" for i in range(len(names))])
        return lock.filled({f"key{i}": name for i, name in enumerate(names)}, template="")


def _fields_of_the_path(request: HttpRequest, *_: Any, **__: Any) -> dict[str, Any]:
    method = "GET" if request.method == "HEAD" else request.method  # the view does the same
    return {"client": client(request), "method": method, "path": request.path}


def _checked_names(names: Any) -> list[str]:
    """Return the names that a key function made; refuse what would be one lock for all."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        msg = f"key= must return a str, or a list of str, not {type(names).__name__}"
        if is_record(names):
            msg += ": write its primary key into a text, as in f'pay:{request.user.pk}'"
        raise TypeError(msg)
    if any(UNSAVED in name for name in found):
        raise ValueError(f"what key= returned {OF_UNSAVED}")  # a visitor may write so: a 400
    if not found or not all(found):
        raise ValueError("key= returned an empty name")
    return list(found)


def _check_function(key: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Check that a key function takes what the view takes after the request."""
    if not all(each.kind in _NAMED for each in parameters):  # the view takes anything
        return None
    with suppress(TypeError):  # with what may be left out
        return check_call("key", key, "request", rest=[each.name for each in parameters])
    required = [each.name for each in parameters if each.default is each.empty]
    return check_call("key", key, "request", rest=required)
