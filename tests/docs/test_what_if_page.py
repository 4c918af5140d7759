"""Each cell of "What if…" names a test that is there; one of them is here."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import pytest
from django.test import override_settings

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.core.wait import LOOK_EVERY
from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import ROOT, names_in, table
from tests.support.waiting import eventually

PAGE = "docs/explanation/what-if.md"
CELL = re.compile(r"^% (.+?) / (.+?): ((?:tests|dev)/\S+\.py)::(\w+)$", re.MULTILINE)


def test_each_cell_of_the_matrix_has_a_test():
    """A row is named by the bold words before its first comma or bracket."""
    page = table(PAGE, "", "New locks", "Holders", "Waiters")
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row, column, file, name in CELL.findall((ROOT / PAGE).read_text()):
        assert name in names_in(file), f"{file}::{name}"
        named[row, column].append(name)
    rows = [re.match(r"\*\*(.+?)\*\*", row[0]) for row in page.rows]
    assert all(rows)
    assert named.keys() == {(row[1], column) for row in rows if row for column in page.header[1:]}


def test_the_times_of_the_pages():
    """Those of the matrix, and the 71 s of the table of one node, three and five."""
    told = (conf.DEFAULTS["NODE_TIMEOUT"], conf.DEFAULTS["MAX_TTL"], conf.DEFAULTS["CLOCK_SKEW"])
    assert told == (0.05, 60, 10)
    assert conf.guard_of(conf.DEFAULTS) == 71
    assert LOOK_EVERY[1] == 0.9
    for page in (PAGE, "docs/how-to/which-lock.md", "docs/explanation/how-it-works.md"):
        assert "71 s" in (ROOT / page).read_text()


@pytest.mark.slow
def test_a_lease_of_the_only_node_lasts_until_its_deadline():
    """The node restarts empty: no renewal is possible, and nobody else is let in before the end."""
    with EmbeddedNodes(1) as nodes:
        settings = nodes.settings(MAX_TTL=2, TTL=2, CLOCK_SKEW=1, NODE_TIMEOUT=0.3)
        with override_settings(REDLOCK={"default": settings | {"RESTART_GUARD": True}}):
            lease = redlock("name", wait=30).acquire()
            nodes.restart(0)
            restarted = time.monotonic()

            def over() -> bool:
                with pytest.raises(NodesUnavailable):
                    redlock("name").acquire()
                return lease.remaining() == 0

            eventually(over, every=0.05)
            eventually(lambda: lease.lost)
            with redlock("name", wait=30) as later:
                assert later.fence > lease.fence
                assert time.monotonic() - restarted > 2
