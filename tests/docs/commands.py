"""Whether a command that a page shows exists, with its options and files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from io import StringIO
from pathlib import Path
from unittest import mock

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from benchmarks.peers.environments import PYTHON_PEERS
from tests.docs.tables import ROOT
from tests.docs.test_docs import PROJECT
from tests.docs.test_promises_page import names_in

MAKEFILE = (ROOT / "Makefile").read_text()
REPOSITORY = f"{PROJECT['urls']['Source']}.git"
PROMPTS = {"$", "nodes>"}
SHELL = {"cd", "mkdir", ".", "celery", "gunicorn"}  # run by the tests of their pages
OF_A_NODE = {"kill", "pause", "resume", "restart"}  # methods of EmbeddedNodes
NEW_APPS = {"billing", "reports"}  # made by the commands of a page


def wrong(line: str) -> str:
    """What is wrong with a command; "" if nothing is."""
    words = shlex.split(line, comments=True)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    if not words or words[0] in SHELL or "|" in words:
        return "" if words else f"no command in {line!r}"
    program, arguments = words[0], words[1:]
    if program.endswith(("python", "python3")):
        return _of_python(arguments)
    check = {"make": _of_make, "pip": _of_pip, "django-admin": _of_django, "manage.py": _of_django}
    check["git"] = _of_git
    check["redlock_status"] = lambda words: _of_django(["redlock_status", *words])
    if program == "make":
        return _of_make([*arguments, variables.get("ARGS", "")])
    return check[program](arguments) if program in check else f"{program} is unknown"


def _of_python(words: list[str]) -> str:
    if words[0] == "manage.py":
        return _of_django(words[1:])
    if words[0] != "-m":
        return "" if re.search(rf"^# {words[0]}$", _tutorial(), re.MULTILINE) else words[0]
    module, arguments = words[1], words[2:]
    if module in {"venv", "build"}:
        return ""
    if module == "pytest":
        return _of_pytest(arguments)
    if not (ROOT / module.replace(".", "/")).with_suffix(".py").exists():
        return f"no module {module}"
    return _options_of(module, arguments)


def _tutorial() -> str:
    return (ROOT / "docs/tutorial.md").read_text()


def _of_pytest(words: list[str]) -> str:
    for word in words:
        path, _, test = word.partition("::")
        if path.startswith("tests") and not (ROOT / path).exists() and Path(path) != Path("tests"):
            return f"no file {path}"
        if test and test not in names_in(path):
            return f"no test {word}"
    return ""


def _of_make(words: list[str]) -> str:
    target, arguments = words[0], shlex.split(words[-1])
    recipe = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    if recipe is None:
        return f"no target {target}"
    module = re.search(r"python -m (\S+)", recipe[1])
    if not arguments or module is None:
        return ""
    if module[1] == "pytest":
        return _of_pytest(arguments)
    return _options_of(module[1], arguments)


def _options_of(module: str, words: list[str]) -> str:
    words = words[: words.index("--")] if "--" in words else words
    known = set(re.findall(r"--[a-z-]+", _help(module)))
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known
    return f"{module} has no {sorted(unknown)}" if unknown else ""


@cache
def _help(module: str) -> str:
    command = [sys.executable, "-m", module, "--help"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ended.stdout


def _of_git(words: list[str]) -> str:
    return "" if words == ["clone", REPOSITORY] else f"git {' '.join(words)}"


def _of_pip(words: list[str]) -> str:
    if words[0] != "install":
        return f"pip {words[0]}"
    for word in words[1:]:
        word, _, source = word.partition("git+")  # noqa: PLW2901 - what is before the address
        if source and source != REPOSITORY:
            return f"no repository {source}"
        name, _, extras = word.removesuffix(" @ ").rstrip("]").partition("[")
        if source and not name:
            continue
        known = PROJECT["optional-dependencies"]
        if name == PROJECT["name"]:
            missing = [each for each in extras.split(",") if each and each not in known]
            if missing:
                return f"no extra {missing}"
        elif name not in PYTHON_PEERS and not any(
            line.startswith(name) for lines in known.values() for line in lines
        ):
            return f"{name} is in no extra and no environment of the tests"
    return ""


def _of_django(words: list[str]) -> str:
    if not words:
        return ""
    name, *arguments = words
    if name in {"startproject", "startapp", "shell", "test", "runserver"}:
        app = "django.core"
    elif name not in get_commands():
        return f"no command {name}"
    else:
        app = get_commands()[name]
    command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
    parser = command.create_parser("manage.py", name)
    try:
        with mock.patch("sys.stderr", StringIO()) as said:
            parser.parse_args(arguments)
    except (CommandError, SystemExit) as error:
        return f"{name}: {error} {said.getvalue()}"
    return ""
