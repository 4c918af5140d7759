"""What the pages say of Prometheus: the gauges, the crontab, the alerts and the dashboard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from django_redlock import otel, redlock
from tests.docs.pages import MONITORING, ROOT, blocks, codes, first_codes, table
from tests.support.looked_at import status
from tests.support.scraped import read


def test_the_table_of_the_page(patient_nodes):
    """It has each gauge with its labels, and no others, in the order in which they are printed."""
    with redlock("invoice:42"):
        _, out = status("--prometheus")
    page = table("docs/reference/commands.md", "Gauge", "Labels")
    rows = zip(page.column("Gauge"), page.column("Labels"), strict=True)
    assert [(codes(gauge), codes(labels)) for gauge, labels in rows] == [
        ([each.name], list(each.samples[0].labels)) for each in text_string_to_metric_families(out)
    ]


@pytest.mark.slow
def test_the_line_of_the_crontab(patient_nodes, tmp_path):
    """It keeps the gauges of a node that is down, and the last ones where nothing is printed."""
    (line,) = [each.text for each in blocks(MONITORING) if each.language == "sh"]
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


# -- the dashboard -------------------------------------------------------------------------------

SUFFIXES = {  # of names, as Prometheus writes them; units in braces are dropped
    "create_histogram": ("_bucket", "_count", "_sum"),
    "create_counter": ("_total",),
    "create_observable_gauge": ("",),
}


def underscored(name: str) -> str:
    """A name of OpenTelemetry, as Prometheus writes it."""
    return name.replace(".", "_")


def of_processes() -> dict[str, set[str]]:
    """What otel.py exports, as Prometheus names it; each with the labels that the page tells."""
    meters = Mock()
    otel.Instruments(meters, None)
    page = table("docs/reference/metrics.md", "Metric", "Kind, unit")
    attributes = dict(zip(first_codes(page), page.column("Attributes"), strict=True))
    found = {}
    for kind, (name, *more), _ in meters.get_meter.return_value.method_calls:
        unit = "_seconds" if "s" in more else ""
        labels = {underscored(each) for each in codes(attributes.pop(name)) if "." in each}
        for suffix in SUFFIXES[kind]:
            le = {"le"} if suffix == "_bucket" else set()
            found[f"{underscored(name)}{unit}{suffix}"] = labels | le
    assert not attributes
    return found


def of_nodes() -> dict[str, set[str]]:
    """What the command prints, each with its labels."""
    page = table("docs/reference/commands.md", "Gauge", "Labels")
    rows = zip(page.column("Gauge"), page.column("Labels"), strict=True)
    return {codes(gauge)[0]: set(codes(labels)) for gauge, labels in rows}


def test_no_metric_has_two_meanings():
    """What nodes tell of all processes, and what a process tells of itself, have other names."""
    assert of_nodes().keys() & of_processes().keys() == set()


def test_each_query_of_the_dashboard_has_an_answer():
    """Its metrics and their labels exist; and each metric is shown, but the sums of histograms."""
    text = (ROOT / "docs/_static/grafana.json").read_text()
    exported = {"alias": of_nodes(), "redlock_alias": of_processes()}  # by their first label
    shown: dict[str, set[str]] = {alias: set() for alias in exported}
    by: set[str] = set()
    panels = [panel for panel in json.loads(text)["panels"] if panel["type"] != "row"]
    for target in (each for panel in panels for each in panel["targets"]):
        query, labels = target["expr"], set()
        selected = re.findall(r'(redlock_\w+)\{(\w+)=~"\$alias"\}', query)
        bare = re.sub(r"\{.*?\}|by \(.*?\)", "", query)
        assert re.findall(r"redlock_\w+", bare) == [metric for metric, _ in selected]
        for metric, alias in selected:
            labels |= exported[alias][metric]
            shown[alias].add(metric)
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", query))))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept <= labels
        by |= kept
    assert "redlock_template" in by
    assert shown["alias"] == set(exported["alias"])
    assert {each.partition("_seconds_")[0] for each in shown["redlock_alias"]} == {
        each.partition("_seconds_")[0] for each in exported["redlock_alias"]
    }
    aliases = re.findall(r"label_values\((\w+), alias\)", text)
    assert set(aliases) <= shown["alias"]


# -- alerts --------------------------------------------------------------------------------------


def test_each_alert_asks_for_what_there_is():
    """Each expression of "Monitoring" has names and labels that are exported, and a section."""
    page = table("docs/how-to/monitoring.md", "Alert", "Expression")
    exported = of_nodes() | of_processes()
    for expression, do in zip(page.column("Expression"), page.column("Do"), strict=True):
        metrics = re.findall(r"\bredlock_\w+", expression)
        assert set(metrics) <= exported.keys(), expression
        labels = {label for each in metrics for label in exported[each]}
        asked = re.findall(r"by \((\w+)\)|\{(\w+)=", expression)
        assert metrics == [] or {one or other for one, other in asked} <= labels
        assert metrics or "redlock.prom" in expression
        assert do


def test_the_first_alert_fires_without_a_majority(memory):
    """Fewer voters than the majority: what the expression compares is what the command prints."""
    for down, fires in ((set(), False), ({0, 1}, False), ({0, 1, 2}, True)):
        memory.down = down
        _, out = status("--prometheus")
        found = read(out)
        voting = sum(found["redlock_node_voting"].values())
        assert (voting < max(found["redlock_majority"].values())) is fires
