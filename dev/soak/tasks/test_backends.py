"""Other people's backends of Django's tasks, each played with its own worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.own_process import ROOT
from tests.tasks.site import settings
from tests.tasks.test_backends import BACKENDS, rows

LONG = 400.0  # seconds of a play, and of an installation

NEEDED = ("Django", "hiredis", "redis", "celery", "packaging")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A throw-away environment with all of them, as they are today."""
    folder = tmp_path_factory.mktemp("backends")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=LONG)
    program = str(folder / "bin/python")
    install = [program, "-m", "pip", "install", "--quiet", *NEEDED, *BACKENDS]
    subprocess.run(install, check=True, timeout=LONG)
    versions = subprocess.run(
        [program, "-m", "pip", "freeze"], check=True, stdout=subprocess.PIPE, text=True
    )
    print(*(each for each in versions.stdout.split() if each.partition("==")[0] in BACKENDS))
    return program


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_does_what_the_page_says(
    name: str, python: str, redlock_embedded: EmbeddedNodes, tmp_path: Path
) -> None:
    """Of two one runs, the next one after the end runs, and one whose key is held comes back."""
    backend = BACKENDS[name]
    log = tmp_path / "events.log"
    log.touch()
    broker = EmbeddedNode()
    broker.start()
    try:
        site = settings(
            tmp_path / "db.sqlite3",
            log,
            redlock_embedded.settings(MAX_TTL=10, RESTART_GUARD=False),
            backend=backend.path,
            apps=backend.apps,
            broker=broker.url,
            options=dict.fromkeys(backend.options, broker.url),
        )
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.tasks.project",
            "PYTHONPATH": str(ROOT),
            "TASKS_SITE": site,
        }
        command = [python, "-m", "dev.soak.tasks.play", *backend.worker.split()]
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False
        )
    finally:
        broker.close()
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told, following, later = rows()[name]
    assert (seen["runs"], seen["all"], following) == (1, 2, "runs")
    assert (seen["told"], seen["later"]) == ([told], later)
