"""The page "Servers": what it shows is what other tests play, and releases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_redlock import redlock
from tests.docs.pages import ROOT, blocks
from tests.support.waiting import eventually

PAGE = ROOT / "docs/how-to/servers.md"
PLAYED = ROOT / "tests/views/shop/patched.py"
COMMAND = """
import json, os
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(os.environ["ALIAS"])})
from django_redlock import redlock

with redlock("command"):
    print("holds", flush=True)
    while True:
        signal.pause()
"""


def shown(what: str) -> str:
    """The block of Python with this text."""
    python = [each.text for each in blocks(PAGE) if each.language == "python"]
    (found,) = [text for text in python if what in text]
    return found


def test_gunicorn_patches_as_the_page_says():
    """`test_servers.py` plays a file with these lines."""

    def lines(text: str) -> list[str]:
        return [each for line in text.splitlines() if (each := line.partition("#")[0].strip())]

    assert lines(shown("monkey")) == lines(PLAYED.read_text().rpartition('"""')[2])


def test_a_job_of_rq_takes_the_lock_in_its_function(memory):
    """What the page shows runs, and says that another worker has the lock."""
    names: dict[str, Any] = {}
    exec(shown("build_report").replace("wait=60", "wait=0.1"), names)  # noqa: S102 - our own page
    assert names["build_report"](2026).startswith("the report of 2026, fence ")
    with redlock("report:2026"):
        assert names["build_report"](2026) == "another worker was at it for a minute"


@contextmanager
def command(nodes, handler: str) -> Iterator[subprocess.Popen[str]]:
    """A command that holds a lock until a signal ends it."""
    alias = nodes.settings(NODE_TIMEOUT=10, MAX_TTL=600, RESTART_GUARD=False, TTL=600)
    with subprocess.Popen(
        [sys.executable, "-c", handler + COMMAND],
        env=os.environ | {"ALIAS": json.dumps(alias)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("handled", [True, False])
def test_a_command_with_the_handler_of_the_page_releases(patient_nodes, handled):
    """Without it, SIGTERM leaves the lock to its ttl."""
    handler = shown("SIGTERM") if handled else "import signal\n"
    with command(patient_nodes, handler) as process:
        assert redlock("command").state().held
        process.send_signal(signal.SIGTERM)
        code = eventually(lambda: (process.poll() is not None) and [process.returncode], within=60)
        assert code == [1 if handled else -signal.SIGTERM]
        assert redlock("command").state().held is not handled
