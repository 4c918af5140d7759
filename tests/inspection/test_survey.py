import enum
import importlib
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from django.test import override_settings

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import ReasonCode, because, printable
from django_redlock.inspection import Health
from django_redlock.inspection.survey import BATCH, LockStatus, survey
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.servers import software

SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's
NOW = 1_000_000_000  # milliseconds
TOO_LATE = because(ReasonCode.NO_ANSWER, seconds=0.05)
A, B = "a" * 32, "b" * 32


class Deployment:
    """Five nodes in memory whose clock stands still."""

    def __init__(self, size: int = 5) -> None:
        self.group = MemoryNodes([MemoryNode(clock=lambda: NOW) for _ in range(size)])
        self.backend = Backend("default", self.group, Policy(size=size))

    def put(self, name: str, value: str, *nodes: int, left=10.0, index: bool = True) -> None:
        """Write a lock's key; ``left`` in seconds, None for ever."""
        for i in nodes:
            node = self.group.nodes[i]
            node.keys[f"redlock:lock:{name}"] = (value, left and NOW + left * 1000)
            if index:
                node.held[name] = NOW + (left or 1) * 1000

    def lock(self, name: str, **options):
        """Lock by the front door."""
        return LockTemplate(lambda _: self.backend)(name, renew=False, **options)

    def survey(self, *names: str, **options):
        """Look."""
        return survey(self.backend, names, **options)

    def only(self, *names: str):
        """The one lock that a survey finds."""
        (found,) = self.survey(*names).locks
        return found


@pytest.fixture
def nodes() -> Deployment:
    """Five nodes in memory."""
    return Deployment()


class Kinds(str, enum.Enum):  # noqa: UP042 - one text in an f-string, and another in itself
    """What names may be made of."""

    A = "a"


def test_a_name_that_is_an_enums_member_is_found(nodes):
    """Key and index have the same name, the one that an f-string makes."""
    with nodes.lock(Kinds.A) as lease:
        assert nodes.only().name == lease.name == str(Kinds.A)


def test_a_held_lock_tells_who_where_and_for_how_long(nodes):
    """A lock taken through the front door is held on all nodes, by its label, with its fence."""
    lease = nodes.lock("invoice:42", ttl=30).acquire()
    held = nodes.only()
    assert (held.name, held.kind) == ("invoice:42", LockStatus.HELD)
    assert (held.on, held.of) == (5, 5)
    assert held.holder == nodes.backend.label()
    assert held.fence == lease.fence
    assert (held.lowest, held.highest) == (30, 30)
    assert len({cell.owner for cell in held.cells if cell}) == 1
    lease.release()
    assert nodes.survey().locks == ()


def test_no_nonce_in_a_survey(nodes):
    """What a survey knows, the power to release is not part of."""
    with nodes.lock("invoice:42") as lease:
        text = repr(nodes.survey())
        nonce = lease.grant.nonce
    assert "invoice:42" in text
    assert nonce not in text
    assert nonce[:12] not in text


def test_lowest_and_highest_are_of_the_owner(nodes):
    """The seconds left are the extremes over the nodes that carry the owner's value."""
    for i, left in enumerate((12, 10, 14)):
        nodes.put("x", f"{A}:{i}:a", i, left=left)
    nodes.put("x", f"{B}:9:b", 3, left=99)
    held = nodes.only()
    assert (held.lowest, held.highest) == (10, 14)
    assert held.fence == 2
    assert [cell and cell.left for cell in held.cells] == [12, 10, 14, 99, None]


HELD, PARTIAL, UNCLEAR = LockStatus.HELD, LockStatus.PARTIAL, LockStatus.UNCLEAR


@pytest.mark.parametrize(
    ("size", "keys", "down", "kind", "on"),
    [
        (5, {"a": (0, 1, 2)}, (), HELD, 3),
        (5, {"a": (0, 1, 2), "b": (3, 4)}, (), HELD, 3),  # what is left on a minority takes nothing
        (5, {"a": (1, 4)}, (), PARTIAL, 2),
        (5, {"a": (0, 1), "b": (2, 3), "c": (4,)}, (), LockStatus.SPLIT, 2),
        (4, {"a": (0, 1)}, (), PARTIAL, 2),  # half of the nodes is no majority
        (4, {"a": (0, 1, 2)}, (), HELD, 3),
        (1, {"a": (0,)}, (), HELD, 1),
        # Nodes that do not reply may decide.
        (5, {"a": (0, 1, 2)}, (2,), UNCLEAR, 2),
        (5, {"a": (0, 1, 2), "b": (3, 4)}, (2,), UNCLEAR, 2),
        (5, {"a": (0, 1, 2), "b": (3, 4)}, (3,), HELD, 3),
        (5, {}, (0, 1), LockStatus.FREE, 0),
        (5, {}, (0, 1, 2), UNCLEAR, 0),
    ],
)
def test_a_majority_decides(size, keys, down, kind, on):
    """Of the owners of a name one has a majority, or none has, or nobody can tell."""
    nodes = Deployment(size)
    for label, where in keys.items():
        nodes.put("x", f"{label * 32}:5:{label}", *where)
    nodes.group.down = set(down)
    found = nodes.survey("x")
    (lock,) = found.locks
    assert (lock.kind, lock.on, lock.of) == (kind, on, size)
    assert lock.holder == ("a" if on else "")
    assert found.complete == (len(down) < found.majority)
    assert found.heard == frozenset(range(size)) - frozenset(down)


def test_resting(nodes):
    """A name released before its min_hold rests: taken, and owned by nobody."""
    nodes.lock("x", ttl=5, min_hold=20).acquire().release()
    resting = nodes.only()
    assert (resting.kind, resting.on, resting.fence) == (LockStatus.RESTING, 5, None)
    assert resting.holder == nodes.backend.label()
    assert 12 < resting.lowest <= 20


def test_another_clients_lock_is_found_by_its_name(nodes):
    """A value of foreign form is in no index; asked for by name it is held, without a number."""
    nodes.put("x", "some-other-clients-nonce", 0, 1, 2, index=False)
    assert nodes.survey().locks == ()
    held = nodes.only("x")
    assert (held.kind, held.holder, held.fence) == (LockStatus.HELD, "", None)


def test_a_name_in_some_indexes_is_looked_up_on_all_nodes(nodes):
    """Another client's majority is seen behind our own remains on two nodes."""
    nodes.put("x", f"{A}:5:a", 0, 1)
    nodes.put("x", "some-other-clients-nonce", 2, 3, 4, index=False)
    held = nodes.only()
    assert (held.kind, held.holder, held.on) == (LockStatus.HELD, "", 3)


def test_a_key_that_is_gone_is_skipped(nodes):
    """The index may name what was deleted by hand; nothing is held then."""
    nodes.group.nodes[0].held["x"] = NOW + 1000
    assert nodes.survey().locks == ()


def test_names_asked_for(nodes):
    """Names are looked up in the order given, once each; what nobody holds is free."""
    nodes.put("b", f"{A}:5:a", 0, 1, 2, 3, 4)
    found = nodes.survey("b", "a", "b")
    assert [(lock.name, lock.kind) for lock in found.locks] == [("b", "held"), ("a", "free")]
    assert found.locks[1].cells == (None,) * 5


def test_more_names_than_go_into_one_question(nodes):
    """A hundred names are asked for in two questions and answered like one."""
    names = [f"n{i}" for i in range(BATCH + 36)]
    nodes.put("n99", f"{A}:5:a", 0, 1, 2, 3, 4)
    locks = nodes.survey(*names).locks
    assert [lock.name for lock in locks] == names
    assert [lock.name for lock in locks if lock.kind is LockStatus.HELD] == ["n99"]


@pytest.mark.parametrize(
    ("names", "limit", "why"),
    [
        ([""], 1, "lock name"),
        (["a\nb"], 1, "lock name"),
        (["x" * 513], 1, "lock name"),
        ([], 0, "limit must be from 1 to 10000"),
        ([], 10_001, "limit must be from 1 to 10000"),
    ],
)
def test_what_cannot_be_asked_for(nodes, names, limit, why):
    """What cannot be locked; and a node reads at most 10,000 names in one go, and at least one."""
    with pytest.raises(ValueError, match=why):
        nodes.survey(*names, limit=limit)


def test_truncated(nodes):
    """Of more locks than the limit, so many are shown, each with all its nodes."""
    for i in range(3):
        # Every node has another one first.
        nodes.put("abc"[i], f"{A}:5:a", *range(5), left=10 + i)
        nodes.group.nodes[i].held["abc"[i]] = NOW + 1
    assert not nodes.survey(limit=3).truncated
    found = nodes.survey(limit=1)
    assert found.truncated
    assert [(lock.name, lock.on) for lock in found.locks] == [("a", 5)]


@pytest.mark.parametrize(("limit", "truncated"), [(10, True), (24, True), (25, False), (30, False)])
def test_more_than_a_page_is_listed_in_pages(nodes, monkeypatch, limit, truncated):
    """No script reads them all at once: it would last longer than a node timeout."""
    sizes: list[int] = []
    ask = nodes.group.ask

    def noted(asked):
        if asked.command is Command.SURVEY and asked.most:
            sizes.append(asked.most)
        return ask(asked)

    monkeypatch.setattr(nodes.group, "ask", noted)
    monkeypatch.setattr(SURVEYS, "PAGE", 10)
    for i in range(25):
        nodes.put(f"n{i:02}", f"{A}:5:a", *range(5), left=10 + i)
    found = nodes.survey(limit=limit)
    names = [lock.name for lock in found.locks]
    assert names == sorted(names)
    assert (len(names), found.truncated) == (min(limit, 25), truncated)
    assert {lock.on for lock in found.locks} == {5}
    assert set(sizes) == {10}


def test_pages_that_overlap_leave_no_row_out(nodes, monkeypatch):
    """Where names are due in the same millisecond a page begins with the last ones of another."""
    monkeypatch.setattr(SURVEYS, "PAGE", 10)
    for i in range(40):
        nodes.put(f"n{i:02}", f"{A}:5:a", *range(5), left=10 + i // 8)
    found = nodes.survey(limit=40)
    assert (len(found.locks), found.truncated) == (40, False)
    few = nodes.survey(limit=15)
    assert (len(few.locks), few.truncated) == (15, True)


def test_a_lone_bracket_is_a_sign_of_a_name():
    """Where nothing closes it, it begins no wildcard."""
    texts = ["a*", "a?", "a[bc]", "[a]", "a[1", "a]", "a][", "a"]
    assert list(filter(SURVEYS.is_pattern, texts)) == texts[:4]


class SlowAtFirst(MemoryNodes):
    """Nodes of which some answer late, as told for each question, and some are not connected."""

    late: tuple[set[int], ...] = ()
    unconnected: frozenset[int] = frozenset()
    asked: tuple[frozenset[int] | None, ...] = ()

    def ask(self, ask):
        """Lose the votes of the nodes that are late this time."""
        late = dict(enumerate(self.late)).get(len(self.asked), set())
        self.asked = (*self.asked, ask.to)
        votes = super().ask(ask)
        for i in late:
            votes[i] = Vote(votes[i].node, Answer.UNKNOWN, reason=TOO_LATE)
        return votes

    def states(self):
        """Tell the uptime of the nodes that are connected."""
        return [
            state if i in self.unconnected | self.down else state._replace(uptime=1.0)
            for i, state in enumerate(super().states())
        ]


EVERYONE = frozenset(range(5))


@pytest.mark.parametrize(
    ("late", "unconnected", "asked", "heard"),
    [
        # One node's connection took all the time: first the others, then that one once more.
        ([{0, 1, 2, 3}, set(), set()], {3}, [None, {0, 1, 2}, {3}], 4),
        ([{0, 1, 2, 3}, set(), {3}], {3}, [None, {0, 1, 2}, {3}], 3),
        # All connections are slow: once more is enough.
        ([{0, 1, 2, 3}, set()], {0, 1, 2, 3}, [None, {0, 1, 2, 3}], 4),
        ([{0, 1, 2, 3}, {0, 1, 2, 3}], {0, 1, 2, 3}, [None, {0, 1, 2, 3}], 0),
        # A node that stays silent is asked three times at most.
        ([{0}, {0}, {0}], set(), [None, {0}, {0}], 3),
        # Everybody answers.
        ([], set(), [None], 4),
    ],
)
def test_nodes_that_were_too_slow_are_asked_again(late, unconnected, asked, heard):
    """Who was only too slow gets another try, two at most; who is down gets none."""
    group = SlowAtFirst([MemoryNode() for _ in EVERYONE])
    group.down, group.late, group.unconnected = {4}, tuple(late), frozenset(unconnected)
    found = survey(Backend("default", group, Policy(size=5)), ["x"])
    assert list(group.asked) == asked
    assert len(found.heard) == heard
    late_ones = [node for node in found.nodes if node.reason == TOO_LATE]
    assert len(late_ones) == 4 - heard
    assert not any(node.voting for node in late_ones)
    assert found.nodes[4].why == "down"


def test_a_node_that_falls_silent_between_two_questions_is_down():
    """Who answers the first question and not the second has told nothing of the second's names."""
    group = SlowAtFirst([MemoryNode() for _ in EVERYONE])
    group.late = (set(), {0, 1, 2})
    found = survey(Backend("default", group, Policy(size=5)), [f"n{i}" for i in range(BATCH + 1)])
    assert found.heard == {3, 4}
    assert found.nodes[0].reason == TOO_LATE
    assert found.locks[-1].kind is LockStatus.UNCLEAR


class DiesWhileSearched(MemoryNodes):
    """Nodes of which the first answers no question after its first page of the index."""

    pages = 0

    def ask(self, ask):
        """Count the pages, and let the node die."""
        self.pages += ask.command is Command.SURVEY and ask.most > 0
        if self.pages > 1:
            self.down = {0}
        return super().ask(ask)


def test_a_node_that_dies_during_a_search_is_down(monkeypatch):
    """What the other nodes have is found, and the node that stopped answering is not heard."""
    monkeypatch.setattr(SURVEYS, "PAGE", 2)
    nodes = Deployment()
    nodes.group = DiesWhileSearched(nodes.group.nodes)
    nodes.backend = Backend("default", nodes.group, Policy(size=5))
    for i in range(5):
        nodes.put(f"n{i}", f"{A}:5:a", *range(5), left=10 + i)
    found = nodes.survey(matching=lambda name: name != "n3")
    assert found.heard == {1, 2, 3, 4}
    assert [(lock.name, lock.kind, lock.on) for lock in found.locks] == [
        (f"n{i}", LockStatus.HELD, 4) for i in (0, 1, 2, 4)
    ]
    assert not found.truncated


def test_a_name_that_is_in_few_indexes_is_found_by_a_search(nodes):
    """A key that one node alone has is part of what a search finds, with the others' keys."""
    nodes.put("x", f"{A}:5:a", 3)
    nodes.put("x", "foreign", 0, 1, 2, index=False)
    (found,) = nodes.survey(matching=lambda name: name == "x").locks
    assert (found.kind, found.on, found.owners[1].label) == (LockStatus.HELD, 3, "a")


def test_what_a_search_finds_and_is_released_then_is_not_shown(nodes):
    """A name that the index has, and no node when it is looked up, is not called free."""
    nodes.put("x", f"{A}:5:a", *range(5))
    for node in nodes.group.nodes:
        node.keys.clear()
    assert nodes.survey(matching=lambda _: True).locks == ()
    assert nodes.survey().locks == ()


@pytest.mark.parametrize(
    ("value", "number"),
    [(f"{A}:{'9' * 5000}:x", None), (f"{A}:1795263992757438:x", 1795263992757438)],
)
def test_numbers_that_cannot_be_ours(nodes, value, number):
    """A grant number of five thousand digits is no number, and no error."""
    nodes.put("x", value, 0, 1, 2)
    assert nodes.only().fence == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("invoice:42 é 日本", "invoice:42 é 日本"),
        ("<script>[red]", "<script>[red]"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x1b[31m\r\n\t\x00", "a\\x1b[31m\\r\\n\\t\\x00"),
        ("a\u2028\u200b\ud800", "a\\u2028\\u200b\\ud800"),
    ],
)
def test_text_for_people_hides_nothing(text, expected):
    """What is invisible, moves the cursor or turns the writing is escaped."""
    assert printable(text) == expected


# -- real nodes -----------------------------------------------------------------------------------


@contextmanager
def clients(nodes):
    """A client of each node."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(node.client())) for node in nodes]


def test_real_nodes(redlock_nodes):
    """On real nodes a survey finds what was locked, and what the nodes say of themselves."""
    template = LockTemplate(conf.backend)
    alias = redlock_nodes.settings(NODE_TIMEOUT=10)
    with override_settings(REDLOCK={"default": alias}), template("invoice:42") as lease:
        found = survey(conf.backend("default"))
    assert found.health is Health.OK
    assert found.heard == EVERYONE
    (held,) = found.locks
    assert (held.name, held.kind, held.on) == ("invoice:42", LockStatus.HELD, 5)
    assert held.fence == lease.fence
    assert held.lowest is not None
    assert held.highest is not None
    assert 0 < held.lowest <= held.highest <= 2
    for node, embedded in zip(found.nodes, redlock_nodes, strict=True):
        assert node.label == f"127.0.0.1:{embedded.port}/0"
        assert node.voting
        assert node.software == software(embedded)
        assert node.role == "master"
        assert node.uptime is not None
        assert 3 <= node.uptime <= embedded.uptime() + 1
        assert node.round_trip is not None
        assert 0 < node.round_trip < 10
        assert node.guard_left == 0


def test_real_nodes_with_strange_keys(patient_nodes):
    """Keys of another type and names that are no UTF-8 are shown, not stumbled over."""
    due = (time.time() + 60) * 1000
    with clients(patient_nodes) as each:
        for client in each[:3]:
            client.rpush("redlock:lock:list", "item")
            client.set(b"redlock:lock:\xff\x00", b"\xfe", px=60_000)
            client.zadd("redlock:held", {"list": due, b"\xff\x00": due})
        found = {lock.name: lock for lock in survey(conf.backend("default")).locks}
        for client in each[:3]:
            client.delete(b"redlock:lock:\xff\x00")
    assert set(found) == {"list", "\\xff\x00"}
    assert [(lock.kind, lock.holder, lock.on) for lock in found.values()] == [
        (LockStatus.HELD, "", 3),
        (LockStatus.HELD, "", 3),
    ]
    assert found["list"].highest is None
