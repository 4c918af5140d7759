"""What the commands have in common: the aliases they are asked for, and how they print."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.inspection.probe import Examination, Health
from django_redlock.inspection.rows import EXIT, MOODS, document, headline
from django_redlock.inspection.survey import Report

T = TypeVar("T", bound=Report | Examination)
Lines: TypeAlias = list[str]
NOTHING: Final = "-"
STYLES: Final = {"good": "SUCCESS", "odd": "WARNING", "bad": "ERROR"}  # of Django's commands


class NodesCommand(BaseCommand):
    """A command that asks the nodes of aliases, and exits with the status of the worst."""

    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare ``--alias`` and ``--json``."""
        parser.add_argument(
            "--alias",
            action="append",
            dest="aliases",
            metavar="ALIAS",
            help="an alias of REDLOCK; may be repeated (default: all)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command; where a program reads its output, there are no colours in it."""
        if not (options["force_color"] or (options.get("stdout") or self.stdout).isatty()):
            options["no_color"] = True
        return super().execute(*args, **options)

    def backends(self, aliases: Sequence[str] | None) -> list[Backend]:
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

    def show(
        self, found: Sequence[T], lines: Callable[[T], Lines], options: Mapping[str, Any]
    ) -> None:
        """Print what was found of each alias, as tables or as JSON, and exit.

        Raises:
            SystemExit: with the status of the alias that is worst off, unless that is 0.
        """
        if options["json"]:
            text = json.dumps(document(found), indent=2) + "\n"
        else:
            text = self.text(found, lines)
        self.finish(found, text)

    def finish(self, found: Sequence[T], text: str) -> None:
        """Print the text, and exit; raises as ``show``."""
        write(self.stdout, text)
        code = EXIT[Health.worst([each.health for each in found])]
        if code:
            raise SystemExit(code)

    def text(self, found: Sequence[T], lines: Callable[[T], Lines]) -> str:
        """Return the headline and the lines of each alias."""
        shown = []
        for each in found:
            head = self.styled(headline(each), MOODS[each.health])
            shown.append("\n".join((head, "", *lines(each))).rstrip("\n") + "\n")
        return "\n".join(shown)

    def styled(self, text: str, mood: str) -> str:
        """Return a text in the colour of its mood."""
        style = STYLES.get(mood)
        return str(getattr(self.style, style)(text)) if style else text

    def table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Lines:
        """Return a table of some columns of rows, and an empty line; nothing without rows."""
        if not rows:
            return []
        heads = [column.replace("_", " ") for column in columns]
        widths = [
            max(len(head), *map(len, map(itemgetter(column), rows)))
            for column, head in zip(columns, heads, strict=True)
        ]
        widths[-1] = len(heads[-1])  # it may be a sentence
        lines = [
            "  ".join(map(str.ljust, heads, widths)).rstrip(),
            "  ".join(map("-".__mul__, widths)),
        ]
        for row in rows:
            texts = []
            for column, width in zip(columns, widths, strict=True):
                text, mood = (row[column] or NOTHING).ljust(width), row.get(f"{column}_mood")
                texts.append(self.styled(text, mood) if mood else text)
            lines.append("  ".join(texts).rstrip())
        return [*lines, ""]


def write(to: OutputWrapper, text: str) -> None:
    """Print the text. A reader that closes the pipe early, as ``head`` does, is no error."""
    try:
        to.write(encodable(text, to), ending="")
        to.flush()
    except BrokenPipeError:
        # Else Python would flush the rest when it ends, and fail.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), to.fileno())


def encodable(text: str, to: OutputWrapper) -> str:
    """Return the text; what ``to`` cannot show is escaped."""
    encoding = getattr(to, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
