"""What is told of an examined alias: a sentence, its nodes, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.reasons import action, describe
from django_redlock.inspection.examination import Level
from django_redlock.inspection.results import Health
from django_redlock.management.status.page import COLOURS, NOTHING, Span, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.inspection.examination import Examination, Finding, NodeFacts
    from django_redlock.management.status.page import Paragraph

WELL: Final = "well"
STYLES: Final = {None: "green", Level.NOTE: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
ORDER: Final = tuple(reversed(Level))
HEADS: Final = (
    *("node", "is", "version", "role", "round trip", "clock", "full memory", "keeps", "rights"),
)


def worst(found: Sequence[Examination]) -> Health:
    """The health of the alias that is worst off."""
    return Health.worst(each.health for each in found)


def page(found: Examination) -> Iterator[Paragraph | Table]:
    """The sentence, the nodes and the findings of one alias."""
    yield Span(f"{found.alias}: ", "bold"), Span(describe(found.summary), COLOURS[found.health])
    yield ()
    if found.nodes:
        yield Table(HEADS, [_row(node) for node in found.nodes])
        yield ()
    rows = _rows(found)
    if rows:
        yield Table(("node", "what to do", "is"), rows)
    else:
        yield (Span("There is nothing to do."),)


def sentence(finding: Finding) -> str:
    """What it is, and what to do."""
    told, do = describe(finding.reason), action(finding.reason)
    return f"{told}; {do}" if do else told


def persistence(node: NodeFacts) -> str:
    """How a node keeps its data, as one text; "" if it did not tell."""
    if node.append_only is None and node.snapshots is None:
        return ""
    kept = ["append-only file"] if node.append_only else []
    kept += ["snapshots"] if node.snapshots else []
    return ", ".join(kept) or "nothing"


def _row(node: NodeFacts) -> list[Span]:
    eviction = node.eviction
    policy = eviction.policy if eviction and eviction.limit else "no limit" if eviction else ""
    rights = {True: "all", False: "too few", None: ""}[node.rights]
    texts = (
        node.software,
        node.role,
        "" if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms",
        "" if node.ahead is None else f"{node.ahead:+.3f} s",
        policy,
        persistence(node),
        rights,
    )
    state = Span(str(node.level or WELL), STYLES[node.level])
    return [Span(node.label), state, *(Span(text or NOTHING) for text in texts)]


def _rows(found: Examination) -> list[list[Span]]:
    """The findings, the worst first; what is said of all nodes is said once."""
    nodes: dict[tuple[Level, str], list[str]] = {}
    for node in found.nodes:
        for each in node.findings:
            nodes.setdefault((each.level, sentence(each)), []).append(node.label)
    for each in found.findings:
        nodes[each.level, sentence(each)] = ["all nodes"]
    rows = []
    for level, told in sorted(nodes, key=lambda key: ORDER.index(key[0])):
        labels = nodes[level, told]
        everywhere = ["all nodes"] if len(labels) == found.size > 1 else labels
        rows += [[Span(which), Span(told), Span(level, STYLES[level])] for which in everywhere]
    return rows
