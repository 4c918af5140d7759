"""Name the extra to install, where an optional library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(what: str, module: str, install: str) -> Iterator[None]:
    """Import a library in this block; if it is missing, the error says what to install.

    A library that is there and lacks one of its own is not missing: that error passes.

    Args:
        what: needs it.
        module: the top-level module of the library.
        install: what to give to ``pip install``.

    Raises:
        ModuleNotFoundError: the library is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        msg = f'{what} needs {module}: pip install "{install}"'
        raise ModuleNotFoundError(msg, name=error.name) from error
