"""The page "Runbook": each command is run on real nodes, and prints what the page shows.

Each section of the page has a play here, which makes the trouble. Numbers, addresses and the id of
a task are those of this run; an ellipsis of the page stands for lines that it leaves out.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.core import completion
from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import ROOT, gist
from tests.support.looked_at import A
from tests.support.waiting import eventually

RUNBOOK = ROOT / "docs/how-to/runbook.md"
TEXT = RUNBOOK.read_text(encoding="utf-8")
PATIENT: dict[str, Any] = {"NODE_TIMEOUT": 10, "MAX_TTL": 60, "TTL": 30, "RESTART_GUARD": False}
MINUTES = 47  # for which the holder of the page has the lock
WORDS = 300  # from the top of the page to the last of the first commands


class Shown(NamedTuple):
    """A command of the page, and what the page says that it prints."""

    words: list[str]
    prints: str


def slug(heading: str) -> str:
    """The anchor of a heading, as Sphinx makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


PARTS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
SECTIONS = {slug(part.partition("\n")[0]): part for part in PARTS}
GUARD = "restart-guard-votes-in-71-s"


def shown(anchor: str) -> list[Shown]:
    """The commands of a section, in order."""
    consoles = re.findall(r"^```console\n(.*?)^```$", SECTIONS[anchor], re.DOTALL | re.MULTILINE)
    runs = [run for text in consoles for run in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    parts = (run.partition("\n") for run in runs)
    return [Shown(shlex.split(command)[2:], prints) for command, _, prints in parts]


@pytest.fixture
def terminal(monkeypatch) -> None:
    """Somebody at a terminal types the word for which a command asks."""
    monkeypatch.setattr("socket.gethostname", lambda: "worker-2")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))


def printed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints, with its questions and the answers."""
    out = io.StringIO()

    def typed(question: str) -> str:
        word = question.split("'")[1]
        out.write(f"{question}{word}\n")
        return word

    monkeypatch.setattr("builtins.input", typed)
    with suppress(SystemExit):
        call_command(*words, stdout=out, no_color=True)
    return out.getvalue()


def compare(got: str, page: str) -> None:
    """See that the lines are those of the page, but for what an ellipsis leaves out."""
    lines = gist(got)
    for part in page.split("…\n"):
        wanted = gist(part)
        found = [i for i in range(len(lines)) if lines[i : i + len(wanted)] == wanted]
        assert found, f"{part}\n\nis not in\n\n{got}"
        lines = lines[found[0] + len(wanted) :]


def take(nodes: EmbeddedNodes, name: str, label: str = "worker-2:871") -> None:
    """Let a process have had a lock for 47 minutes."""
    since = int((time.time() - MINUTES * 60) * 1e6)
    for node in nodes:
        with closing(node.client()) as client:
            client.set(f"redlock:lock:{name}", f"{A}:{since}:{label}", px=30_000)
            client.zadd("redlock:held", {name: time.time() * 1000 + 30_000})


# -- the plays ------------------------------------------------------------------------------------


@contextmanager
def stuck(nodes: EmbeddedNodes) -> Iterator[None]:
    """A process has had the report's lock for too long."""
    take(nodes, "report:2026-03")
    yield


@contextmanager
def missing(nodes: EmbeddedNodes) -> Iterator[None]:
    """Two nodes are dead, and one hangs."""
    for place in (2, 4):
        nodes.kill(place)
    nodes.pause(3)
    try:
        yield
    finally:
        nodes.resume(3)
        for place in (2, 4):
            nodes.restart(place)


@contextmanager
def one_is_down(nodes: EmbeddedNodes) -> Iterator[None]:
    """One node is dead."""
    nodes.kill(4)
    try:
        yield
    finally:
        nodes.restart(4)


@contextmanager
def waiting(nodes: EmbeddedNodes) -> Iterator[None]:
    """A task has had its key for too long, and another was sent and dropped by the broker."""
    task = "reports.tasks.sync"
    take(nodes, "account:7", f"worker-2:871({task}):a19d28cd-994e-4b57-8b4c-8d017f1d1011")
    backend = conf.backend("default")
    key = completion.mark_key(backend.policy, task, ["account:8"])
    ttl, task_id = 3600, "7243b14f-d6f0-436f-844d-c93e8c975934"
    assert backend.run(
        completion.set_mark(backend.policy, key, task=task, task_id=task_id, ttl=ttl)
    )
    yield


PLAYS: dict[str, Callable[[EmbeddedNodes], Any]] = {
    "a-lock-is-stuck": stuck,
    "take-a-lock-away": stuck,
    "force-release": stuck,
    "no-majority": missing,
    "a-node-is-down": one_is_down,
    "workers-wait": waiting,
}


@pytest.fixture
def nodes(redlock_embedded: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Five real nodes, on which nothing is held."""
    for node in redlock_embedded:
        node.start()
        with closing(node.client()) as client:
            left = set(client.scan_iter("redlock:*")) - {b"redlock:fences"}
            if left:
                client.delete(*left)
    with override_settings(REDLOCK={"default": redlock_embedded.settings(**PATIENT)}):
        yield redlock_embedded


@pytest.mark.slow
@pytest.mark.parametrize("anchor", PLAYS)
def test_a_command_prints_what_the_page_shows(nodes, terminal, monkeypatch, anchor):
    """Each command of the section, in order; those of the trouble itself find it."""
    impatient = PATIENT | {"NODE_TIMEOUT": 0.5}  # of a node that hangs
    with ExitStack() as stack:
        stack.enter_context(PLAYS[anchor](nodes))
        alias = impatient | {"NODES": nodes.urls}
        stack.enter_context(override_settings(REDLOCK={"default": alias}))
        commands = shown(anchor)
        assert commands
        for words, prints in commands:
            compare(printed(words, monkeypatch), prints)


@pytest.mark.slow
def test_a_node_that_restarts_waits(terminal, monkeypatch):
    """With the restart guard it has no vote, and gets it by itself."""
    ((words, prints),) = shown(GUARD)
    with EmbeddedNodes(5) as nodes:
        settings = nodes.settings(MAX_TTL=6)
        with override_settings(REDLOCK={"default": settings}):
            nodes.restart(4)
            found: list[str] = []

            def guarded() -> bool:
                found[:] = [printed(words, monkeypatch)]
                return "no vote" in found[0]

            eventually(guarded, within=60)
            compare(found[0], prints)
            eventually(lambda: "healthy" in printed(words, monkeypatch), within=60, every=0.1)


def test_each_section_with_a_command_is_played():
    """No section shows what nobody has run."""
    assert {each for each in SECTIONS if shown(each)} == PLAYS.keys() | {GUARD}


def test_somebody_on_call_finds_the_command_at_once():
    """The table at the top has each case's command within 300 words, and leads to its section."""
    top = TEXT[: TEXT.index("\n:::{warning}")]
    assert len(re.findall(r"\w\S*", top)) < WORDS
    linked = re.findall(r"^\| \[.*?\]\(#([\w-]+)\)", top, re.MULTILINE)
    assert set(linked) == PLAYS.keys() | {GUARD}
    assert len(re.findall(r"`manage\.py redlock_\w+ [^`]*`", top)) == len(linked) - 1


@pytest.mark.slow
def test_a_name_that_rests_is_freed_at_once(nodes):
    """As the page says of `min_hold`: nobody works under it, so nobody is cut off."""
    assert "`redlock_release NAME` frees the name at once" in SECTIONS["a-lock-is-stuck"]
    with redlock("rest", min_hold=30):
        pass
    assert redlock("rest").try_acquire() is None
    call_command("redlock_release", "rest", "--yes", stdout=io.StringIO())
    redlock("rest").acquire().release()
