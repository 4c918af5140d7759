"""The rules of the soak of workers: each finds what it is for in a doctored history."""

from __future__ import annotations

from typing import Any

import pytest

from dev.soak.celery.rules import RULES, History, figures, judge

Line = dict[str, Any]
TTL = 3.0
KEY, STARTED, RUNNING = "until_finished-1", "until_started-1", "while_running-1"


def line(what: str, at: float, **more: Any) -> Line:
    """A line of a history."""
    return {"what": what, "at": at, **more}


def sent(number: int, at: float, key: str = KEY, **more: Any) -> Line:
    """A message that was asked for."""
    told = {"key": key, "number": number, "before": at, "duplicate": False, "probe": False}
    told["id"] = f"id-{number}"
    return line("sent", at + 0.1, **told | more)


def body(number: int, at: float, end: float | None, *, key: str = KEY, **more: Any) -> list[Line]:
    """A body, whose key is free a tenth of a second after its end; None: it has none."""
    names = {"key": key, "number": number, "run": f"run-{number}", "pid": 100 + number} | more
    group, fence = names.pop("group", 10), names.pop("fence", int(at * 10))
    lines = [line("begin", at, group=group, fence=fence, **names)]
    if end is not None:
        lines += [line("end", end, **names), line("returned", end + 0.1, **names)]
    return lines


def dead(at: float, *pids: int, group: int | None = None) -> Line:
    """Processes that were killed."""
    return line("dead", at, group=group, pids=list(pids))


def record(number: int, at: float) -> Line:
    """A completion record."""
    return line("record", at, run=f"run-{number}", pid=100 + number)


RIG = line("rig", 0.0, ttl=TTL, majority=3)
TAKEN = [line("taken", 25.0, id=f"id-{number}") for number in range(10)]
# Message 1 is killed in its body and runs again; 2 is a duplicate of it; 3 runs after it; 4 is
# the one that is sent at the end.
SOUND = [
    RIG,
    *TAKEN,
    sent(1, 1.0),
    *body(1, 1.5, None),
    sent(2, 2.0, duplicate=True),
    dead(3.0, 101),
    line("held", 3.5, key=KEY, pid=101, until=5.5),
    *body(1, 6.0, 7.0, pid=111),
    record(1, 7.2),
    sent(3, 8.0),
    *body(3, 8.5, 9.0),
    record(3, 9.2),
    sent(4, 20.0, probe=True),
    *body(4, 20.5, 21.0),
    record(4, 21.2),
]


def broken(*lines: Line) -> list[str]:
    """The rules that complain of the sound history with these lines."""
    return sorted({each.rule for each in judge(History([*SOUND, *lines]))})


def test_a_sound_history_has_no_complaint():
    """A body that was killed, and ran again when the lock of the dead was over, is all right."""
    assert broken() == []
    told = figures(History(SOUND))
    assert (told["bodies"], told["bodies killed"], told["run again"]) == (4, 1, 1)


DOCTORED = {
    "two bodies at once": body(5, 6.5, 6.6, fence=61),
    "a fence that does not increase": body(5, 9.5, 9.6, fence=80),
    "ran again after its record": body(3, 9.5, 9.6, pid=120),
    "a message without effect": [sent(5, 9.3)],
    "stuck for longer than a ttl": [line("held", 3.6, key=KEY, pid=101, until=7.1)],
    "a mark that is left": [line("left", 30.0, kind="mark", key="mark:x", id="id-1", nodes=3)],
    "an end that is not known": body(5, 22.0, None),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_it_is_for(rule):
    """And no other rule complains."""
    assert broken(*DOCTORED[rule]) == [rule]


@pytest.mark.parametrize(
    "doctored",
    [
        [line("left", 30.0, kind="lock", key="lock:x", id="id-1", nodes=1)],
        [line("undrained", 30.0, messages=1)],
        [sent(5, 22.0, probe=True)],
    ],
)
def test_what_is_stuck_at_the_end(doctored):
    """A lock that is left, messages that nobody takes, and a key for which nothing runs."""
    assert broken(*doctored) == ["stuck for longer than a ttl"]
