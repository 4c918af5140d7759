"""What "See what is held" says of Prometheus: the gauges and the line of the crontab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from django_redlock import redlock
from tests.docs.pages import ROOT, STATUS, blocks, codes, table
from tests.support.looked_at import status
from tests.support.scraped import read


def test_the_table_of_the_page(patient_nodes):
    """It has each gauge with its labels, and no others, in the order in which they are printed."""
    with redlock("invoice:42"):
        _, out = status("--prometheus")
    page = table(str(STATUS.relative_to(ROOT)), "Gauge", "Labels")
    rows = zip(page.column("Gauge"), page.column("Labels"), strict=True)
    assert [(codes(gauge), codes(labels)) for gauge, labels in rows] == [
        ([each.name], list(each.samples[0].labels)) for each in text_string_to_metric_families(out)
    ]


@pytest.mark.slow
def test_the_line_of_the_crontab(patient_nodes, tmp_path):
    """It keeps the gauges of a node that is down, and the last ones where nothing is printed."""
    (line,) = [each.text for each in blocks(STATUS) if each.language == "sh"]
    command = line.removeprefix("* * * * * ")
    for shown, here in {
        "/var/lib/node_exporter": str(tmp_path),
        "/srv/mysite/bin/python /srv/mysite/manage.py": f"{sys.executable} -m django",
    }.items():
        assert shown in command
        command = command.replace(shown, here)
    settings = tmp_path / "of_the_site.py"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": settings.stem}
    (tmp_path / "textfile").mkdir()

    def run(alias: object) -> None:
        settings.write_text(f"from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n")
        subprocess.run(["sh", "-c", command], env=environment, check=False)

    def voting() -> float:
        found = read(Path(tmp_path, "textfile/redlock.prom").read_text())
        return sum(found["redlock_node_voting"].values())

    patient_nodes.kill(4)
    run(patient_nodes.settings(NODE_TIMEOUT=10, RESTART_GUARD=False))
    assert voting() == 4
    run(None)
    assert voting() == 4
