import importlib
import time

import pytest

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.inspection.survey import BATCH, LockStatus, Wanted, survey
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.inspection.states import STATES
from tests.support.looked_at import A, clients

SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's
NOW = 1_000_000_000  # milliseconds
TOO_LATE = because(ReasonCode.NO_ANSWER, seconds=0.05)
EVERYONE = frozenset(range(5))


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


@pytest.mark.parametrize("state", STATES)
def test_a_majority_decides_what_a_name_is(memory, state):
    """One owner has the name, or none has, or nobody can tell; with the extremes of its seconds."""
    expected = STATES[state]
    expected.made(memory)
    report = Wanted(expected.texts, finished=True).survey(conf.backend("default"))
    (found,) = report.locks
    assert (found.name, found.kind, found.on, found.of) == (
        *(expected.name, expected.kind, expected.on, 5),
    )
    assert found.holder in {"", expected.holder.partition(" on ")[0]}
    assert str(found.fence or "") == expected.fence
    assert [cell is not None for cell in found.cells] == [c[0] not in "?–" for c in expected.cells]
    low, high = (str(left or "never") for left in (found.lowest, found.highest))
    assert expected.left in {f"{low} to {high}", low, f"{low} expires", ""}
    assert report.complete == (len(expected.down) < report.majority)
    assert report.heard == EVERYONE - {*memory.down}


@pytest.mark.parametrize(
    ("size", "on", "kind"),
    [(4, 2, LockStatus.PARTIAL), (4, 3, LockStatus.HELD), (1, 1, LockStatus.HELD)],
)
def test_half_of_the_nodes_is_no_majority(size, on, kind):
    """Two of four hold nothing."""
    nodes = Deployment(size)
    nodes.put("x", f"{A}:5:a", *range(on))
    assert nodes.only().kind is kind


def test_another_clients_lock_is_found_by_its_name(nodes):
    """A value of foreign form is in no index."""
    nodes.put("x", "foreign", 0, 1, 2, index=False)
    assert nodes.survey().locks == ()
    assert nodes.only("x").kind is LockStatus.HELD


@pytest.mark.parametrize("options", [{}, {"matching": lambda name: name == "x"}])
def test_a_name_in_few_indexes_is_looked_up_on_all_nodes(nodes, options):
    """Another client's majority is seen behind our own key on one node, also by a search."""
    nodes.put("x", f"{A}:5:a", 3)
    nodes.put("x", "foreign", 0, 1, 2, index=False)
    (found,) = nodes.survey(**options).locks
    assert (found.kind, found.on, found.owners[1].label) == (LockStatus.HELD, 3, "a")


@pytest.mark.parametrize("options", [{}, {"matching": lambda _: True}])
def test_what_is_released_before_it_is_looked_up_is_not_shown(nodes, options):
    """A name that an index has, and no node, is not called free."""
    nodes.put("x", f"{A}:5:a", *range(5))
    for node in nodes.group.nodes:
        node.keys.clear()
    assert nodes.survey(**options).locks == ()


def test_more_names_than_go_into_one_question(nodes):
    """A hundred names are asked for in two questions, and answered in their order, once each."""
    names = [f"n{i}" for i in range(BATCH + 36)]
    nodes.put("n99", f"{A}:5:a", 0, 1, 2, 3, 4)
    locks = nodes.survey(*names, "n0").locks
    assert [lock.name for lock in locks] == names
    assert [lock.name for lock in locks if lock.kind is not LockStatus.FREE] == ["n99"]
    assert locks[0].cells == (None,) * 5


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


# -- real nodes -----------------------------------------------------------------------------------


def test_real_nodes_with_strange_keys(patient_nodes):
    """Keys of another type and names that are no UTF-8 are shown, not stumbled over."""
    due = (time.time() + 60) * 1000
    names: dict[bytes, float] = {b"list": due, b"\xff\x00": due}
    with clients(patient_nodes) as each:
        for client in each[:3]:
            client.rpush("redlock:lock:list", "item")
            client.set(b"redlock:lock:\xff\x00", b"\xfe", px=60_000)
            client.zadd("redlock:held", names)
        found = {lock.name: lock for lock in survey(conf.backend("default")).locks}
        for client in each[:3]:
            client.delete(b"redlock:lock:\xff\x00")
    assert set(found) == {"list", "\\xff\x00"}
    assert [(lock.kind, lock.holder, lock.on) for lock in found.values()] == [
        (LockStatus.HELD, "", 3),
        (LockStatus.HELD, "", 3),
    ]
    assert found["list"].highest is None
