"""Why, as codes and data; and the sentences that are made of them."""

from __future__ import annotations

import pickle
import re
import string
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hiredis import ReplyError
from redis import exceptions

from django_redlock import (
    LeaseLost,
    NodesUnavailable,
    RedlockError,
    assert_locked,
    conf,
    events,
    redlock,
)
from django_redlock.core import acquire, hold
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import (
    Reason,
    ReasonCode,
    action,
    because,
    by_node,
    describe,
    printable,
)
from django_redlock.events import NodeTiming
from django_redlock.inspection import NodeReport, Report
from django_redlock.leases.renewal import RenewalBatch
from django_redlock.nodes.faults import ERRORS, complaint, why_unreached
from django_redlock.nodes.node import NodeStatus
from tests.docs.pages import blocks
from tests.support.alone import extend
from tests.support.waiting import eventually

from .table import GONE, LOST, NO, Held, Table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/reasons.md"
SAMPLE: dict[str, Any] = dict.fromkeys(
    (
        *("seconds", "skew", "ahead", "behind", "votes", "size", "needed", "nodes", "evicted"),
        *("milliseconds", "timeout", "enough", "guard"),
    ),
    3,
) | {"cause": because(ReasonCode.DOWN)}


def fields(sentence: str) -> set[str]:
    """What a sentence needs."""
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def sample(code: ReasonCode) -> Reason:
    """A reason with some data."""
    needed = fields(code.sentence)
    return because(code, **{name: SAMPLE.get(name, f"<{name}>") for name in sorted(needed)})


# -- the table ------------------------------------------------------------------------------------


def test_each_code_has_a_sentence():
    """It can be shown, in one line; where it has a shorter one, that needs nothing else."""
    for code in ReasonCode:
        said = str(sample(code))
        assert said.isprintable(), code
        assert said.strip("{") == said != "", code
        assert re.fullmatch("[a-z]+(_[a-z]+)*", code.value)
        assert code.value == code.name.lower()
        data = sample(code).data | SAMPLE
        assert code.brief.format_map(data).isprintable(), code
        assert describe(Reason(code, tuple(data.items())), brief=True).isprintable(), code


def test_the_example_of_the_page_runs(memory):
    """It returns the codes of the nodes that gave no vote."""
    (block,) = blocks(PAGE)[:1]
    scope: dict[str, Any] = {}
    exec(block.text, scope)  # noqa: S102 - our own page
    assert scope["why_not"]() == []
    memory.down = {0, 2}
    assert scope["why_not"]() == ["down", "down"]


# -- a reason -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("invoice:42 é 日本", "invoice:42 é 日本"),
        ("<script>[red]", "<script>[red]"),
        ("é\n日本", "é\\n日本"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x1b[31m\r\n\t\x00", "a\\x1b[31m\\r\\n\\t\\x00"),
        ("a\u2028\u200b\ud800", "a\\u2028\\u200b\\ud800"),
    ],
)
def test_text_for_people_hides_nothing(text, expected):
    """What is invisible, moves the cursor or turns the writing is escaped."""
    assert printable(text) == expected


def test_what_others_say_is_escaped():
    """Nothing that a node or a name says steers a terminal, ends a line, or fills in a sentence."""
    said = str(because(ReasonCode.ERROR, text="\x1b[2J\n{seconds}\u202e"))
    assert said == r"answered with an error: \x1b[2J\n{seconds}\u202e"


UNAVAILABLE = NodesUnavailable(
    because(ReasonCode.NO_MAJORITY, votes=2, size=5, needed=3),
    name="name",
    votes=[Vote("a", Answer.UNKNOWN, reason=because(ReasonCode.DOWN))],
)


@pytest.mark.parametrize(
    "kept",
    [
        because(ReasonCode.NO_ANSWER, seconds=0.5),
        Vote("a", Answer.UNKNOWN, reason=because(ReasonCode.DOWN)),
        NodeStatus("a", voting=False, reason=because(ReasonCode.DOWN)),
        NodeTiming("default", "a", None, because(ReasonCode.DOWN)),
        UNAVAILABLE,
    ],
)
def test_what_has_a_reason_can_be_pickled(kept):
    """Task queues store errors. It comes back as it was, and says the same."""
    read = pickle.loads(pickle.dumps(kept))  # noqa: S301 - our own
    assert repr(read) == repr(kept)
    assert (str(read), read.code) == (str(kept), kept.code)


def test_a_refused_name_can_be_pickled():
    """Its error is a ValueError with a sentence that is made of a reason."""
    with pytest.raises(ValueError, match=r"the lock name .* has control characters") as caught:
        redlock("a\n").acquire()
    read = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert str(read) == str(caught.value)


def test_an_error_has_a_code_and_its_data():
    """A program need not read the text."""
    assert UNAVAILABLE.args == (UNAVAILABLE.reason,) == ("2 of 5 nodes could vote, 3 are needed",)
    assert UNAVAILABLE.code == "no_majority"
    assert UNAVAILABLE.data == {"votes": 2, "size": 5, "needed": 3}
    assert (type(UNAVAILABLE.code), type(UNAVAILABLE.reason)) == (str, str)
    mere = NodesUnavailable("why")
    assert (mere.reason, mere.code, mere.data) == ("why", "", {})


# -- sentences within sentences -------------------------------------------------------------------


def test_a_reason_within_a_reason_is_told_with_it():
    """So is the action; an empty datum has a word of its own, and what a reason adds follows it."""
    wrong = because(ReasonCode.CONNECTION_REFUSED)
    told: dict[Reason | str | None, str] = {
        because(ReasonCode.ERROR, text="down"): "answered with an error: down",
        because(ReasonCode.HELD, holder="", nodes=3, size=5): "held by somebody on 3 of 5 nodes",
        because(ReasonCode.ADVICE_NODE, cause=wrong, action=action(wrong)): (
            "connection refused; start the server, or correct its entry in NODES"
        ),
        because(ReasonCode.RESTART_GUARD, seconds=2.0, only_node_of="a"): (
            "restart guard: new here, or started, emptied or promoted a short while ago, 2.0 s left"
            " (if this single node's locks only save work, set 'RESTART_GUARD': False in "
            "REDLOCK['a'])"
        ),
        "a text {here}": "a text {here}",
        "": "",
        None: "",
    }
    for what, text in told.items():
        assert describe(what) == text
    guard = because(ReasonCode.RESTART_GUARD, seconds=2.0)
    assert describe(guard, brief=True) == "restart guard"


# -- errors ---------------------------------------------------------------------------------------


REFUSED, GUARD = ReasonCode.CONNECTION_REFUSED, ReasonCode.RESTART_GUARD
DOWN_NODE, SAYS_X, SAYS_Y = (
    because(ReasonCode.DOWN),
    because(ReasonCode.ERROR, text="x"),
    because(ReasonCode.ERROR, text="y"),
)
LEFT = {seconds: because(GUARD, seconds=seconds) for seconds in (1.0, 2.0, 3.21)}


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        (
            [("a", because(REFUSED)), ("b", DOWN_NODE), ("c", because(REFUSED))],
            ["2 of 5 nodes: connection refused (a, c)", "b: down"],
        ),
        # Those that differ by seconds alone are told with the most, others apart.
        ([*zip("abc", LEFT.values(), strict=True)], [f"3 of 5 nodes: {LEFT[3.21]} (a, b, c)"]),
        (
            [*zip("abc", [LEFT[3.21], LEFT[1.0], LEFT[2.0]], strict=True)],
            [f"3 of 5 nodes: {LEFT[3.21]} (a, b, c)"],
        ),
        (
            [*zip("abc", [SAYS_X, SAYS_Y, SAYS_X], strict=True)],
            ["2 of 5 nodes: answered with an error: x (a, c)", "b: answered with an error: y"],
        ),
        # A label may be a path with anything in it.
        ([("unix:/\n\x1b[2J", DOWN_NODE)], [r"unix:/\n\x1b[2J: down"]),
        ([("a\n", DOWN_NODE), ("b", DOWN_NODE)], [r"2 of 5 nodes: down (a\n, b)"]),
    ],
)
def test_equal_reasons_are_told_once(said, lines):
    """With the nodes that gave them, in their order."""
    assert by_node(said, 5) == lines


def test_an_error_tells_the_reasons_of_its_votes_and_what_to_do():
    """In one line, the advice behind each reason; who gave none is not told."""
    said = because(ReasonCode.NO_SUCH_DATABASE)
    votes = [*(Vote(node, Answer.UNKNOWN, reason=said) for node in "ab"), Vote("c", Answer.NO)]
    reason = because(ReasonCode.NO_MAJORITY, votes=1, size=3, needed=2)
    assert str(NodesUnavailable(reason, name="name", votes=votes)) == (
        "'name': 1 of 3 nodes could vote, 2 are needed; 2 of 3 nodes: has no database of that "
        "number; correct it in NODES (a, b); run manage.py redlock_check to see what each node "
        "needs"
    )


# -- how each comes to be: errors -----------------------------------------------------------------


def test_what_a_node_refuses():
    """An error reply is known by its first word, when it is connected and later."""
    for word, code in ERRORS.items():
        assert complaint(ReplyError(f"{word} secret details")) == because(code)
        assert why_unreached(exceptions.ResponseError(f"{word} details")) == because(code)
    assert ERRORS == {
        "WRONGTYPE": ReasonCode.WRONG_TYPE,
        "OOM": ReasonCode.OUT_OF_MEMORY,
        "LOADING": ReasonCode.LOADING,
        "BUSY": ReasonCode.BUSY,
        "READONLY": ReasonCode.READ_ONLY,
        "MISCONF": ReasonCode.CANNOT_SAVE,
        "NOREPLICAS": ReasonCode.TOO_FEW_REPLICAS,
        "NOPERM": ReasonCode.NO_PERMISSION,
        "NOAUTH": ReasonCode.PASSWORD_NEEDED,
        "WRONGPASS": ReasonCode.LOGIN_REFUSED,
    }


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (OSError("[Errno -2] Name or service not known"), because(ReasonCode.NO_SUCH_HOST)),
        (OSError("[Errno 113] No route to host"), because(ReasonCode.NO_ROUTE)),
        (
            exceptions.ConnectionError("max number of clients reached"),
            because(ReasonCode.TOO_MANY_CLIENTS),
        ),
        (
            exceptions.AuthenticationError("Authentication required."),
            because(ReasonCode.PASSWORD_NEEDED),
        ),
        (exceptions.TimeoutError("Timeout"), because(ReasonCode.CONNECT_TIMEOUT)),
        (exceptions.ConnectionError("odd"), because(ReasonCode.CONNECT_FAILED, text="odd")),
        (ValueError("odd"), because(ReasonCode.CONNECT_FAILED, text="odd")),
        (OSError(), because(ReasonCode.CONNECT_FAILED, text="OSError")),
        (LookupError("odd"), because(ReasonCode.CONNECT_RAISED, text="LookupError")),
        (exceptions.ResponseError(""), because(ReasonCode.ERROR, text="")),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, ""), because(ReasonCode.UNREADABLE_ERROR)),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, ""), because(ReasonCode.UNSENDABLE)),
        (
            exceptions.ConnectionError("DB index is out of range"),
            because(ReasonCode.NO_SUCH_DATABASE),
        ),
    ],
)
def test_why_a_node_cannot_be_reached(raised, reason):
    """What redis-py and the system raise, without their numbers and addresses."""
    assert why_unreached(raised) == reason


def adoption(table: Table) -> Any:
    """Steps to adopt."""
    target = table.policy.target(["a"])
    return acquire.adopt(table.policy, target, old="f" * 32, label="me", ttl=10)


def prolonging(table: Table) -> Any:
    """Steps to extend."""
    return extend(table.policy, table.grant(), ttl=10)


def prolonging_late(table: Table) -> Any:
    """Steps to extend a lease that is over: nobody is asked."""
    steps = extend(table.policy, table.grant(), ttl=10)
    table.now += 20
    return steps


ADOPTED = [[5, Held(owner="a"), Held(owner="b")], 0] * 4


@pytest.mark.parametrize(
    ("steps", "answers", "late", "code", "cause"),
    [
        (Table.acquire, [NO], 0.0, ReasonCode.HELD, None),
        (Table.acquire, [LOST], 0.0, ReasonCode.NO_MAJORITY, None),
        (Table.acquire, [5], 20.0, ReasonCode.GRANTED_TOO_LATE, None),
        (Table.acquire, [[5, 6, 7], LOST], 0.0, ReasonCode.FENCE_UNKNOWN, None),
        (adoption, [LOST], 0.0, ReasonCode.STILL_ADOPTABLE, ReasonCode.NO_MAJORITY),
        (adoption, [5], 20.0, ReasonCode.STILL_ADOPTABLE, ReasonCode.GRANTED_TOO_LATE),
        (adoption, [[5, 6, 7], LOST], 0.0, ReasonCode.STILL_ADOPTABLE, ReasonCode.FENCE_UNKNOWN),
        (adoption, [GONE], 0.0, ReasonCode.TOO_LATE_TO_ADOPT, None),
        (adoption, ADOPTED, 0.0, ReasonCode.ADOPTED_BY_SEVERAL, None),
        (prolonging, [NO], 0.0, ReasonCode.DENIED, None),
        (prolonging, [LOST], 0.0, ReasonCode.NOT_EXTENDED, None),
        (prolonging, [1], 20.0, ReasonCode.OVER_BEFORE_EXTENDED, None),
        (prolonging_late, [], 0.0, ReasonCode.OVER_BEFORE_ASKED, None),
    ],
)
def test_why_a_request_fails(steps, answers, late, code, cause):
    """Each ending of an attempt, an adoption and an extension, with what it was caused by."""
    table = Table(3)
    with pytest.raises(RedlockError) as caught:
        table.talk(steps(table), *answers, late=late)
    error = caught.value
    assert error.code == code
    if cause:
        assert isinstance(error.data["cause"], Reason)
        assert error.data["cause"].code == cause
        assert error.reason.endswith("; the handle can still be adopted, until its ttl is over")
    if code == ReasonCode.DENIED:
        assert {vote.reason for vote in error.votes} == {because(ReasonCode.GONE)}
    if code == ReasonCode.OVER_BEFORE_ASKED:
        assert table.asked == []


NUMBERS = count()


@pytest.fixture
def memory() -> Iterator[Any]:
    """Three nodes in memory."""
    nodes = [f"memory://reasons-{next(NUMBERS)}" for _ in range(3)]
    alias = {"NODES": nodes, "RENEW": False, "MAX_TTL": 60}
    with override_settings(REDLOCK={"default": alias}):
        yield conf.backend("default").group


def ended(use: Callable[[], object]) -> str:
    """The code of the error that comes of using a lease that is over."""
    with pytest.raises(LeaseLost) as caught:
        use()
    assert str(caught.value).endswith(f": {caught.value.reason}")
    return caught.value.code


def test_why_a_lease_is_over(memory):
    """Each way to have none."""
    lease = redlock("released").acquire()
    lease.release()
    assert ended(lease.ensure) == ReasonCode.RELEASED
    lease = redlock("given").acquire()
    lease.handle()
    assert ended(lease.ensure) == ReasonCode.GIVEN_AWAY
    lease = redlock("short").acquire()
    lease.grant = lease.grant._replace(deadline=lease.backend.policy.clock())
    assert ended(lease.ensure) == ReasonCode.TIME_OVER
    assert ended(lambda: assert_locked("never")) == ReasonCode.NEVER_TAKEN
    with (
        redlock("limited", limit=1),
        pytest.raises(LeaseLost, match=r"slot 0 of .* without a limit"),
    ):
        assert_locked("limited")
    lease = redlock("lost").acquire()
    for node in memory.nodes:
        node.keys.clear()
    assert ended(lease.extend) == ReasonCode.DENIED
    assert ended(lease.ensure) == ReasonCode.LOST


def test_why_a_lease_of_the_parent_is_over_in_a_child(memory, monkeypatch):
    """A forked process has none of its parent's."""
    lease = redlock("name").acquire()
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_pid", -1)  # of this lease alone: no thread takes part in the play
        assert ended(lease.ensure) == ReasonCode.PARENTS
    lease.release()


# A grant that was heard too late for that is none, and is tried again.
BRIEFLY: dict[str, Any] = {"ttl": 0.1, "wait": 20}


def test_why_a_block_fails_that_lost_its_lease(memory):
    """At its end, if it wants to be told so; and what was told when it was lost."""
    told: list[Any] = []

    def enter() -> None:
        with redlock("name", on_lost="raise", **BRIEFLY):
            eventually(lambda: told)

    events.subscribe(told.append, [events.EventKind.LOST])
    try:
        assert ended(enter) == ReasonCode.LOST_IN_BLOCK
    finally:
        events.unsubscribe(told.append, [events.EventKind.LOST])
    assert told[0].error.code == ReasonCode.RAN_OUT


def test_why_a_lease_ends_that_nobody_can_release(memory):
    """Its block is gone, and its time ran out."""
    told: list[Any] = []
    lease = redlock("name", **BRIEFLY).acquire()
    lease.block = lambda: None
    events.subscribe(told.append, [events.EventKind.LOST])
    try:
        eventually(lambda: told)
    finally:
        events.unsubscribe(told.append, [events.EventKind.LOST])
    assert told[0].error.code == ReasonCode.NEVER_RELEASED


def test_why_a_renewal_is_unknown(memory, caplog):
    """Asking itself failed; the log has the error's code as a field."""
    lease = redlock("name").acquire()
    renewal = RenewalBatch(lease.backend, [weakref.ref(lease)])
    renewal.fail()
    assert renewal.lost == []
    assert lease.held
    assert caplog.records[-1].redlock_event == "not renewed"
    assert caplog.records[-1].redlock_code == "not_asked"
    lease.release()


def test_why_an_extension_came_too_late(memory, monkeypatch):
    """The watchdog was faster, so the lease stands."""
    lease = redlock("name").acquire()
    lost = LeaseLost(because(ReasonCode.OVER_BEFORE_EXTENDED), name="name")

    def overtaken(*_: object) -> Any:
        yield from ()
        return [lost]

    monkeypatch.setattr(hold, "extend_many", overtaken)
    with pytest.raises(NodesUnavailable) as caught:
        lease.extend()
    assert caught.value.code == ReasonCode.PROLONGED_ELSEWHERE
    lease.release()


# -- how each comes to be: surveys ----------------------------------------------------------------


def surveyed(*nodes: NodeReport) -> Report:
    """A survey of these nodes."""
    return Report("default", nodes, (), majority=2)


UP = NodeReport("a", heard=True, voting=True)
DOWN = NodeReport("a", heard=False, voting=False, reason=because(ReasonCode.DOWN))


def test_a_survey_advises():
    """What to do comes once, however many nodes it is about."""
    clock = because(ReasonCode.CLOCK, seconds=9.0, skew=5.0)
    wrong = NodeReport("a", heard=True, voting=False, reason=clock, clock_off=-9.0)
    guard = because(ReasonCode.RESTART_GUARD, seconds=5.0)
    young = NodeReport("a", heard=True, voting=False, reason=guard, guard_left=5.0)
    evicting = replace(UP, maxmemory=1, maxmemory_policy="allkeys-lru", evicted_keys=2)
    found = surveyed(young, young, wrong, wrong, DOWN, evicting)
    assert [advice.code for advice in found.advice] == [
        ReasonCode.ADVICE_GUARD,
        ReasonCode.ADVICE_CLOCK,
        ReasonCode.ADVICE_DOWN,
        ReasonCode.EVICTS,
    ]
    assert [describe(node.reason or node.warning, brief=True) for node in found.nodes] == [
        "restart guard",
        "restart guard",
        "clocks differ by 9.0 s",
        "clocks differ by 9.0 s",
        "down",
        "allkeys-lru",
    ]
    assert [found.nodes[i].state for i in (0, 4, 5)] == ["no vote", "down", "up"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ReasonCode.CONNECTION_REFUSED, "down: start the server, or correct its entry in REDLOCK"),
        (ReasonCode.LOADING, "LOADING: still loading its data; look again when it has loaded them"),
        (
            ReasonCode.PROMOTED,
            "; put an independent master in its place, or delete its dump.rdb ",
        ),
        (ReasonCode.LOGIN_REFUSED, ""),  # its sentence says it
    ],
)
def test_who_answers_is_not_to_be_started(code, advice):
    """Of a server that answers and has no vote, the line below the table says what helps."""
    node = NodeReport("a", heard=False, voting=False, reason=because(code))
    both = surveyed(node, node)
    told = ReasonCode.ADVICE_DOWN if advice.startswith("down") else ReasonCode.ADVICE_NODE
    assert [each.code for each in both.advice] == [told] * bool(advice)
    assert advice in "".join(map(str, both.advice))
