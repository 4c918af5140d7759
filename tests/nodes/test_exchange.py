"""Conversations with an exchange: it is told facts and the time, and decides.

Nodes and connections are made up, and the clock is set by hand; there is no socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock import events
from django_redlock.core.commands import Acquire, Release, Survey
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Request, Vote
from django_redlock.core.quorum import all_heard, granted_or_not, with_majority
from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.events import NodeTiming
from django_redlock.nodes.exchange import (
    HANDSHAKE,
    LEAST_LINGER,
    LEAST_WORTH,
    LINGER,
    LISTEN,
    OVER,
    PATIENCE,
    Exchange,
    Verdict,
)
from django_redlock.nodes.node import ConnectAttempt

TIMEOUT = 1.0
TARGET = Policy(size=5).target(["name"])
START = 100.0
PATIENT = 2.0 * HANDSHAKE
DOWN, SLOW, GUARD = (
    because(ReasonCode.DOWN),
    because(ReasonCode.CONNECTING, seconds=TIMEOUT),
    because(ReasonCode.RESTART_GUARD, seconds=3.0),
)


@dataclass
class Node:
    """A node as an exchange knows one."""

    label: str
    alias: str = "default"
    down_reason: Reason | None = None
    unconnected: Reason = SLOW
    duplicate_of: str = ""
    says: Reason | None = None  # why it may not vote
    kept: list[object] = field(default_factory=list)  # what it is to undo later

    @property
    def not_waited_for(self) -> Vote:
        """Its vote where nobody waited."""
        return Vote(self.label, Answer.UNKNOWN, reason=because(ReasonCode.NOT_WAITED_FOR))

    @property
    def down(self) -> bool:
        """Whether it is known to be down."""
        return self.down_reason not in {None, self.unconnected}

    @property
    def why_unasked(self) -> Reason:
        """Why a request went without a connection to it."""
        return self.down_reason or self.unconnected

    def objection(self, *_: object) -> Reason | None:
        """Why it has no vote."""
        return self.says

    def undo_later(self, asker: object) -> None:
        """Keep what is to be undone."""
        self.kept.append(asker)


@dataclass
class Connection:
    """A connection as an exchange knows one."""

    guarded: bool = False
    silent: float = 0.0
    fault: Reason | None = None
    heard: float = -math.inf

    def silent_for(self, now: float) -> float:
        """For how long an answer has been missing."""
        return min(self.silent, now - self.heard)


class Clock:
    """The time, set by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def grant(**facts: Any) -> Request:
    """A request that a majority of five decides."""
    decided = with_majority(granted_or_not, 3)
    return Acquire("1" * 32, decided, TARGET, 0, 0, 0, "", **facts)


def release(**facts: Any) -> Request:
    """A request that undoes; clear once three have answered."""
    return Release(
        "1" * 32, lambda votes: sum(vote is not None for vote in votes) >= 3, TARGET, **facts
    )


def collector(request: Request, clock: Clock | None = None) -> Any:
    """The exchange of a thread, for five nodes."""
    nodes: Any = [Node(f"n{i}") for i in range(5)]
    one = Exchange(nodes, request, TIMEOUT, clock=clock or Clock())
    one.prompt = ()
    return one


def task(request: Request, clock: Clock | None = None) -> tuple[Any, list[Verdict]]:
    """The exchange of a task, and the verdicts that it tells of."""
    nodes: Any = [Node(f"n{i}") for i in range(5)]
    told: list[Verdict] = []
    made = Exchange(nodes, request, TIMEOUT, future(), clock=clock or Clock())
    made.follow = lambda _, verdict: told.append(verdict)
    return made, told


def future(*, done: bool = False) -> Any:
    """What a task waits for."""
    return SimpleNamespace(done=lambda: done)


def asked(one: Any) -> None:
    """Tell that all five were asked, and owed nothing before."""
    one.unheard.update({place: Connection() for place in range(5)})
    if one.prompt is not None:
        one.prompt = tuple(range(5))


def vote(one: Any, place: int, answer: Answer = Answer.YES) -> None:
    """Tell a vote."""
    one.votes[place] = Vote(f"n{place}", answer)
    one.unheard.pop(place, None)


# -- when it is enough ----------------------------------------------------------------------------


def test_a_majority_ends_the_listening() -> None:
    """As long as it has not voted, the algorithm's rule is not called; then the rule decides."""
    assert collector(grant()).verdict() is OVER  # nobody was asked
    one = collector(grant())
    asked(one)
    for place in (4, 1):
        vote(one, place)
        assert one.verdict() is LISTEN
    vote(one, 2)
    assert one.verdict() is OVER
    calls: list[int] = []

    def never(_: object) -> bool:
        calls.append(1)
        return False

    one = collector(replace(grant(), decided=never))
    asked(one)
    for place in range(2):
        vote(one, place)
        assert one.verdict() is LISTEN
    assert (calls, one.votes_to_quorum) == ([], 1)
    vote(one, 2)
    assert one.verdict() is LISTEN
    assert (calls, one.votes_to_quorum) == ([1], 0)


def test_what_the_asker_finds_worth_it_is_waited_for() -> None:
    """For as long again as it took, and for ten milliseconds at least."""
    for took, until in ((0.3, 0.6), (0.001, 0.001 + LEAST_WORTH)):
        clock = Clock()
        one = collector(grant(worth=lambda votes: None in votes), clock)
        asked(one)
        for place in range(3):
            vote(one, place)
        clock.now += took
        assert one.verdict() is LINGER
        assert one.lingers_until == pytest.approx(START + until)
        clock.now += 0.05
        vote(one, 3)
        assert one.verdict() is LINGER
        assert one.lingers_until == pytest.approx(START + until)  # no longer for each vote
        vote(one, 4)
        assert one.verdict() is OVER


def test_undoing_waits_for_prompt_nodes_only() -> None:
    """A node that owed an answer before may hang, and costs a release nothing."""
    one = collector(release())
    asked(one)
    one.prompt = (0, 1, 2, 3)
    for place in range(3):
        vote(one, place)
    assert one.verdict() is LINGER
    assert one.lingers_until == START + LEAST_LINGER
    vote(one, 3)
    assert one.verdict() is OVER


def test_undoing_waits_for_nodes_that_answer_others() -> None:
    """A loop's connection owes something at most times: prompt is who was heard lately."""
    clock = Clock()
    one, told = task(release(), clock)
    asked(one)
    one.unheard[3].silent, one.unheard[4].silent = 0.2, 0.4
    clock.now += 0.3
    for place in range(3):
        one.hear(place, Vote(f"n{place}", Answer.YES))
    assert told == [LINGER]
    one.hear(3, Vote("n3", Answer.YES))
    assert told == [LINGER, OVER]


def test_a_node_that_is_being_connected_is_waited_for() -> None:
    """Though enough have granted: a lease on a bare majority ends with the first of these nodes."""
    one, told = task(grant())
    asked(one)
    del one.unheard[4]
    one.coming = {4: ConnectAttempt(None)}
    for place in range(4):
        one.hear(place, Vote(f"n{place}", Answer.YES))
    assert told == [LINGER]
    assert one.lingers_until == START + TIMEOUT


def test_a_task_that_waits_no_more_hears_nothing() -> None:
    """What comes after its end changes no vote."""
    nodes: Any = [Node(f"n{i}") for i in range(5)]
    told: list[Verdict] = []
    one = Exchange(nodes, grant(), TIMEOUT, future(done=True))
    one.follow = lambda _, verdict: told.append(verdict)
    one.unheard[0] = Connection()  # type: ignore[assignment]
    one.hear(0, Vote("n0", Answer.YES))
    assert (one.votes, told) == ([None] * 5, [])


@pytest.mark.parametrize("over", [False, True])
def test_who_watches_the_nodes_hears_why_one_gave_no_vote(monkeypatch, over) -> None:
    """A vote that is unknown because the request is over says nothing of the node."""
    heard: list[NodeTiming] = []
    monkeypatch.setattr(events, "node_watchers", {heard.append: None})
    one = collector(grant())
    one.ask({0: Connection()}, START)
    if over:
        one.forget()
    one.hear(0, Vote("n0", Answer.UNKNOWN, reason=DOWN))
    assert [timing.reason for timing in heard] == ([] if over else [DOWN])


# -- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "urgent", "waits"),
    [
        (None, False, True),
        (None, True, True),
        (SLOW, False, False),
        (SLOW, True, True),
        (DOWN, False, False),
        (DOWN, True, True),
    ],
)
def test_a_node_in_trouble_is_waited_for_only_if_it_is_needed(reason, urgent, waits) -> None:
    """Down, or slow to be connected; the others always."""
    one = collector(grant())
    one.nodes[0].down_reason, one.urgent = reason, urgent
    assert one.awaits(0) is waits


@pytest.mark.parametrize(
    ("urgent", "reason", "waited", "silent", "left"),
    [
        (False, None, 0.25, 0.0, 0.75),  # a node timeout …
        (False, None, 1.0, 0.0, 0.0),  # … whatever it says meanwhile
        (True, None, 1.0, 1.0, HANDSHAKE - 1.0),  # without a majority, as long as it gives signs
        (True, None, 9.0, 0.5, HANDSHAKE - 0.5),
        (True, None, 9.0, 4.0, 0.0),
        (True, None, PATIENCE - 1.0, 0.0, 1.0),  # but not for ever
        (True, SLOW, 9.0, 0.5, HANDSHAKE - 0.5),  # it may be this machine that is slow
        (True, DOWN, 1.0, 0.0, 0.0),  # and not for one that is known to be down
    ],
)
def test_for_how_long_a_handshake_is_waited_for(urgent, reason, waited, silent, left) -> None:
    """Seconds that are left, having waited so long."""
    one = collector(grant())
    one.nodes[0].down_reason, one.urgent = reason, urgent
    one.awaits(0)
    assert max(0.0, one.handshake_left(0, waited, silent)) == pytest.approx(left)


@pytest.mark.parametrize(
    ("reason", "left"), [(None, PATIENT - 1.0), (SLOW, PATIENT - 1.0), (DOWN, 0.0)]
)
def test_who_asks_once_waits_for_who_is_slow_to_be_connected(reason, left) -> None:
    """Whatever others wait for it, also where there is a majority; not for one that is down."""
    keys = "redlock:held", "redlock:waits", "redlock:lock:"
    one = collector(Survey("1" * 32, all_heard, *keys, 1, patience=PATIENT))
    one.nodes[0].down_reason = reason
    assert one.awaits(0) is (left > 0)
    assert max(0.0, one.handshake_left(0, 1.0, 1.0)) == pytest.approx(left)


def test_what_is_known_at_the_beginning_counts() -> None:
    """A node that is called down while it is being connected is given the same time."""
    one = collector(grant())
    one.urgent = True
    one.awaits(0)
    one.nodes[0].down_reason = DOWN
    assert one.handshake_left(0, 1.0, 0.0) == pytest.approx(HANDSHAKE)


@pytest.mark.parametrize(
    ("silent", "late", "waited", "left"),
    [
        ([0.25], 0.0, 0.25, 0.75),  # a node timeout since the node's last sign …
        ([0.25, 0.75], 0.0, 0.75, 0.75),  # … of each node …
        ([1.0], 0.0, 1.0, 0.0),
        ([4.0], 0.25, 4.0, 0.0),  # … also where this thread was a little late
        ([4.0], 0.3, 1.0, 1.0),  # who did not run has heard no node
        ([4.0], 0.3, PATIENCE - 0.5, 0.5),  # but not for ever
        ([0.25], 0.0, PATIENCE, 0.0),
    ],
)
def test_for_how_long_a_reply_is_waited_for(silent, late, waited, left) -> None:
    """Seconds that are left; one that has ended is not waited for."""
    clock = Clock()
    one = collector(grant(), clock)
    one.unheard = {index: Connection(silent=each) for index, each in enumerate(silent)}
    one.unheard[4] = Connection(fault=DOWN)
    listening: Any = SimpleNamespace(late=late, waited=waited)
    assert one.next_wait(listening) == pytest.approx(left)
    one.lingering, one.lingers_until = True, clock.now + 0.1
    assert one.next_wait(listening) == pytest.approx(min(left, 0.1))
    one.lingers_until = clock.now - 0.1
    assert one.next_wait(listening) == 0.0


@pytest.mark.parametrize(
    ("request_", "connection", "duplicate", "barred"),
    [
        (grant(), Connection(guarded=True), "", True),
        (grant(), Connection(), "n1", True),
        (grant(), Connection(), "", False),
        (release(), Connection(guarded=True), "n1", False),
    ],
    ids=["guard", "duplicate", "well", "undoing"],
)
def test_who_may_not_vote_is_not_asked_to(request_, connection, duplicate, barred) -> None:
    """Under the guard, or listed twice; but it undoes like any other."""
    one = collector(request_)
    one.nodes[0].says, one.nodes[0].duplicate_of = GUARD, duplicate
    owed = one.ask({0: connection}, START)
    assert (0 in owed) is not barred
    assert one.votes[0] == (
        Vote("n0", Answer.UNKNOWN, reason=GUARD, sent=False) if barred else None
    )


# -- what is entrusted to a later connection ------------------------------------------------------


def test_a_node_without_a_connection_undoes_later() -> None:
    """If it may have what is undone; and says why it is not reached."""
    one = collector(release(touched=frozenset({0, 1})))
    one.nodes[0].down_reason = DOWN
    for place in (0, 1, 2):
        one.unreachable(place)
    assert [bool(node.kept) for node in one.nodes] == [True, True, False, False, False]
    assert [each.reason for each in one.votes[:3]] == [DOWN, SLOW, SLOW]


def test_a_grant_is_entrusted_to_nobody() -> None:
    """Nobody may grant later what the asker has given up."""
    one = collector(grant())
    one.unreachable(0)
    one.not_sent(1, None)
    assert not any(node.kept for node in one.nodes)


def test_what_a_broken_connection_took_may_have_arrived() -> None:
    """Without a fault it was not sent; either way it is undone later."""
    one = collector(release())
    one.not_sent(0, DOWN)
    one.not_sent(1, None)
    assert [(each.sent, each.reason) for each in one.votes[:2]] == [
        (True, DOWN),
        (False, because(ReasonCode.BACKLOG)),
    ]
    assert [bool(node.kept) for node in one.nodes[:2]] == [True, True]


def test_an_interruption_leaves_nothing_undone() -> None:
    """Of a release, all nodes that have not confirmed it."""
    one = collector(release())
    asked(one)
    vote(one, 0)
    vote(one, 1, Answer.UNKNOWN)
    one.keep_unanswered()
    assert [bool(node.kept) for node in one.nodes] == [False, True, True, True, True]
    assert one.over


def test_only_some_nodes_are_asked() -> None:
    """The others have no vote, and none is expected of them."""
    one = collector(grant(to=frozenset({1, 3}), first=3))
    assert list(one.asked) == [3, 1]
    assert [vote is None for vote in one.votes] == [False, True, False, True, False]


# -- the result -----------------------------------------------------------------------------------


def test_a_node_that_was_silent_is_told_so() -> None:
    """If nothing was clear after a node timeout, it was the nodes who did not answer."""
    clock = Clock()
    one = collector(grant(), clock)
    asked(one)
    vote(one, 0)
    clock.now += TIMEOUT
    found = one.result()
    assert [each.reason.code for each in found[1:]] == [ReasonCode.NO_ANSWER] * 4
    assert all(each.sent for each in found)
    assert one.over


@pytest.mark.parametrize(("granted", "after"), [(3, 2.0), (1, 0.5)])
def test_a_node_that_nobody_waited_for_is_not_accused(granted, after) -> None:
    """Where it was enough, or the asker left early."""
    clock = Clock()
    one = collector(grant(), clock)
    asked(one)
    for place in range(granted):
        vote(one, place)
    clock.now += after
    assert {each.reason.code for each in one.result()[granted:]} == {ReasonCode.NOT_WAITED_FOR}


def test_too_few_votes_are_too_few() -> None:
    """Then another node matters, but never for what undoes: that is entrusted to it."""
    for request, short in ((grant(), True), (release(), False)):
        one = collector(request)
        asked(one)
        for place, answer in enumerate((Answer.YES, Answer.NO, Answer.UNKNOWN)):
            vote(one, place, answer)
        assert one.is_short_of_votes() is short
        vote(one, 3)
        assert one.is_short_of_votes() is False


def test_a_node_that_was_given_up_may_vote_after_all() -> None:
    """It counts as open again."""
    one = collector(grant())
    for place in range(5):
        one.unreachable(place)
    one.lingering = True
    one.reopen(2)
    one.unheard[2] = Connection()
    assert one.votes.count(None) == 1
    assert one.lingering is False


def test_all_nodes_owe_the_same() -> None:
    """One reply is expected of all, unless each is asked something else."""
    both = {0: Connection(), 1: Connection()}
    owed = collector(grant()).ask(both, 5.0)
    assert owed[0] is owed[1]
    assert owed[0].since == 5.0
    owed = collector(grant(each={0: 7, 1: 8})).ask(both, 5.0)
    assert owed[0].packed != owed[1].packed


def test_a_node_is_asked_once() -> None:
    """Not again where it has voted, or is still to answer."""
    one = collector(grant())
    asked(one)
    vote(one, 0)
    del one.unheard[2]
    every = {place: Connection(guarded=True) for place in range(5)}
    one.nodes[1].says = GUARD
    assert list(one.ask(every, 5.0)) == [2]
    assert one.votes[1] is None
