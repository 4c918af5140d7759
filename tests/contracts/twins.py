"""The blocking methods, each carried out by its twin for asyncio; so one list proves both."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate

T = TypeVar("T")


class Loops:
    """An event loop for each thread that asks for one; between two calls it stands still."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[asyncio.Runner] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Carry out a coroutine as if it were part of the caller, which keeps its leases."""
        runner = getattr(self._mine, "runner", None)
        if runner is None:
            runner = self._mine.runner = asyncio.Runner()
            self._all.append(runner)
        inside = contextvars.copy_context()
        try:
            return runner.run(coroutine, context=inside)
        finally:
            context._stack.set(inside.get(context._stack, ()))

    def close(self) -> None:
        """Shut all of them down, once their threads have ended."""
        while self._all:
            self._all.pop().close()


@contextmanager
def by_asyncio() -> Iterator[None]:
    """Let ``acquire`` and its like run ``aacquire`` and its like, on a loop of the thread."""
    loops = Loops()

    def instead(kind: type, name: str, duplicate_of: str) -> None:
        blocking, of_task = getattr(kind, name), getattr(kind, duplicate_of)

        @functools.wraps(blocking)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(threading.current_thread(), threading._DummyThread):
                return blocking(self, *args, **kwargs)  # the watchdog remains a thread
            return loops.run(of_task(self, *args, **kwargs))

        patch.setattr(kind, name, method)

    decorate: Callable[[Lock, Any], Any] = Lock.__call__

    def decorator(lock: Lock, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return decorate(lock, function)  # type: ignore[no-any-return]

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args, **kwargs)

        locked = decorate(lock, later)
        assert inspect.iscoroutinefunction(locked)

        @functools.wraps(locked)
        def call(*args: Any, **kwargs: Any) -> Any:
            return loops.run(locked(*args, **kwargs))

        return call

    with pytest.MonkeyPatch.context() as patch:
        instead(Lock, "acquire", "aacquire")
        instead(Lock, "try_acquire", "atry_acquire")
        instead(Lock, "__enter__", "__aenter__")
        instead(Lock, "__exit__", "__aexit__")
        instead(LockTemplate, "adopt", "aadopt")
        instead(Lease, "extend", "aextend")
        instead(Lease, "release", "arelease")
        patch.setattr(Lock, "__call__", decorator)
        yield
    loops.close()
