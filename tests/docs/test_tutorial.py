"""The tutorial is followed word by word: in an empty folder, with the wheel, in real terminals."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.pages import HEALTH, TUTORIAL, Block, blocks, gist
from tests.support.terminal import Terminal
from tests.support.waiting import eventually
from tests.support.wheel import build, untouched
from tools import pythons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 240.0  # seconds for one command; the longest installs everything
OLDEST, NEWEST = "Django==5.2.*", ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return build(tmp_path_factory.mktemp("wheel"))


class Somebody:
    """Somebody at a machine with a Python and terminals, who reads the tutorial."""

    def __init__(self, home: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self.home = home / "tutorial"  # the page makes it
        self._environment, self._stack = environment, stack
        self.first = stack.enter_context(Terminal(home, environment, PATIENCE))
        self.nodes: Terminal | None = None
        self.shell: Terminal | None = None
        self.seen = ""

    def another(self) -> Terminal:
        """A terminal of its own, "in the same directory and with the same environment"."""
        opened = self._stack.enter_context(Terminal(self.home, self._environment, PATIENCE))
        opened.run(". .venv/bin/activate")
        return opened

    def do(self, block: Block) -> None:
        """Do what a block of the page says, or compare what it shows."""
        if block.file:
            with (self.home / block.file).open("a") as file:
                file.write(f"\n{block.text}")
        elif block.language == "python":
            self.seen = self.in_shell(block)
        elif block.language == "console":
            for line in block.text.splitlines():
                self.obey(line)
        else:
            assert gist(self.seen) == gist(block.text)

    def obey(self, line: str) -> None:
        """Type a line of a console into the terminal that the page means."""
        prompt, _, command = line.partition(" ")
        if prompt == "nodes>":
            assert self.nodes is not None
            self.nodes.open(command, "nodes> ")
        elif command == "python nodes.py":
            self.nodes = self.another()
            self.seen = self.nodes.open(command, "nodes> ")
        elif "redlock_status" in command:
            self.seen = self.first.run(command, codes=tuple(HEALTH))
        else:
            self.first.run(command)

    def in_shell(self, block: Block) -> str:
        """Type Python into `python manage.py shell`, which stays open, and is reopened once."""
        if self.shell is not None and "billing.models" in block.text:
            self.shell.run("exit()")
            self.shell.open("python manage.py shell", ">>> ")
        if self.shell is None:
            self.shell = self.another()
            self.shell.open("python manage.py shell", ">>> ")
        return self.shell.python(block.text)


@pytest.fixture(params=["oldest", "newest"])
def somebody(
    request: pytest.FixtureRequest, tmp_path: Path, wheel: Path
) -> Iterator[tuple[Somebody, str]]:
    """Somebody with the oldest Django on this Python, or the newest on the newest Python."""
    wanted = OLDEST if request.param == "oldest" else NEWEST
    python = list(pythons.found().values())[-1][1] if wanted == NEWEST else Path(sys.executable)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"{wanted}\n")
    home = tmp_path / "home"
    home.mkdir()
    environment = untouched(python) | {"PIP_CONSTRAINT": str(constraints)}
    links = environment.get("PIP_FIND_LINKS", "")
    environment["PIP_FIND_LINKS"] = f"{wheel.parent} {links}".strip()
    with ExitStack() as stack:
        yield Somebody(home, environment, stack), wanted


def test_the_tutorial_followed_word_by_word(somebody):
    """Each command, file and line is typed as printed, and what is seen is what the page shows."""
    reader, wanted = somebody
    for block in blocks(TUTORIAL):
        reader.do(block)
    where = reader.first.run(
        "python -c 'import django, django_redlock as d; print(django.__version__, d.__file__)'"
    )
    version, file = where.split()
    assert Path(file).is_relative_to(reader.home / ".venv")
    newest = 6 if list(pythons.found())[-1] >= (3, 12) else 5
    assert version.startswith("5.2" if wanted else f"{newest}.")
    assert reader.nodes is not None
    reader.nodes.open("restart 3", "nodes> ")
    status = "python manage.py redlock_status"
    assert "no vote: restart guard" in reader.first.run(status, codes=tuple(HEALTH))
    eventually(
        lambda: len(re.findall(r" up +valkey", reader.first.run(status, codes=tuple(HEALTH)))) == 4,
        within=60,
        every=0.5,
    )
    reader.nodes.run("")  # "End the nodes with an empty line"
    assert "down: connection refused" in reader.first.run(status, codes=(4,))
