"""What the settings of an alias expect of its nodes, for an examination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_redlock import conf
from django_redlock.inspection.examination import Expected
from django_redlock.transport.admission import skew_of

if TYPE_CHECKING:
    from django_redlock.backend import Backend


def expected(backend: Backend) -> Expected:
    """Return what is expected of the nodes of an alias."""
    values = conf.values_of(backend.alias)
    return Expected(
        backend.alias,
        tuple(conf.addresses_of(backend.alias)),
        size=backend.policy.size,
        majority=backend.policy.majority,
        timeout=values["NODE_TIMEOUT"],
        guard=conf.guard_of(values),
        skew=skew_of(values["CLOCK_SKEW"]),
        prefix=values["KEY_PREFIX"],
    )
