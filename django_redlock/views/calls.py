"""Check that a function of an option takes what it will be called with; tell who calls us."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_call(
    option: str, function: Callable[..., Any], *first: str, rest: Sequence[str] = ()
) -> None:
    """Check that the function takes these arguments.

    A function without a signature, as some of C, passes.

    Args:
        option: the name of the option.
        first: the arguments that are passed by position.
        rest: those that are passed by name, or by position.

    Raises:
        TypeError: it does not; the text says what to write.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
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


def check_key(key: Callable[..., Any], view: Callable[..., Any]) -> None:
    """Check that a function for ``key=`` takes what the view gets.

    Nothing is known of a view that takes any arguments, nor of method_decorator's partial.

    Raises:
        TypeError: it does not.
    """
    if isinstance(view, functools.partial):
        return None
    parameters = list(inspect.signature(view).parameters.values())[1:]
    if not all(each.kind in NAMED for each in parameters):
        return None
    with suppress(TypeError):  # with what may be left out
        return check_call("key", key, "request", rest=[each.name for each in parameters])
    needed = [each.name for each in parameters if each.default is each.empty]
    return check_call("key", key, "request", rest=needed)


def calling_line() -> str:
    """Return module and line of the code outside this package that is calling."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect's name for it is slow
    while frame.f_back is not None and _module(frame).partition(".")[0] == "django_redlock":
        frame = frame.f_back
    return f"{_module(frame)}, line {frame.f_lineno}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
