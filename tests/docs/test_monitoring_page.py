"""The log of the page "Monitoring", beside what "Run a command on one server" promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, template

from .pages import MONITORING, ROOT, blocks

LATEST = 120.0  # seconds, for what hangs
RUN = [sys.executable, "-m", "django", "redlock_run"]


def settings(nodes: EmbeddedNodes, logging: str) -> str:
    """A site with this log."""
    alias = {"NODES": nodes.urls, "RESTART_GUARD": False, "NODE_TIMEOUT": 5, "TTL": 30}
    return f"from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n{logging}"


def page_log() -> str:
    """The settings of the page."""
    (found,) = [each.text for each in blocks(MONITORING) if "LOGGING" in each.text]
    return found


def ran(site: Path, *arguments: str) -> tuple[int, str]:
    """The status of ``redlock_run``, and all that cron would mail."""
    path = os.pathsep.join([str(site), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "logging_site"}
    done = subprocess.run(
        [*RUN, *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LATEST,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_cron_mails_nothing_where_the_name_is_taken_or_the_work_is_done(redlock_embedded, tmp_path):
    """On each server but one, each night, with ``-v 0`` and the log of the page."""
    (tmp_path / "logging_site.py").write_text(settings(redlock_embedded, page_log()))
    hold = ["quiet:hold", "-v", "0", "--", "true"]
    once = ["quiet:once", "-v", "0", "--once-per", "1h", "--", "true"]
    assert ran(tmp_path, *hold) == (0, "")
    group = group_of(redlock_embedded.urls, 5)
    lease = template(group)("quiet:hold", renew=True).acquire()
    assert ran(tmp_path, *hold) == (75, "")
    assert [ran(tmp_path, *once) for _ in range(2)] == [(0, ""), (0, "")]
    (tmp_path / "logging_site.py").write_text(
        settings(redlock_embedded, page_log().replace('"WARNING"', '"INFO"'))
    )
    lease.extend()
    status, mailed = ran(tmp_path, *hold)  # as the page says of INFO
    assert status == 75
    assert mailed.startswith("lock refused: alias='default' name='quiet:hold' ")
    assert ran(tmp_path, *once) == (0, "")
    lease.release()
    group.close()
