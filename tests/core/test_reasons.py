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
    LockTaken,
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
)
from django_redlock.events import NodeTiming
from django_redlock.inspection import Health, NodeReport, Report
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


@pytest.mark.parametrize("code", ReasonCode)
def test_each_code_has_a_sentence(code):
    """It can be shown, in one line; where it has a shorter one, that needs nothing else."""
    said = str(sample(code))
    assert said
    assert said.isprintable()
    assert "{" not in said
    assert re.fullmatch("[a-z]+(_[a-z]+)*", code.value)
    assert code.value == code.name.lower()
    data = sample(code).data | SAMPLE
    assert code.brief.format_map(data).isprintable()
    assert describe(Reason(code, tuple(data.items())), brief=True).isprintable()


def test_the_example_of_the_page_runs(memory):
    """It returns the codes of the nodes that gave no vote."""
    (block,) = blocks(PAGE)[:1]
    scope: dict[str, Any] = {}
    exec(block.text, scope)  # noqa: S102 - our own page
    assert scope["why_not"]() == []
    memory.down = {0, 2}
    assert scope["why_not"]() == ["down", "down"]


# -- a reason -------------------------------------------------------------------------------------


def test_what_others_say_is_escaped():
    """Nothing that a node or a name says steers a terminal, ends a line, or fills in a sentence."""
    said = str(because(ReasonCode.ERROR, text="\x1b[2J\n{seconds}\u202e"))
    assert said == r"answered with an error: \x1b[2J\n{seconds}\u202e"


@pytest.mark.parametrize(
    "kept",
    [
        because(ReasonCode.NO_ANSWER, seconds=0.5),
        Vote("a", Answer.UNKNOWN, reason=because(ReasonCode.DOWN)),
        NodeStatus("a", voting=False, reason=because(ReasonCode.DOWN)),
        NodeTiming("default", "a", None, because(ReasonCode.DOWN)),
    ],
)
def test_what_has_a_reason_can_be_pickled(kept):
    """It comes back equal, and says the same."""
    read = pickle.loads(pickle.dumps(kept))  # noqa: S301 - our own
    assert read == kept
    assert (str(read), read.code) == (str(kept), kept.code)


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


def test_an_error_with_its_votes_survives_pickling():
    """Task queues store errors; so do those that a name is made of."""
    refused = because(ReasonCode.NO_SUCH_DATABASE)
    votes = [Vote(node, Answer.UNKNOWN, reason=refused) for node in "ab"]
    reason = because(ReasonCode.NO_MAJORITY, votes=0, size=2, needed=2)
    error = NodesUnavailable(reason, name="name", votes=votes)
    assert str(error) == (
        "'name': 0 of 2 nodes could vote, 2 are needed; 2 of 2 nodes: has no database of that "
        "number; correct it in NODES (a, b); run manage.py redlock_check to see what each node "
        "needs"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    with pytest.raises(ValueError, match=r"the lock name .* has control characters") as caught:
        redlock("a\n").acquire()
    read = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert str(read) == str(caught.value)


# -- errors ---------------------------------------------------------------------------------------


def unavailable(*said: tuple[str, Reason | None]) -> str:
    """The text of an error about these nodes."""
    votes = [Vote(node, Answer.UNKNOWN, reason=reason) for node, reason in said]
    reason = because(ReasonCode.NO_MAJORITY, votes=0, size=len(said), needed=len(said) // 2 + 1)
    return str(NodesUnavailable(reason, name="name", votes=votes))


def test_equal_reasons_are_told_once():
    """With the nodes that gave them, in the order of the nodes; who gave none is not told."""
    refused, guard = because(ReasonCode.CONNECTION_REFUSED), because(ReasonCode.DOWN)
    text = unavailable(("a", refused), ("b", guard), ("c", refused), ("d", None), ("e", refused))
    assert text == (
        "'name': 0 of 5 nodes could vote, 3 are needed; "
        "3 of 5 nodes: connection refused (a, c, e); b: down"
    )


def test_reasons_that_differ_by_seconds_are_told_with_the_most():
    """However the nodes are ordered."""
    for order in ((3.21, 1.0, 2.0), (1.0, 2.0, 3.21)):
        said = [because(ReasonCode.RESTART_GUARD, seconds=seconds) for seconds in order]
        assert by_node(zip("abc", said, strict=True), 3) == [
            f"3 of 3 nodes: {because(ReasonCode.RESTART_GUARD, seconds=3.21)} (a, b, c)"
        ]


def test_reasons_that_differ_by_more_are_told_apart():
    """Another text, another node or another limit is another reason."""
    texts = [because(ReasonCode.ERROR, text=text) for text in ("x", "y", "x")]
    assert by_node(zip("abc", texts, strict=True), 3) == [
        "2 of 3 nodes: answered with an error: x (a, c)",
        "b: answered with an error: y",
    ]


def test_a_nodes_name_is_escaped():
    """A label may be a path with anything in it; an error stays one line."""
    down = because(ReasonCode.DOWN)
    assert by_node([("unix:/\n\x1b[2J", down)], 2) == [r"unix:/\n\x1b[2J: down"]
    assert by_node([("a\n", down), ("b", down)], 2) == [r"2 of 2 nodes: down (a\n, b)"]


def test_no_error_tells_a_password(tmp_path):
    """Of three nodes that nobody serves: in the text, in the votes, and pickled."""
    path = f"{tmp_path}/a\nb"
    nodes: list[object] = [
        "redis://user:s3cr3t@127.0.0.1:1/0",
        {"URL": "redis://127.0.0.1:2/0", "PASSWORD": "s3cr3t"},
        {"URL": f"unix://{path}", "USERNAME": "s3cr3t", "PASSWORD": "s3cr3t"},
    ]
    with (
        override_settings(REDLOCK={"default": {"NODES": nodes, "NODE_TIMEOUT": 5}}),
        pytest.raises(NodesUnavailable) as caught,
    ):
        redlock("name").acquire()
    error = caught.value
    assert [vote.code for vote in error.votes] == [
        ReasonCode.CONNECTION_REFUSED,
        ReasonCode.CONNECTION_REFUSED,
        ReasonCode.NO_SUCH_SOCKET,
    ]
    assert "; 2 of 3 nodes: connection refused (127.0.0.1:1/0, 127.0.0.1:2/0); unix:" in str(error)
    assert str(error).isprintable()
    assert b"s3cr3t" not in pickle.dumps(error)
    assert "s3cr3t" not in f"{error!r} {error.votes!r}"


def test_an_error_has_a_code_and_its_data():
    """A program need not read the text; what is stored is read as it was."""
    reason = because(ReasonCode.NO_MAJORITY, votes=2, size=5, needed=3)
    error = NodesUnavailable(reason, name="name")
    assert error.args == (error.reason,) == ("2 of 5 nodes could vote, 3 are needed",)
    assert (error.code, error.data) == ("no_majority", {"votes": 2, "size": 5, "needed": 3})
    assert (type(error.code), type(error.reason)) == (str, str)
    read = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (read.code, read.data, str(read)) == (error.code, error.data, str(error))
    mere = NodesUnavailable("why")
    assert (mere.reason, mere.code, mere.data) == ("why", "", {})


# -- how each comes to be: errors -----------------------------------------------------------------


@pytest.mark.parametrize(("word", "code"), ERRORS.items())
def test_what_a_node_refuses(word, code):
    """An error reply is known by its first word, when it is connected and later."""
    assert complaint(ReplyError(f"{word} secret details")) == because(code)
    assert why_unreached(exceptions.ResponseError(f"{word} details")) == because(code)
    words = {
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
    assert words[word] is code


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


def refused(table: Table, steps: Any, *answers: object, late: float = 0.0) -> RedlockError:
    """What the steps raise."""
    with pytest.raises(RedlockError) as caught:
        table.talk(steps, *answers, late=late)
    return caught.value


@pytest.mark.parametrize(
    ("answers", "late", "code"),
    [
        ([NO], 0.0, ReasonCode.HELD),
        ([LOST], 0.0, ReasonCode.NO_MAJORITY),
        ([5], 20.0, ReasonCode.GRANTED_TOO_LATE),
        ([[5, 6, 7], LOST], 0.0, ReasonCode.FENCE_UNKNOWN),
    ],
)
def test_why_an_attempt_fails(answers, late, code):
    """Each ending of ``acquire``, and of ``adopt`` where the handle is still good."""
    table = Table(3)
    error = refused(table, table.acquire(), *answers, late=late)
    assert error.code == code
    if isinstance(error, NodesUnavailable):
        again = refused(table, adoption(table), *answers, late=late)
        assert again.code == ReasonCode.STILL_ADOPTABLE
        assert isinstance(again.data["cause"], Reason)
        assert again.data["cause"].code is code
        assert again.reason == (
            f"{error.reason}; the handle can still be adopted, until its ttl is over"
        )


def adoption(table: Table) -> Any:
    """Steps to adopt."""
    target = table.policy.target(["a"])
    return acquire.adopt(table.policy, target, old="f" * 32, label="me", ttl=10)


def test_why_an_adoption_fails():
    """Too late; or several adopt at the same time."""
    table = Table(3)
    assert refused(table, adoption(table), GONE).code == ReasonCode.TOO_LATE_TO_ADOPT
    split = [5, Held(owner="a"), Held(owner="b")]
    error = refused(table, adoption(table), *[split, 0] * 4)
    assert (type(error), error.code) == (LockTaken, ReasonCode.ADOPTED_BY_SEVERAL)


@pytest.mark.parametrize(
    ("answer", "late", "code"),
    [
        (NO, 0.0, ReasonCode.DENIED),
        (LOST, 0.0, ReasonCode.NOT_EXTENDED),
        (1, 20.0, ReasonCode.OVER_BEFORE_EXTENDED),
    ],
)
def test_why_a_lease_is_not_extended(answer, late, code):
    """A majority denies it, too few nodes answer, or they answer too late."""
    table = Table(3)
    steps = extend(table.policy, table.grant(), ttl=10)
    error = refused(table, steps, answer, late=late)
    assert error.code == code
    gone = because(ReasonCode.GONE) if answer == NO else None
    assert answer == LOST or {vote.reason for vote in error.votes} == {gone}


def test_why_a_lease_that_is_over_is_not_extended():
    """Nobody is asked."""
    table = Table(3)
    grant = table.grant()
    table.now += 20
    error = refused(table, extend(table.policy, grant, ttl=10))
    assert (error.code, table.asked) == (ReasonCode.OVER_BEFORE_ASKED, [])


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


@pytest.mark.parametrize(
    ("states", "health", "code", "said"),
    [
        ([UP, UP, UP], Health.OK, ReasonCode.HEALTHY, "healthy (3 of 3 nodes vote, 2 are needed)"),
        (
            [UP, UP, DOWN],
            Health.DEGRADED,
            ReasonCode.DEGRADED,
            "degraded (2 of 3 nodes vote, 2 are needed)",
        ),
        (
            [UP, DOWN, DOWN],
            Health.NO_MAJORITY,
            ReasonCode.NO_LOCK,
            "no majority, no lock can be taken (1 of 3 nodes vote, 2 are needed)",
        ),
    ],
)
def test_a_survey_sums_up(states, health, code, said):
    """The health, as a code and as a sentence."""
    found = surveyed(*states)
    assert (found.health, found.summary.code, str(found.summary)) == (health, code, said)


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
