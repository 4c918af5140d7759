"""What an examination says of what nodes told; real nodes are in ``tests/django/test_check.py``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_redlock.core.reasons import ReasonCode, because
from django_redlock.inspection.probe import (
    Examination,
    Expected,
    Health,
    Level,
    Replies,
    compare,
    judge,
)
from django_redlock.inspection.rows import EXIT
from django_redlock.nodes import admission
from django_redlock.nodes.address import from_url

OLD = 100_000.0  # seconds of uptime
INFO = {
    "redis_version": "7.2.4",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "evicted_keys": "0",
    "aof_enabled": "0",
    "rdb_last_bgsave_status": "ok",
    "rdb_last_bgsave_time_sec": "-1",
    "aof_last_write_status": "ok",
}
NO_RIGHT = because(ReasonCode.RIGHTS_MISSING, text="no permissions to run the 'set' command")
FACTS = admission.ServerInfo("run-0", "valkey 9.1.2", OLD, "master", promoted=False, cluster=False)


def told(number: int = 0, info: dict[str, str] | None = None, **more: Any) -> Replies:
    """What a healthy node tells, or another one."""
    facts = more.pop("facts", FACTS._replace(run_id=f"run-{number}"))
    usual = Replies(facts=facts, round_trip=0.0005, ahead=0.0, guard_left=0.0)
    usual = usual._replace(info=INFO | (info or {}))
    return usual._replace(**({"config": {"save": ""}} | more))


def examined(*nodes: Replies, url: str = "redis://127.0.0.1:{}", **more: Any) -> Examination:
    """What is found of these nodes; with the settings as they are by default."""
    addresses = tuple(from_url(url.format(7000 + number)) for number in range(len(nodes)))
    size = len(nodes)
    expected: dict[str, Any] = {
        "timeout": 0.05,
        "guard": 71.0,
        "skew": 5.0,
        "prefix": "redlock:",
    } | more
    majority = size // 2 + 1
    alias = Expected("default", addresses, size, majority, **expected)
    reports = [judge(each, node, alias) for each, node in zip(addresses, nodes, strict=True)]
    return compare(alias, reports)


def found(*nodes: Replies, **more: Any) -> list[tuple[Level, ReasonCode]]:
    """The findings about the last of these nodes."""
    return [(each.level, each.reason.code) for each in examined(*nodes, **more).nodes[-1].findings]


@pytest.mark.parametrize(
    ("broken", "health", "code"),
    [
        (0, Health.OK, ReasonCode.READY),
        (1, Health.DEGRADED, ReasonCode.TO_DO),
        (2, Health.DEGRADED, ReasonCode.TO_DO),
        (3, Health.NO_MAJORITY, ReasonCode.NOT_READY),
        (5, Health.NO_MAJORITY, ReasonCode.NOT_READY),
    ],
)
def test_a_majority_decides(broken, health, code):
    """Nodes with an error have no vote."""
    refused = Replies(refusal=because(ReasonCode.CONNECTION_REFUSED))
    result = examined(*[refused] * broken, *map(told, range(5 - broken)))
    assert (result.health, result.summary.code) == (health, code)
    assert result.usable == 5 - broken


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "node", [told(facts=FACTS._replace(promoted=True)), told(guard_left=66.0)], ids=["new", "young"]
)
def test_the_settings_for_a_single_node_are_named_for_a_single_node(node, size):
    """A group of several nodes that had them could grant a name twice."""
    reasons = [str(each.reason) for each in examined(*[node] * size).nodes[0].findings]
    assert any("REDLOCK['default']" in each for each in reasons) is (size == 1)


@pytest.mark.parametrize(
    ("left", "health", "code", "votes_in"),
    [
        ((0, 0, 0, 9, 9), Health.OK, ReasonCode.READY, 0),
        ((0, 0, 5, 9, 9), Health.NOT_YET, ReasonCode.NOT_YET, 5),
        ((9, 8, 7, 6, 5), Health.NOT_YET, ReasonCode.NOT_YET, 7),
        ((0, 0, 9, math.inf, math.inf), Health.NOT_YET, ReasonCode.NOT_YET, 9),
        ((0, 0, math.inf, math.inf, None), Health.NOT_YET, ReasonCode.NOT_COUNTED, math.inf),
        ((0, 0, 0, None, None), Health.DEGRADED, ReasonCode.TO_DO, 0),
        ((0, 0, 9, None, None), Health.NOT_YET, ReasonCode.NOT_YET, 9),
        ((0, 0, None, None, None), Health.NO_MAJORITY, ReasonCode.NOT_READY, None),
        ((9, math.inf, None, None, None), Health.NO_MAJORITY, ReasonCode.NOT_READY, None),
    ],
)
def test_who_votes_now_and_when_a_majority_will(left, health, code, votes_in):
    """Nodes with an error never vote; the others do, some of them later."""
    refused = Replies(refusal=because(ReasonCode.CONNECTION_REFUSED))
    nodes = [refused if each is None else told(i, guard_left=each) for i, each in enumerate(left)]
    result = examined(*nodes)
    assert (result.health, result.summary.code, result.votes_in) == (health, code, votes_in)
    assert result.voting == left.count(0)
    assert result.summary.data["votes"] == left.count(0)
    assert result.usable == 5 - left.count(None)


def test_the_worst_alias_is_one_that_no_time_heals():
    """Of several the worst counts, and its exit status."""
    assert Health.worst([Health.NOT_YET, Health.NO_MAJORITY, Health.OK]) is Health.NO_MAJORITY
    assert Health.worst([Health.DEGRADED, Health.NOT_YET]) is Health.NOT_YET
    assert EXIT == {"ok": 0, "degraded": 3, "no_majority": 4, "not_yet": 5}


@pytest.mark.parametrize(
    ("node", "level", "code"),
    [
        (told(facts=FACTS._replace(cluster=True)), Level.ERROR, ReasonCode.CLUSTER),
        (told(facts=FACTS._replace(role="slave")), Level.ERROR, ReasonCode.REPLICA),
        (told(facts=FACTS._replace(promoted=True)), Level.ERROR, ReasonCode.PROMOTED),
        (told(facts=FACTS._replace(off=9.0)), Level.ERROR, ReasonCode.CLOCK),
        (told(facts=FACTS._replace(off=-9.0)), Level.ERROR, ReasonCode.CLOCK),
        (told(info={"redis_version": "6.0.16"}), Level.WARNING, ReasonCode.OLD_SERVER),
        (told(guard_left=66.0), Level.NOTE, ReasonCode.RESTART_GUARD),
        (told(guard_left=math.inf), Level.NOTE, ReasonCode.UNSEEN),
        (told(round_trip=0.0051), Level.WARNING, ReasonCode.SLOW),
        (told(round_trip=0.05), Level.ERROR, ReasonCode.TOO_SLOW),
        (told(complaints=(NO_RIGHT,)), Level.ERROR, ReasonCode.RIGHTS_MISSING),
        (
            told(complaints=(because(ReasonCode.WRONG_TYPE),)),
            Level.ERROR,
            ReasonCode.WRONG_TYPE,
        ),
        (
            told(info={"maxmemory": "5", "maxmemory_policy": "volatile-lru"}),
            Level.WARNING,
            ReasonCode.EVICTS,
        ),
        (told(info={"rdb_last_bgsave_status": "err"}), Level.WARNING, ReasonCode.CANNOT_SAVE),
        (told(info={"aof_last_write_status": "err"}), Level.WARNING, ReasonCode.CANNOT_SAVE),
        (told(config={"save": "3600 1"}), Level.NOTE, ReasonCode.SNAPSHOTS),
        (
            told(info={"connected_slaves": "1"}, config={"save": "", "repl-backlog-ttl": "70"}),
            Level.WARNING,
            ReasonCode.FORGETS_PROMOTION,
        ),
        (
            told(config={}, info={"rdb_last_bgsave_time_sec": "1"}),
            Level.NOTE,
            ReasonCode.SNAPSHOTS,
        ),
    ],
)
def test_what_is_said_of_a_node(node, level, code):
    """Each thing that is wrong, alone."""
    assert found(node) == [(level, code)]


@pytest.mark.parametrize(
    "node",
    [
        told(info={"redis_version": "6.2.0"}),
        told(info={"redis_version": "10.0"}),
        told(info={"maxmemory_policy": "allkeys-lru"}),  # without a limit nothing is evicted
        told(info={"maxmemory": "5"}),
        told(guard_left=0.0),
        told(round_trip=0.005),
        told(config={}),
        told(config={}, info={"aof_enabled": "1"}),
        Replies(facts=None, round_trip=None),
    ],
)
def test_what_is_in_order(node):
    """The other side of each bound."""
    assert found(node) == []


def test_the_same_server_twice():
    """The second address of one ``run_id`` has no vote, and it is said of which it is the same."""
    result = examined(told(0), told(1), told(0))
    assert [node.level for node in result.nodes] == [None, None, Level.ERROR]
    (finding,) = result.nodes[2].findings
    assert finding.reason == because(ReasonCode.DUPLICATE, first="127.0.0.1:7000/0")
    assert result.usable == result.voting == 2


def test_the_second_address_of_a_node_that_has_no_vote():
    """A first address by which nothing can be locked takes no vote from the second."""
    result = examined(told(0, complaints=(NO_RIGHT,)), told(0), told(1))
    assert [node.voting for node in result.nodes] == [False, True, True]


@pytest.mark.parametrize(
    ("size", "info", "config", "level"),
    [
        (3, {}, {"save": ""}, Level.WARNING),
        (1, {}, {"save": ""}, Level.NOTE),
        (3, {"aof_enabled": "1"}, {"save": "", "appendfsync": "everysec"}, Level.WARNING),
        (3, {"aof_enabled": "1"}, {"save": ""}, Level.WARNING),
        (3, {"aof_enabled": "1"}, {"save": "", "appendfsync": "always"}, None),
        (3, {}, {"save": "", "appendfsync": "always"}, Level.WARNING),
    ],
)
def test_what_a_restart_forgets(size, info, config, level):
    """Without the restart guard a node must not forget; one node alone may, and it is noted."""
    nodes = [told(number, info=info, config=config) for number in range(size)]
    expected = [(level, ReasonCode.MAY_FORGET)] if level else []
    assert found(*nodes, guard=0.0) == expected
    assert found(*nodes) == []


def test_without_the_guard_no_clock_is_compared():
    """Nor is a young node without a vote."""
    node = told(guard_left=None, facts=FACTS._replace(off=99.0), info={"aof_enabled": "1"})
    node = node._replace(config={"save": "", "appendfsync": "always"})
    assert found(node, guard=0.0) == []


@pytest.mark.parametrize(
    ("url", "noted"),
    [
        ("redis://10.0.0.1:{}", True),
        ("redis://:secret@10.0.0.1:{}", False),
        ("rediss://10.0.0.1:{}?ssl_certfile=/c", False),
        ("redis://localhost:{}", False),
        ("redis://127.0.0.2:{}", False),
        ("unix:///run/{}.sock", False),
    ],
)
def test_a_node_that_lets_everybody_in(url, noted):
    """On another machine, without a password: a note, because a network may be closed."""
    assert found(told(), url=url) == ([(Level.NOTE, ReasonCode.EVERYBODY)] if noted else [])


@pytest.mark.parametrize(
    ("node", "rights"),
    [
        (told(tried=True), True),
        (told(tried=True, complaints=(NO_RIGHT,)), False),
        (told(tried=True, complaints=(because(ReasonCode.OUT_OF_MEMORY),)), True),
        (told(), None),  # of a replica no script says more
        (Replies(refusal=because(ReasonCode.CONNECTION_REFUSED)), None),
    ],
)
def test_whether_the_user_has_all_rights(node, rights):
    """By what the scripts were told, where they were tried."""
    assert examined(node).nodes[0].rights is rights
