"""Judge what nodes told, beside what the settings expect. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from django_redlock.core.reasons import ReasonCode, because
from django_redlock.inspection import eviction
from django_redlock.inspection.eviction import Eviction
from django_redlock.transport import admission

from .results import Examination, Finding, Level, NodeFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.transport.examine import Told

    from .results import Expected

OLDEST: Final = (6, 2)  # of Redis; Valkey tells the one it descends from
USUAL: Final = 10  # round trips that fit into NODE_TIMEOUT, at least
ORDER: Final = tuple(reversed(Level))
FAILED: Final = "err"


def judge(expected: Expected, told: Sequence[Told]) -> Examination:
    """Put together what was found of an alias, by what each of its nodes told."""
    offs = [each.facts.off if each.facts else 0.0 for each in told]
    ours = admission.ours_off(offs, expected.majority, expected.skew)
    seen: dict[str, str] = {}  # by run_id, as far as a connection for locks would come
    nodes = []
    for address, each in zip(expected.addresses, told, strict=True):
        label = address.label
        found = list(_findings(each, expected, ours))
        if each.info and not (address.authenticates or address.is_local):
            found.append(Finding(Level.NOTE, because(ReasonCode.EVERYBODY)))
        if each.facts is not None:
            first = seen.get(each.facts.run_id)
            if first is not None:
                found.append(Finding(Level.ERROR, admission.duplicated(first)))
            elif all(finding.level is not Level.ERROR for finding in found):
                seen[each.facts.run_id] = label
        found.sort(key=lambda finding: ORDER.index(finding.level))
        nodes.append(_facts(label, each, expected, tuple(found)))
    in_memory = (
        () if expected.addresses else (Finding(Level.WARNING, because(ReasonCode.IN_MEMORY)),)
    )
    return Examination(
        expected.alias,
        expected.size,
        expected.majority,
        expected.guard,
        tuple(nodes),
        tuple(in_memory),
    )


def _findings(told: Told, expected: Expected, ours: float) -> Iterator[Finding]:
    if told.refusal is not None:
        yield Finding(Level.ERROR, told.refusal)
        return
    yield from _rights(told, expected)
    yield from _round_trip(told, expected)
    if told.facts is not None:
        yield from _server(told, told.facts, expected, ours)
    threat = eviction.threat([_eviction(told)])
    if threat:
        yield Finding(Level.WARNING, threat)
    if told.info:
        yield from _persistence(told, expected)


def _rights(told: Told, expected: Expected) -> Iterator[Finding]:
    if told.denied:
        commands = ", ".join(told.denied)
        yield Finding(Level.ERROR, because(ReasonCode.RIGHTS_MISSING, commands=commands))
    if told.keys_denied:
        yield Finding(Level.ERROR, because(ReasonCode.KEYS_DENIED, prefix=expected.prefix))
    for reason in told.complaints:
        yield Finding(Level.ERROR, reason)


def _round_trip(told: Told, expected: Expected) -> Iterator[Finding]:
    if told.round_trip is None or told.round_trip * USUAL <= expected.timeout:
        return
    too_slow = told.round_trip >= expected.timeout
    data: dict[str, float] = {
        "milliseconds": told.round_trip * 1000,
        "timeout": expected.timeout,
        "enough": math.ceil(200 * USUAL * told.round_trip) / 100,
    }
    if too_slow:
        yield Finding(Level.ERROR, because(ReasonCode.TOO_SLOW, **data))
    else:
        yield Finding(Level.WARNING, because(ReasonCode.SLOW, **data))


def _server(
    told: Told, facts: admission.ServerInfo, expected: Expected, ours: float
) -> Iterator[Finding]:
    """Yield what is said of the kind of server, its age and its clock."""
    objection = admission.objection(facts)
    if objection:
        yield Finding(Level.ERROR, objection)
    if told.version is not None and told.version < OLDEST:
        oldest = "Redis " + ".".join(map(str, OLDEST))
        reason = because(ReasonCode.OLD_SERVER, software=facts.software, oldest=oldest)
        yield Finding(Level.WARNING, reason)
    if not expected.guard:
        return
    if facts.off:
        wrong = admission.wrong_clock(facts.off, ours, expected.skew)
        yield Finding(Level.ERROR, wrong)
        return
    if told.guard_left == math.inf:
        yield Finding(Level.NOTE, because(ReasonCode.UNSEEN, seconds=expected.guard))
    elif told.guard_left:
        alone = expected.alias if expected.size == 1 else ""
        yield Finding(Level.NOTE, admission.guarded(told.guard_left, alone))


def _persistence(told: Told, expected: Expected) -> Iterator[Finding]:
    cannot_save = because(ReasonCode.CANNOT_SAVE)
    written = {told.info.get(f"{each}_status") for each in ("rdb_last_bgsave", "aof_last_write")}
    if FAILED in written and cannot_save not in told.complaints:
        yield Finding(Level.WARNING, cannot_save)
    keeps_all = _append_only(told) and told.config.get("appendfsync") == "always"
    if not expected.guard and not keeps_all:
        level = Level.NOTE if expected.size == 1 else Level.WARNING
        yield Finding(level, because(ReasonCode.MAY_FORGET))
    if _snapshots(told):
        yield Finding(Level.NOTE, because(ReasonCode.SNAPSHOTS))


def _append_only(told: Told) -> bool | None:
    said = told.info.get("aof_enabled")
    return None if said is None else said == "1"


def _snapshots(told: Told) -> bool | None:
    """Tell whether it takes snapshots; of one that does not tell, by whether it has."""
    if "save" in told.config:
        return bool(told.config["save"].strip())
    taken = told.info.get("rdb_last_bgsave_time_sec", "-1") not in {"-1", "0"}
    return True if taken else None


def _eviction(told: Told) -> Eviction | None:
    try:
        return Eviction(
            told.info["maxmemory_policy"],
            int(told.info["maxmemory"]),
            int(told.info.get("evicted_keys", "0")),
        )
    except (KeyError, ValueError):
        return None


def _facts(label: str, told: Told, expected: Expected, findings: tuple[Finding, ...]) -> NodeFacts:
    facts = told.facts
    guard_left = told.guard_left if expected.guard else 0.0
    wrong = any(each.level is Level.ERROR for each in findings)
    no_rights = bool(told.denied or told.keys_denied)
    return NodeFacts(
        label,
        reached=told.refusal is None,
        findings=findings,
        voting=not wrong and guard_left == 0,
        guard_left=guard_left,
        software=facts.software if facts else "",
        role=facts.role if facts else "",
        uptime=facts.uptime if facts else None,
        round_trip=told.round_trip,
        ahead=told.ahead,
        eviction=_eviction(told),
        append_only=_append_only(told),
        snapshots=_snapshots(told),
        rights=None if told.refusal else not no_rights,
    )
