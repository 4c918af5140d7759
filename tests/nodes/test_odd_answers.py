"""What a node may say, and what comes of it: its own vote is unknown, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import select
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import hiredis
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from redis.exceptions import RedisError

from django_redlock import LeaseLost, LockTaken, NodesUnavailable
from django_redlock.core.commands import (
    COMMANDS,
    Acquire,
    Extend,
    Extension,
    NamesRequest,
    Release,
    Return,
    Survey,
)
from django_redlock.core.hold import extend_many
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import (
    Answer,
    BlockOnNode,
    Command,
    Grant,
    Request,
    Vote,
    Waiter,
    Wakeup,
)
from django_redlock.core.reasons import ReasonCode, because, describe
from django_redlock.inspection.survey import survey
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import admission, replies
from django_redlock.nodes.address import from_url
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.faults import CLOSED, Refused, why_unreached
from django_redlock.nodes.handshake import open_connection
from django_redlock.nodes.node import ConnectAttempt
from django_redlock.testing import EmbeddedNodes
from tests.support.alone import Alone
from tests.support.loops import group_of, template, unguarded
from tests.support.waiting import eventually
from tests.support.wire import Heard

from .odd_node import ECHOED, GREETING, ODDITIES, QUIET, STEPS, UNECHOED, Oddity, OddNode

PATIENCE = 5.0  # seconds that an honest node may take on this machine
LONG = 30.0  # seconds that nothing here lasts, however odd a node is
TARGET = Policy(size=3).target(["name"])
NONCE = "0123456789abcdef" * 2
ORDINARY = Answer.YES, Answer.NO, Answer.UNKNOWN
SAMPLE = {
    "html",
    "a map by a list",
    "a forgotten script, again and again",
    "granted without a number",
    "held by other types",
    "freed without a number",
    "strings without end",
}
HANDSHAKE_SAMPLE = {
    "html",
    "a number",
    "a map",
    "an error that is no text",
    "an error without a word",
    "a redirection to nowhere",
    "the end",
}
CODES = {  # why an odd answer closes the connection
    "html": ReasonCode.NOT_THE_PROTOCOL,
    "an empty line": ReasonCode.NOT_THE_PROTOCOL,
    "no number": ReasonCode.NOT_THE_PROTOCOL,
    "a string of less than nothing": ReasonCode.NOT_THE_PROTOCOL,
    "held: a label of 2 MB": ReasonCode.TOO_LONG,
    "a string without end": ReasonCode.TOO_LONG,
    "strings without end": ReasonCode.TOO_LONG,
    "a number": ReasonCode.OUT_OF_STEP,
    "granted without a number": ReasonCode.SENSELESS,
    "the end": ReasonCode.CONNECTION_CLOSED,
}
patiently = hypothesis(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def _ask(command: Command) -> Request:
    """A question as the algorithm asks it, about one name or one tenancy."""
    fields: dict[Command, tuple[Any, ...]] = {
        Command.GRANT: (TARGET, 1, 1, 1, ""),
        Command.RAISE: (TARGET, 1),
        Command.EXTEND: ([Extension(NONCE, TARGET, 1)],),
        Command.HEAL: (TARGET, 1, 1, ""),
        Command.RELEASE: (TARGET,),
        Command.REST: (TARGET, 1),
        Command.COMPLETE: (TARGET, 1),
        Command.REVOKE: (TARGET, "0123456789abcdef", "why"),
        Command.RETURN: (TARGET, NONCE),
        Command.MEMORY: (TARGET.fences, TARGET.waits, 9),
        Command.LOOK: (TARGET, 0, 1),
        Command.CLAIM: (TARGET.queues[0],),
        Command.SURVEY: (TARGET.held, TARGET.waits, "redlock:lock:", 0, ("name",)),
        Command.MARK: ("redlock:marks", "redlock:mark:t:name", TARGET.keys, 1, "t", "id"),
        Command.UNMARK: ("redlock:marks", "redlock:mark:t:name"),
    }
    return KINDS[command](NONCE, lambda _: True, *fields[command])


KINDS = {kind.command: kind for kind in COMMANDS}
WORDS: dict[object, Command] = {kind.done: kind.command for kind in COMMANDS}


def about(oddity: Oddity) -> Command:
    """The question that an odd answer seems to answer."""
    if oddity.name not in ECHOED:
        return Command.GRANT
    word = hiredis.Reader()
    word.feed(b"".join(ECHOED[oddity.name]) or b"+\r\n")
    try:
        return WORDS.get(word.gets(), Command.GRANT)
    except TypeError:
        return Command.GRANT


@pytest.fixture
def nothing_unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No exception ends a thread or is swallowed by the interpreter."""
    seen: list[object] = []
    gc.collect()  # what other tests have dropped
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_value))
    monkeypatch.setattr(threading, "excepthook", lambda told: seen.append(told.exc_value))
    yield
    gc.collect()
    assert seen == []


def opened(url: str, timeout: float = PATIENCE) -> Connection:
    """A connection to a node."""
    return open_connection(
        from_url(url), index=0, fences=TARGET.fences, guard=0, skew=5, earlier=None, timeout=timeout
    )


def hear(connection: Connection, command: Command, within: float) -> Vote | None:
    """Ask, and return the vote; None if there is none within the seconds."""
    heard: list[Vote] = []
    ask = _ask(command)

    def note(_: int, vote: Vote) -> None:
        heard.append(vote)

    now = time.monotonic()
    connection.send(Heard(ask, note))
    poll = select.poll()
    poll.register(connection.fileno, select.POLLIN)
    while not heard and (left := now + within - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            connection.read()
    return heard[0] if heard else None


# -- one connection -------------------------------------------------------------------------------


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.name)
def test_an_odd_answer_is_no_vote_and_ends_the_connection(oddity):
    """The vote says which node it was and why; the connection is closed."""
    with OddNode(oddity) as node:
        connection = opened(node.url)
        quiet = oddity.name in QUIET
        vote = hear(connection, about(oddity), within=0.2 if quiet else LONG)
        if not quiet:
            assert vote is not None
            assert (vote.answer, vote.node) == (Answer.UNKNOWN, connection.label)
            assert vote.why
            assert vote.why.isprintable()
        if code := CODES.get(oddity.name):
            assert vote is not None
            assert vote.reason == connection.fault == because(code)
        if oddity.ends or "redirection" in oddity.name:
            assert connection.fault
            eventually(lambda: node.open == 0)
        else:
            assert vote is None or connection.fault is None
            connection.close(CLOSED)


def test_a_node_that_knows_no_script_is_sent_each_text_once():
    """Who answers NOSCRIPT to the text as well is not asked for ever."""
    oddity = next(each for each in ODDITIES if "again and again" in each.name)
    with OddNode(oddity) as node:
        connection = opened(node.url)
        vote = hear(connection, Command.LOOK, within=LONG)
        assert vote is not None
        assert vote.answer is Answer.UNKNOWN
        assert node.said == 2  # to the digest, and to the text
        connection.close(CLOSED)


def test_what_nobody_asked_for_ends_an_idle_connection():
    """A node that speaks unasked is out of step."""
    with OddNode(UNECHOED[0]) as node:
        connection = opened(node.url)
        node.speak(b":5\r\n+OK\r\n")

        def ended() -> bool:
            connection.read()
            return bool(connection.fault)

        eventually(ended)
        assert connection.fault == replies.UNASKED


def ended(node: OddNode) -> Connection:
    """A connection that the node has reset, which nobody knows yet."""
    connection = opened(node.url)
    node.reset()
    poll = select.poll()
    poll.register(connection.fileno, select.POLLERR)
    assert poll.poll(LONG * 1000)
    return connection


def test_a_loop_does_not_wait_on_a_connection_that_has_ended():
    """Who would stand in a queue finds the connection reset: it is told, and nothing is raised."""

    async def block() -> object:
        return await group.aqueue(BlockOnNode(Waiter("queue"), 0, LONG, LONG))

    with OddNode(UNECHOED[0]) as node, contextlib.closing(group_of([node.url])) as group:
        group.nodes[0]._free.append(ended(node))
        assert asyncio.run(block()) == Wakeup(broken=True)


def test_a_loop_takes_no_new_connection_that_has_ended():
    """A connection may end while what is to be undone is sent over it, before the loop has it."""

    async def take() -> object:
        loop, attempt = asyncio.get_running_loop(), ConnectAttempt(None)
        attempt.bring(connection := ended(node))
        connection.close(CLOSED)
        own = group._loops._connections.of(loop).by_index[0]
        own._opened(loop, attempt)
        return own.connection

    with OddNode(UNECHOED[0]) as node, contextlib.closing(group_of([node.url])) as group:
        assert asyncio.run(take()) is None


# -- the votes --------------------------------------------------------------------------------

ATOMS = st.none() | st.booleans() | st.integers() | st.binary(max_size=40) | st.floats()
ERROR = st.builds(hiredis.ReplyError, st.text())
KNOWN = st.sampled_from([*WORDS, b"GONE", b"HELD", b"EMPTY", NONCE.encode()])
FITTING = st.sampled_from(
    [0, 1, -1, -2, b"", b"0" * 16, b"5", b"1790000000123457", 2**63, -(2**63)]
)
VALUES = st.recursive(
    ATOMS | KNOWN | FITTING | ERROR,
    lambda each: st.lists(each, max_size=5) | st.dictionaries(st.binary(max_size=3), each),
    max_leaves=20,
)
ANY_COMMAND = st.sampled_from(list(Command))
REPLIES = VALUES | st.lists(VALUES, max_size=6).map(lambda rest: [NONCE.encode(), *rest])


@pytest.mark.slow
@patiently
@given(command=ANY_COMMAND, answer=REPLIES, asked=st.integers(1, 3), word=KNOWN | st.none())
@example(Command.EXTEND, [NONCE.encode(), b"KEPT", [0, 0, 1], [0], [1, b"ops"]], 3, None)
def test_any_answer_is_a_sound_vote_or_none(command, answer, asked, word):
    """Whatever is answered, nothing is raised, and every part of a vote is within its range."""
    if word and isinstance(answer, list):
        answer = [NONCE.encode(), word, *answer[2:]]
    if command in KINDS:
        request = of_many(command, asked)
        vote = replies.vote(request, "node", NONCE.encode(), answer)
    else:
        vote = replies.plain_vote(command, "node", NONCE.encode(), answer)
    if vote is not None:
        sound(command, vote, asked)


def of_many(command: Command, count: int) -> Request:
    """A request about so many names, leases or rows, where its command can be about many."""
    request = _ask(command)
    if isinstance(request, Extend):
        return replace(request, leases=[*request.leases] * count)
    if isinstance(request, NamesRequest):
        return replace(request, target=Policy(size=3).target([f"name{i}" for i in range(count)]))
    if isinstance(request, Survey):
        return replace(request, names=[f"name{i}" for i in range(count)])
    return request


def sound(command: Command, vote: Vote, asked: int) -> None:
    """Whether the algorithm can do with the vote what it does with those of good nodes."""
    assert vote.node == "node"
    assert vote.answer in ORDINARY
    assert vote.left is None or (math.isfinite(vote.left) and 0 <= vote.left < 1e12)
    assert 0 <= vote.which < asked
    assert vote.owner == "" or (len(vote.owner) == 16 and int(vote.owner, 16) >= 0)
    assert isinstance(vote.holder, str)
    if vote.answer is not Answer.YES:
        return
    if command is Command.GRANT:
        assert 1 <= vote.fence <= 2**53
    elif command is Command.EXTEND:
        kept, free, revoked = vote.result
        assert len(kept) == asked
        assert set(kept) <= {0, 1}
        assert len(set(free)) == len(free)
        assert not any(kept[each] for each in (*free, *revoked))
    elif command in {Command.CLAIM, Command.BLOCK}:
        assert isinstance(vote.result, str)
    elif command is Command.RELEASE:
        assert 0 <= vote.woken <= asked
    elif command is Command.SURVEY:
        assert len(vote.result[0].rows) <= asked


def test_each_lease_of_a_renewal_has_a_reason_of_its_own():
    """One request renews several leases, and several of them may have been revoked."""
    request = of_many(Command.EXTEND, 3)
    revoked = [0, b"ops: hangs", 2, b"ops: stuck"]
    answer = [NONCE.encode(), b"KEPT", [0, 1, 0], [], revoked]
    vote = replies.vote(request, "node", NONCE.encode(), answer)
    assert vote is not None
    assert vote.result.revoked == {0: "ops: hangs", 2: "ops: stuck"}


def test_what_is_a_reply_to_a_command_that_is_no_script():
    """LOAD is answered with a digest, UNBLOCK with a number."""
    for command, right, wrong in (Command.LOAD, b"5d41402abc", 1), (Command.UNBLOCK, 1, b"OK"):
        assert replies.plain_vote(command, "node", b"", right) is not None
        assert replies.plain_vote(command, "node", b"", wrong) is None


@pytest.mark.parametrize("name", [name for name in ECHOED if "2 MB" not in name])
def test_an_answer_of_the_wrong_shape_is_no_vote(name):
    """An echoed nonce and the right word are not enough, for any script."""
    reader = hiredis.Reader()
    reader.feed(b"*%d\r\n" % (1 + len(ECHOED[name])) + b"$32\r\n" + NONCE.encode() + b"\r\n")
    reader.feed(b"".join(ECHOED[name]))
    answer = reader.gets()
    for command in KINDS:
        assert replies.vote(_ask(command), "node", NONCE.encode(), answer) is None


def test_a_request_says_how_many_it_is_about():
    """Names, or leases, however many names each of them has; or rows of a list."""
    many = Policy(size=3).target(["a", "b", "c"])
    assert [_ask(command).count for command in KINDS] == [1] * len(KINDS)
    leases = [Extension(NONCE, target, 1) for target in (many, TARGET)]
    assert Extend(NONCE, bool, leases).count == 2
    assert Acquire(NONCE, bool, many, 1, 1, 1, "").count == 3
    assert Release(NONCE, bool, many).count == Return(NONCE, bool, many, NONCE).count == 3
    assert Survey(NONCE, bool, many.held, many.waits, "redlock:lock:", 1001).count == 1001


def extended_by(answer: list[object]) -> object:
    """What becomes of a lease that one of three nodes answers for, and no other node."""
    policy = Policy(size=3)
    grant = Grant(TARGET, NONCE, 1, policy.clock() + 10, policy.clock(), 10, policy.everyone)
    steps = extend_many(policy, [Alone(policy, grant)], [10], lambda *_: None)
    ask = next(steps)
    assert isinstance(ask, Request)
    nonce = ask.nonce.encode()
    vote = replies.vote(ask, "a", nonce, [nonce, *answer])
    lost = [Vote(node, Answer.UNKNOWN) for node in "abc"]
    with pytest.raises(StopIteration) as end:
        steps.send([vote or lost[0], *lost[1:]])
    return end.value.value[0]


def test_one_node_has_one_vote_on_an_extension():
    """A node that says "kept, five times" extends no lease that others do not extend."""
    assert isinstance(extended_by([b"KEPT", [1], []]), NodesUnavailable)
    assert isinstance(extended_by([b"KEPT", [5], []]), NodesUnavailable)


# -- the bound --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError, TypeError, hiredis.ProtocolError])
def test_what_hiredis_raises_closes_the_connection(error, monkeypatch):
    """Too many items, for example."""
    with OddNode(UNECHOED[0], "BLPOP") as node:
        connection = opened(node.url)
        parser = mock.Mock(**{"gets.side_effect": error})
        monkeypatch.setattr(connection, "_reader", parser)
        vote = hear(connection, Command.LOOK, within=LONG)
    assert vote is not None
    assert (vote.answer, connection.fault) == (Answer.UNKNOWN, replies.NOT_REDIS)


# -- the handshake ----------------------------------------------------------------------------

LIKE_AN_ANSWER = (
    {  # what a node may say at that step, and what redis-py makes nothing of
        (GREETING, name) for name in ("nothing at all", "half of an answer")
    }
    | {
        ("CLIENT SETINFO", name)
        for name in ("no string", "a number", "a status", *(each.name for each in UNECHOED))
    }
    | {("AUTH", "a status"), ("SELECT", "a status"), ("CLIENT ID", "a number")}
    | {("CLIENT ID", each.name) for each in UNECHOED if not each.ends}
)


def shaken(oddity: Oddity, step: str) -> None:
    """Shake hands with a node that is odd at that step."""
    with OddNode(oddity, step) as node:
        try:
            opened(node.url, timeout=0.3 if oddity.name in QUIET else PATIENCE).close(CLOSED)
        except (Refused, RedisError, OSError, ValueError) as error:
            why = describe(why_unreached(error))
            assert why
            assert not why.endswith(("Error", "Exception"))  # in words, not by the name of a class
        else:
            assert (step, oddity.name) in LIKE_AN_ANSWER
        eventually(lambda: node.open == 0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "oddity",
    [each for each in UNECHOED if each.name in HANDSHAKE_SAMPLE],
    ids=lambda oddity: oddity.name,
)
def test_an_odd_answer_ends_a_handshake(oddity, step):
    """At every step: it comes to an end, with a reason; the connection, too."""
    shaken(oddity, step)


@pytest.mark.parametrize("step", ["TIME", "INFO SERVER", "SCRIPT LOAD", "EVAL", "CLIENT ID"])
def test_false_is_a_reply(step):
    """It is not taken for a reply that goes on: the handshake ends at once, and is told why."""
    with OddNode(next(each for each in UNECHOED if each.name == "false"), step) as node:
        with pytest.raises(Refused):
            opened(node.url)
        eventually(lambda: node.open == 0)


@pytest.mark.parametrize("uptime", ["nan", "inf", "-inf", "1e400", "9" * 400, "1_0", "", "x"])
def test_an_uptime_that_is_no_number_of_seconds_is_refused(uptime):
    """Nothing that is not a number of seconds gets a node past the restart guard."""
    info = f"redis_version:7.2.0\r\nrun_id:a\r\nuptime_in_seconds:{uptime}\r\nrole:master\r\n"
    with pytest.raises(Refused, match="not that of a Redis or Valkey server") as refused:
        admission.parse(info.encode())
    assert refused.value.reason.code is ReasonCode.STRANGE_INFO


# -- the callers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> Iterator[EmbeddedNodes]:
    """Two nodes without the guard."""
    with unguarded(2) as nodes:
        yield nodes


def names(redlock: LockTemplate) -> tuple[str, str]:
    """A name that waits at the odd node, and one that waits at another."""
    policy = redlock._source("default").policy
    found = {policy.target([f"odd{i}"]).queue_nodes[0]: f"odd{i}" for i in range(50)}
    return found[2], found[0]


@contextlib.contextmanager
def held(two: EmbeddedNodes, name: str) -> Iterator[None]:
    """Somebody else has the name, on the honest nodes."""
    clients = [node.client() for node in two]
    for client in clients:
        client.set(f"redlock:lock:{name}", "f" * 32 + ":7:somebody", px=60_000)
    yield
    for client in clients:
        client.delete(f"redlock:lock:{name}")
        client.close()


def in_threads(redlock: LockTemplate, two: EmbeddedNodes) -> None:
    """Everything that asks the nodes, by blocking calls."""
    for name in names(redlock):
        for min_hold in (0.0, 0.001):
            with redlock(name, min_hold=min_hold, wait=PATIENCE) as lease:
                lease.extend()
        with held(two, f"{name}!"), pytest.raises(LockTaken):
            redlock(f"{name}!", wait=0.1).acquire()
    redlock([*names(redlock), "third"], wait=PATIENCE).acquire().release()
    backend = redlock._source("default")
    assert survey(backend).heard >= {0, 1}
    assert survey(backend, ["a", "b"]).heard >= {0, 1}


def in_tasks(redlock: LockTemplate, two: EmbeddedNodes) -> None:
    """The same in a loop, whose handler of exceptions hears nothing."""
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        for name in names(redlock):
            for min_hold in (0.0, 0.001):
                async with redlock(name, min_hold=min_hold, wait=PATIENCE) as lease:
                    await lease.aextend()
            with held(two, f"{name}!"), pytest.raises(LockTaken):
                await redlock(f"{name}!", wait=0.1).aacquire()
        await (await redlock([*names(redlock), "third"], wait=PATIENCE).aacquire()).arelease()

    asyncio.run(main())
    assert complaints == []


@pytest.mark.parametrize("style", [in_threads, in_tasks], ids=["threads", "tasks"])
@pytest.mark.parametrize(
    ("name", "step"), [*((name, "") for name in sorted(SAMPLE)), ("html", "AUTH"), ("html", "EVAL")]
)
def test_two_of_three_nodes_decide_whatever_the_third_answers(
    name, step, style, two, nothing_unseen
):
    """Every lock is had, extended, refused and released as if the odd node were down."""
    oddity = next(each for each in ODDITIES if each.name == name)
    with OddNode(oddity, step) as node:
        group = group_of([*two.urls, node.url], PATIENCE)
        style(template(group), two)
        group.close(0)  # the odd node carries out nothing
        eventually(lambda: node.said, what="the odd answer")


def test_only_our_own_errors_come_of_an_odd_majority(nothing_unseen):
    """With too few good nodes the caller is told that they are unavailable, and why."""
    with contextlib.ExitStack() as stack:
        odd = [
            stack.enter_context(OddNode(each))
            for each in ODDITIES
            if each.name in {"html", "granted a list", "held by none"}
        ]
        group = group_of([node.url for node in odd], 5)
        stack.callback(group.close, 0)  # the odd nodes carry out nothing
        with pytest.raises((NodesUnavailable, LockTaken, LeaseLost)) as error:
            template(group)("name").acquire()
        told = {vote.node: vote.reason for vote in error.value.votes}
        assert list(told) == [node.label for node in group.nodes]
        assert set(told.values()) == {replies.NOT_REDIS, replies.SENSELESS}
