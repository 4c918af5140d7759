"""The page of the commands: options, exit statuses, keys of ``--json`` and gauges."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any, Final

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_redlock import conf
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.inspection import rows, survey
from django_redlock.inspection.probe import Examination, Finding, Level, NodeReport
from django_redlock.locks import LockTemplate

from .markdown import code, noted, table

NAMES: Final = tuple(sorted(name for name in get_commands() if name.startswith("redlock_")))
EXIT: Final = re.compile(r"Exit status: (.*)\.$", re.DOTALL)
STATUS: Final = re.compile(r"(?:^|[,;] )(?:(\d+) |(the command's)(?=[,;]|$))")
ALIAS: Final = "docs"
# What each command of Django's ends with.
ALWAYS: Final = (
    ("1", "the settings or the arguments are wrong", "read the message"),
    ("2", "an option is unknown, or has a value that makes no sense", "read the message"),
)


def section(name: str) -> str:
    """Return what a command is for, how it is called, and its options.

    Raises:
        ValueError: there is no such command.
    """
    command, parser = _command(name), _parser(name)
    about = EXIT.sub("", command.help).strip()
    actions = [each for each in parser._actions if _is_own(each)]  # noqa: SLF001 - argparse
    usage = (parser.usage or parser.format_usage().split("[-h]")[0]).removeprefix("usage: ")
    if parser.usage is None:
        names = " ".join(_usage(each) for each in actions if not each.option_strings)
        usage = f"manage.py {name} [options] {names}".strip()
    lines = table(
        ("Argument", "What it does"), ((_argument(each), _help(each, parser)) for each in actions)
    )
    return f"{_markdown(about)}\n\n```text\n{' '.join(usage.split())}\n```\n\n{lines}"


def exits(name: str) -> str:
    """Return the table of the exit statuses of a command, as its help names them."""
    found = dict(statuses(name))
    do = noted(found, "exits", name)
    listed = [(each, _markdown(text), do[each]) for each, text in found.items()]
    more = [each for each in ALWAYS if each[0] not in found]
    return table(("Exit status", "Meaning", "Do"), [*listed, *more])


def statuses(name: str) -> Iterator[tuple[str, str]]:
    """Yield the exit statuses of a command's help, each with its meaning."""
    help_text = _command(name).help
    found = EXIT.search(help_text)
    parts = STATUS.split(found[1]) if found else []
    for number, words, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield number or words, text.strip() or "the command ran to its end"


def keys(name: str) -> str:
    """Return the table of the keys of ``--json``, which a document that is made now has."""
    found = list(dict.fromkeys(places(_document(name))))
    do = noted(found, "keys", name)
    return table(("Key", "Value"), ((code(each), do[each]) for each in found))


def gauges() -> str:
    """Return the table of the gauges of ``redlock_status --prometheus``."""
    more = noted(rows.GAUGES, "gauges", all_of_them=False)
    return table(
        ("Gauge", "Labels", "Value"),
        (
            (code(each), ", ".join(map(code, labels(each))), _value(text, more[each]))
            for each, text in rows.GAUGES.items()
        ),
    )


def _value(text: str, more: str) -> str:
    return f"{_markdown(text)} {more}".strip()


def labels(gauge: str) -> tuple[str, ...]:
    """Return the labels of a gauge."""
    of_a_node = gauge.startswith("redlock_node_")
    return ("alias", *["node"] * of_a_node, *["state"] * (gauge == "redlock_tasks"))


# -- the parser ------------------------------------------------------------------------------------


def _command(name: str) -> BaseCommand:
    app = get_commands()[name]
    return app if isinstance(app, BaseCommand) else load_command_class(app, name)


def _parser(name: str) -> argparse.ArgumentParser:
    return _command(name).create_parser("manage.py", name)


def _is_own(action: argparse.Action) -> bool:
    """Whether the command declares it, and not Django for all commands."""
    bare = {each.dest for each in BaseCommand().create_parser("manage.py", "x")._actions}  # noqa: SLF001
    return action.dest not in bare


def _usage(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    if action.nargs == "*":
        return f"[{name} ...]"
    return f"[{name}]" if action.nargs == "?" else name


def _argument(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(_usage(action))
    value = ""
    if action.nargs != 0:
        name = action.metavar or action.dest.upper()
        value = f"[={name}]" if action.nargs == "?" else f" {name}"
    return code(f"{action.option_strings[-1]}{value}")


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    default = action.default
    if default not in (None, False, "", []) and "%(default)s" not in (action.help or ""):
        text = f"{text} (default: {default})"
    return _markdown(text)


def _markdown(text: str) -> str:
    plain = re.sub(r"([*<>\[\]|])", r"\\\1", text)
    return re.sub(r"(?<![`\w-])(--[a-z-]+|redlock_[a-z_]+)", r"`\1`", plain)


# -- documents -------------------------------------------------------------------------------------


def _document(name: str) -> dict[str, Any]:
    """Make the document of a command: of nodes in memory, with a lock that is held."""
    finding = Finding(Level.ERROR, because(ReasonCode.DOWN))
    if name == "redlock_check":
        node = NodeReport("10.0.0.1:6379/0", heard=False, voting=False, findings=(finding,))
        return rows.document([Examination(ALIAS, 1, 1, 0.0, (node,), (finding,))])
    setting = {"NODES": [f"memory://{ALIAS}-{number}" for number in range(3)]}
    made = conf.make(ALIAS, setting)
    with LockTemplate(lambda _: made, ALIAS)("invoice:42"):
        return rows.document([survey(made)])


def places(document: Any, where: str = "") -> Iterator[str]:
    """Yield the places of a document, without those that only lead to a list of others."""
    if isinstance(document, list):
        for each in document:
            yield from places(each, f"{where}[]")
    elif isinstance(document, dict):
        for key, value in document.items():
            place = f"{where}.{'*' if where == 'aliases' else key}" if where else key
            is_list = isinstance(value, list) and any(isinstance(each, dict) for each in value)
            if not is_list and where != "aliases":
                yield place
            yield from places(value, place)
