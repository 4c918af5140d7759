"""Decorate functions: check that the body runs while it is called or awaited, and run it so."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django_redlock.core.names import check_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import FrameType


def calling_frame() -> tuple[FrameType, int]:
    """Return the innermost frame outside this package, and its ``stacklevel`` for the caller."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - inspect's name for it is slow
    while frame.f_back is not None and module_of(frame).partition(".")[0] == "django_redlock":
        frame, level = frame.f_back, level + 1
    return frame, level


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__"))


def check_call(
    option: str, function: Callable[..., Any], *first: str, rest: Sequence[str] = ()
) -> None:
    """Check that the function of an option takes these arguments; the rest come in either way.

    Raises:
        TypeError: it does not; the text says what to write.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions that are written in C
        return
    with suppress(TypeError):
        signature.bind(*first, *rest)
        return
    try:
        signature.bind(*first, **dict.fromkeys(rest))
    except TypeError as error:
        arguments = ", ".join((*first, *rest))
        msg = (
            f"{option} is a function that takes {signature}, and is called with ({arguments}): "
            f"{error}"
        )
        if inspect.ismethod(function):
            msg += "; in a class, write staticmethod(function)"
        raise TypeError(msg) from None


def is_async(function: Callable[..., object]) -> bool:
    """Return True if ``function`` is a coroutine function, or has an ``async def __call__``.

    Raises:
        TypeError: it is a class or a generator function, or cannot be called.
    """
    if isinstance(function, type) or not callable(function):
        msg = f"{function!r} is no function: write the decorator right above 'def'"
        raise TypeError(msg)
    if hasattr(function, "apply_async") and hasattr(function, "delay"):
        msg = (
            "this is a Celery task already, and its messages would know nothing of the lock: write "
            "the decorator below @shared_task, or @locked_task(...) there"
        )
        raise TypeError(msg)
    called = (function, type(function).__call__)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called):
        name = getattr(function, "__qualname__", repr(function))
        msg = (
            f"{name} is a generator function: its body would run after the lock is released; "
            "use 'with' or 'async with' inside it"
        )
        raise TypeError(msg)
    return any(map(inspect.iscoroutinefunction, called))


def finished(result: object, function: Callable[..., object]) -> object:
    """Return the result of a plain function, whose body has run.

    Raises:
        TypeError: the result is a coroutine, which would run after the release.
    """
    if not inspect.iscoroutine(result):
        return result
    result.close()
    name = getattr(function, "__qualname__", repr(function))
    msg = (
        f"{name} returned a coroutine, whose body would run after the lock is released; "
        "decorate the 'async def' itself"
    )
    raise TypeError(msg)


def arguments_of(
    function: Callable[..., Any], names: Sequence[str]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, Any]]:
    """Return what binds the arguments of a call of ``function`` to its parameters.

    Raises:
        ValueError: a field of the names is no parameter of the function.
    """
    signature = inspect.signature(function)
    check_fields(names, signature)

    def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    return arguments


def run_under(
    function: Callable[..., Any],
    manager_of: Callable[[tuple[Any, ...], Mapping[str, Any]], AbstractContextManager[Any]],
) -> Callable[..., Any]:
    """Wrap a plain function; each call runs in the context that its arguments make."""

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with manager_of(args, kwargs):
            return finished(function(*args, **kwargs), function)

    return locked


def await_under(
    function: Callable[..., Any],
    manager_of: Callable[[tuple[Any, ...], Mapping[str, Any]], AbstractAsyncContextManager[Any]],
) -> Callable[..., Any]:
    """Wrap a coroutine function as ``run_under`` does."""

    @functools.wraps(function)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        async with manager_of(args, kwargs):
            return await function(*args, **kwargs)

    return locked
