"""What the commands have in common: the aliases they are asked for, and how they print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_redlock import conf

from .plain import Plain

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from django.core.management.base import OutputWrapper

    from django_redlock.backend import Backend

    from .coloured import Coloured


def add_arguments(parser: ArgumentParser) -> None:
    """Declare ``--alias`` and ``--json``."""
    parser.add_argument(
        "--alias",
        action="append",
        dest="aliases",
        metavar="ALIAS",
        help="an alias of REDLOCK; may be repeated (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def backends(aliases: Sequence[str] | None) -> list[Backend]:
    """Return the backends of these aliases, each once; without any, of all.

    Raises:
        CommandError: the settings are wrong, or name no alias.
    """
    try:
        found = [conf.backend(alias) for alias in dict.fromkeys(aliases or conf.aliases())]
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from None
    if not found:
        raise CommandError("REDLOCK names no alias: there is nothing to show")
    return found


def printer(to: OutputWrapper, options: dict[str, Any]) -> Plain | Coloured:
    """Return what prints tables, with colours where rich is installed.

    Args:
        options: those of the command; ``no_color`` and ``force_color`` are Django's own.
    """
    try:
        from .coloured import Coloured
    except ImportError:  # rich is an extra
        return Plain(to)
    return Coloured(to, no_color=options["no_color"], force_color=options["force_color"])


def write(to: OutputWrapper, text: str) -> None:
    """Print the text. A reader that closes the pipe early, as ``head`` does, is no error."""
    try:
        to.write(text, ending="")
        to.flush()
    except BrokenPipeError:
        # Else Python would flush the rest when it ends, and fail.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), to.fileno())
