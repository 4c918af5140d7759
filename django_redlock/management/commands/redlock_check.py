"""``manage.py redlock_check``: whether the nodes are what the settings say, and what to do."""

from __future__ import annotations

from typing import Any

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.inspection import rows
from django_redlock.inspection.probe import Examination, Expected, examine
from django_redlock.management.printing import Lines, NodesCommand
from django_redlock.nodes.admission import skew_of


class Command(NodesCommand):
    """Print what an examination of the nodes finds, as tables or as JSON."""

    help = (
        "Ask the nodes whether they are set up for locks, and say what to do: it takes, keeps and "
        "releases a lock of its own on each node. Exit status: 0 there "
        "is nothing to do, 3 locks work and something is to be done, 4 too few nodes can vote, so "
        "no lock can be taken, 5 a majority will vote by itself, and no lock can be taken yet."
    )

    def handle(self, *_: Any, **options: Any) -> None:
        """Examine the nodes, print what was found, and exit with the status of the worst alias."""
        found = examine([expected(each) for each in self.backends(options["aliases"])])
        self.show(found, self._lines, options)

    def _lines(self, found: Examination) -> Lines:
        findings = rows.findings(found)
        return [
            *self.table(rows.CHECK_COLUMNS, list(map(rows.node, found.nodes))),
            *self.table(rows.FINDING_COLUMNS, findings),
            *([] if findings else ["There is nothing to do."]),
        ]


def expected(backend: Backend) -> Expected:
    """Return what the settings of an alias expect of its nodes."""
    values = conf.values_of(backend.alias)
    return Expected(
        backend.alias,
        tuple(conf.addresses_of(backend.alias)),
        size=backend.policy.size,
        majority=backend.policy.majority,
        timeout=values["NODE_TIMEOUT"],
        guard=conf.guard_of(values),
        skew=skew_of(values["CLOCK_SKEW"]),
        failover=values["FAILOVER"],
        prefix=values["KEY_PREFIX"],
    )
