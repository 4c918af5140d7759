"""The pages of the documentation as data, and a reader who does what they say."""

from __future__ import annotations

import ast
import atexit
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dev.tools.reference import expand

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
INSTALL = ROOT / "docs/install.md"
STATUS = ROOT / "docs/how-to/status.md"
ONE_REDIS = ROOT / "docs/how-to/one-redis.md"
FENCING = ROOT / "docs/how-to/fencing.md"
BEYOND = ROOT / "docs/how-to/beyond-the-database.md"
TESTING = ROOT / "docs/how-to/testing.md"
LONG_JOBS = ROOT / "docs/how-to/long-jobs.md"
ERRORS = ROOT / "docs/how-to/errors.md"
SETTINGS = ROOT / "docs/reference/settings.md"
SIGNALS = ROOT / "docs/reference/signals.md"
METRICS = ROOT / "docs/reference/metrics.md"
MONITORING = ROOT / "docs/how-to/monitoring.md"
LAST_GOODBYE_SECONDS = 30.0
HEALTH = {0, 3, 4}  # the exit codes of redlock_status
WHOLE_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = WHOLE_PROJECT["project"], WHOLE_PROJECT["dependency-groups"]
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!_]*/*.md"), *ROOT.glob("*.md")]
EVERY_PAGE = pytest.mark.parametrize(
    "page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT))
)


# -- blocks and tables -----------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block of a page: its language, the file that its first line names, its text."""

    language: str
    file: str
    text: str


def blocks(page: Path, *, nested: bool = False) -> list[Block]:
    """The fenced blocks of a page, in order; ``nested``: also those in its lists, as dedented."""
    indent = " *" if nested else ""
    fenced = re.findall(
        rf"^({indent})```([^\n]*)\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    found = []
    for _, language, text in fenced:
        dedented = textwrap.dedent(text)
        named = re.match(r"# (\S+\.py)\n", dedented)
        if not language.startswith("{"):  # a directive of Sphinx
            found.append(Block(language, named[1] if named else "", dedented))
    return found


def examples(page: Path) -> dict[str, str]:
    """The Python of a page, also in lists: of each file that it names, and of its one shell."""
    found: dict[str, str] = defaultdict(str)
    for block in blocks(page, nested=True):
        if block.language == "python":
            found[block.file or "the shell"] += block.text
    return found


class Table(NamedTuple):
    """A table of a page: its header and its rows, cell by cell."""

    page: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        """The cells below a header."""
        return [row[self.header.index(name)] for row in self.rows]


def cells(line: str) -> tuple[str, ...]:
    r"""The cells of a line; ``\|`` is a character."""
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return tuple(part.strip().replace("\\|", "|") for part in parts)


@cache
def whole(page: Path) -> str:
    """The text of a page with the parts that are made of the code."""
    return expand(page.read_text(encoding="utf-8"))


@cache
def tables(page: str) -> tuple[Table, ...]:
    """All tables of a page, in order; also those that are made of the code."""
    lines = whole(ROOT / page).splitlines()
    found = []
    for number, line in enumerate(lines):
        if number and re.fullmatch(r"(\| *:?-+:? *)+\|", line):
            rows = []
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(cells(row))
            found.append(Table(page, cells(lines[number - 1]), tuple(rows)))
    return tuple(found)


def table(page: str, *header: str) -> Table:
    """The one table of a page whose header begins so."""
    (found,) = [each for each in tables(page) if each.header[: len(header)] == header]
    return found


def codes(cell: str) -> list[str]:
    """What a cell has in code style."""
    return re.findall(r"`([^`]+)`", cell)


def first_codes(found: Table) -> list[str]:
    """What the first cells of a table's rows have in code style, in order."""
    return [code for row in found.rows for code in codes(row[0])]


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, read without importing it."""
    if not (ROOT / file).is_file():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node.name for node in tree.body if isinstance(node, functions)]
    return frozenset(name for name in found if name.startswith("test_"))


def gist(text: str) -> list[list[str]]:
    """The words of each line, without numbers, rulers, and the names of machine and server."""
    text = text.replace(socket.gethostname(), "laptop")
    text = re.sub(r"\b(redis|valkey) (?=\d+\.)", "SERVER ", text)
    text = re.sub(r"^[─ -]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d+(\.\d+)*( (s|min|ms)\b)?", "N", text)
    text = text.replace("N to N", "N")  # seconds left, where the nodes do not agree on a tenth
    return [words for line in text.splitlines() if (words := line.split())]


# -- a reader --------------------------------------------------------------------------------------

SHELL = """\
import importlib, json, sys
import django
django.setup()
names = {}
for line in sys.stdin:
    importlib.invalidate_caches()  # of the folders of files that were written meanwhile
    exec(json.loads(line), names)
    print("\\0", end="", flush=True)
"""
BILLING = "django-admin startproject mysite .", "python manage.py startapp billing"


class Reader:
    """Does in a directory of its own what a page says.

    A block with a file's name goes into that file. Other blocks of Python are typed into one
    shell, which stays open; what it prints since the last block of text is in ``seen``.
    """

    def __init__(self, home: Path, stack: ExitStack, settings: str) -> None:
        self.home = home
        self.stack = stack
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        self.environment = {
            **kept,
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": str(home),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.seen = ""
        self._open: dict[str, subprocess.Popen[str]] = {}

    def begin(self, *commands: str) -> None:
        """Run these commands in the empty directory, or copy what they have made elsewhere."""
        shutil.copytree(_made(commands), self.home, dirs_exist_ok=True)

    def write(self, block: Block) -> None:
        """Save a file, below what is in it already."""
        path = self.home / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"\n{block.text}")

    def run(self, command: str, *, codes: Container[int] = (0,)) -> str:
        """Run a command line to its end; what it printed."""
        ended = subprocess.run(
            self._words(command), **self._how(), capture_output=True, text=True, check=False
        )
        assert ended.returncode in codes, f"{command}: {ended.stdout}{ended.stderr}"
        printed: str = ended.stdout
        return printed

    def manage(self, command: str) -> str:
        """Run a command of ``manage.py`` in the shell, which saves a process; what it printed."""
        call = "__import__('django.core.management', fromlist=['']).call_command"
        return self._typed(f"{call}(*{shlex.split(command)!r}, skip_checks=False)")

    def type(self, source: str) -> None:
        """Type Python into the shell and wait until it is done."""
        self.seen += self._typed(source)

    def _typed(self, source: str) -> str:
        if "shell" not in self._open:
            self.start("shell", [sys.executable, "-c", SHELL])
        return self.tell("shell", json.dumps(source), until="\0")

    def close_shell(self) -> None:
        """Leave the shell; the next block opens a new one."""
        _end(self._open.pop("shell"))

    def start(self, name: str, words: list[str]) -> None:
        """Start a program that is told things."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, **self._how(), text=True, stdin=pipe, stdout=pipe)
        self._open[name] = process
        self.stack.callback(_end, process)

    def tell(self, name: str, line: str, *, until: str) -> str:
        """Give a program a line; what it prints up to ``until``."""
        pipe = self._open[name].stdin
        assert pipe is not None
        pipe.write(f"{line}\n")
        pipe.flush()
        return self.hear(name, until=until)

    def hear(self, name: str, *, until: str) -> str:
        """What a program prints up to ``until``."""
        pipe = self._open[name].stdout
        assert pipe is not None
        said = ""
        while not said.endswith(until):
            character = pipe.read(1)
            assert character, f"it ended, after {said!r}"
            said += character
        return said.removesuffix(until)

    def _words(self, command: str) -> list[str]:
        words = shlex.split(command)
        alone = ["-p", "no:cacheprovider", "-p", "no:randomly"]
        program = {
            "python": [sys.executable],
            "django-admin": [sys.executable, "-m", "django"],
            "pytest": [sys.executable, "-m", "pytest", *alone],
        }
        return [*program[words[0]], *words[1:]]

    def _how(self) -> dict[str, Any]:
        return {"cwd": self.home, "env": self.environment}


@cache
def _made(commands: tuple[str, ...]) -> Path:
    """A directory in which these commands were run; they take a second each."""
    made = tempfile.TemporaryDirectory(prefix="docs-")
    atexit.register(made.cleanup)
    with reader(Path(made.name), "mysite.settings") as someone:
        for command in commands:
            someone.run(command)
    return someone.home


def _end(process: subprocess.Popen[str]) -> None:
    """Let a program end by itself, which is how it ends what it has started."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
        process.wait(LAST_GOODBYE_SECONDS)
    finally:
        process.kill()
        process.wait()  # or the next test is told of a process that nobody awaited
        process.stdout.close()


@contextmanager
def reader(home: Path, settings: str) -> Iterator[Reader]:
    """A reader with an empty directory."""
    with ExitStack() as stack:
        yield Reader(home, stack, settings)


def follow(someone: Reader, page: Path) -> None:
    """Write the files that a page shows, the first one into a new project with an empty app."""
    if not (someone.home / "manage.py").exists():
        someone.begin(*BILLING)
        (someone.home / "billing/models.py").unlink()  # a comment and an import
        someone.write(Block("python", "mysite/settings.py", 'INSTALLED_APPS += ["billing"]\n'))
    for block in blocks(page):
        if block.file:
            someone.write(block)


def make_tables(someone: Reader) -> None:
    """Make and run the migrations of the new project."""
    someone.manage("makemigrations billing")
    someone.manage("migrate")
