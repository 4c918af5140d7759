"""What ``redlock_status --prometheus`` prints, read as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from django_redlock.inspection.rows import GAUGES
from tests.support.looked_at import status

Samples = dict[str, dict[tuple[str, ...], float]]  # by gauge, then by the values of its labels


def read(text: str) -> Samples:
    """The samples; each gauge has its text and its kind, and its samples have equal labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert (family.type, family.documentation) == ("gauge", GAUGES[family.name])
        assert len({tuple(each.labels) for each in family.samples}) == 1
        values = {tuple(each.labels.values()): each.value for each in family.samples}
        assert len(values) == len(family.samples)
        found[family.name] = values
    assert text.count("# TYPE") == text.count("# HELP") == len(found)
    return found


def gauges(*args: str) -> tuple[int, Samples]:
    """Run the command; its exit status and the samples."""
    code, out = status("--prometheus", *args)
    return code, read(out)
