"""What the demo shows in a terminal fits into it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from django_redlock import conf, redlock
from django_redlock.inspection.survey import survey
from example_project.demo import pictures
from example_project.demo.facts import Addresses, Traffic
from tests.support.looked_at import in_memory

WHERE = Addresses(
    "http://127.0.0.1:45639/",
    "http://127.0.0.1:45639/admin/django_redlock/lockkey/",
    "admin",
    "demo",
)


def traffic(*, troubled: bool) -> Traffic:
    """A long run; everything that may be said about it is said."""
    made = Traffic(asked=9999, built=3333, skipped=6666)
    made.log = [f"{n}.1 s  node 2 is back, empty: {'and so on ' * 9}" for n in range(9)]
    if troubled:
        made.unavailable = [1.0] * 99
        made.errors = 7
        made.complaints = ["a report failed: " + "because " * 30]
    return made


@pytest.mark.parametrize("troubled", [False, True])
@pytest.mark.parametrize("held", [0, 9])
def test_the_picture_fits_and_begins_with_the_addresses(held, troubled):
    """From 19 lines on the open house has no line too many; the addresses come first."""
    with in_memory("default"):
        leases = [redlock(f"report:{number}").acquire() for number in range(held)]
        found = survey(conf.backend("default"))
        for lease in leases:
            lease.release()
    for height in range(19, 60):
        console = Console(file=io.StringIO(), record=True, width=80, height=height + 1)
        picture = pictures.open_house(WHERE, traffic(troubled=troubled), found, height=height)
        console.print(picture)
        lines = console.export_text().splitlines()
        assert len(lines) <= height
        assert [line.split()[0] for line in lines[:3]] == ["Site", "Locks", "Log"]
        assert lines[2].endswith("admin / demo")
        assert max(map(len, lines)) <= 80
    assert "node 2 is back" in "\n".join(lines)
