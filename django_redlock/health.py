"""A check for django-health-check 4, which reports whether locks can be taken.

    path("health/", HealthCheckView.as_view(checks=[RedlockNodes]))

It surveys the nodes as any other face does (``inspection.survey``), and asks for one name only. Its
text has the nodes' reasons, without user, password, or the name of a lock.
"""

from __future__ import annotations

import dataclasses

from . import conf
from .core.reasons import ReasonCode, by_node, code_of, describe
from .extras import needs
from .inspection import Health, Report, survey

with needs(__name__, "health_check", "django-health-check>=4"):
    from health_check.base import HealthCheck
    from health_check.exceptions import ServiceUnavailable

__all__ = ["RedlockNodes"]


@dataclasses.dataclass
class RedlockNodes(HealthCheck):  # type: ignore[misc] # django-health-check ships no types
    """Unhealthy while no majority of an alias's nodes votes: no lock can be taken.

    A node that is missing beside a majority makes nothing unhealthy: no server should leave its
    load balancer for it. ``redlock_status`` and ``redlock_check`` tell of it.

    Args:
        alias: that of the nodes.
    """

    alias: str = "default"

    def run(self) -> None:
        """Ask the nodes; nodes that hang cost NODE_TIMEOUT, or up to four times that.

        The first contact lasts longer only where a majority has not even been connected by then:
        until it is, or 2 s have passed.

        No coroutine: under WSGI each request has an event loop of its own, which would connect to
        all nodes anew. In a thread the check uses the connections of the process.

        Raises:
            ServiceUnavailable: no majority of the nodes votes; the text has their reasons.
            ImproperlyConfigured: there is no such alias, or its settings are wrong. The page says
                "unknown error" then, and the log has it.
        """
        backend = conf.backend(self.alias)
        report = survey(backend, limit=1, patience=0)
        connecting = any(code_of(each.reason) == ReasonCode.CONNECTING for each in report.nodes)
        if report.health is Health.NO_MAJORITY and connecting:
            report = survey(backend, limit=1)
        if report.health is Health.NO_MAJORITY:
            raise ServiceUnavailable("; ".join(_sentences(report)))


def _sentences(report: Report) -> list[str]:
    """Return what is wrong: the votes, and why nodes have none; equal reasons together."""
    silent = [(node.label, node.reason) for node in report.nodes if not node.voting and node.reason]
    return [describe(report.summary), *by_node(silent, len(report.nodes))]
