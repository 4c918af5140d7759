"""Completion records, searched exhaustively: every order of events of a run and of a copy.

Three nodes keep one run name each. The run works, tells its nodes to record, and is acknowledged;
or it loses its lease before. The copy asks all nodes, again and again, until it runs or ends. Nodes
may restart empty, and replies to the copy may be lost, as often as the search allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

SIZE, MAJORITY = 3, 2
FREE, RUN, COPY, DONE = "", "run", "copy", "done"


class Node(NamedTuple):
    """One node: the value of the run name, the record on its way, and what the copy was told."""

    value: str = RUN
    record: str = ""  # "sent", "written", "refused"
    told: str = ""  # "sent", "granted", "held", "done", "lost"


class State(NamedTuple):
    """All there is at a moment."""

    nodes: tuple[Node, ...]
    run: str = "works"  # "records", "acknowledged", "lost", "lost, records"
    copy: str = "waits"  # "asks", "runs", "ends"
    restarts: int = 0
    losses: int = 0


class Rules(NamedTuple):
    """What the run and the copy do; the defaults are ours.

    Attributes:
        to: how many of the nodes are told to record.
        prompt: whether all nodes reply to that before the message is acknowledged.
        believed: how many records end a copy.
        thorough: whether a copy hears all nodes before it runs.
        careless: whether a run records though it has lost its lease.
    """

    to: int = SIZE
    prompt: bool = False
    believed: int = 1
    thorough: bool = True
    careless: bool = False


def changed(state: State, place: int, **changes: str) -> State:
    """The state with another node at that place."""
    nodes = list(state.nodes)
    nodes[place] = nodes[place]._replace(**changes)
    return state._replace(nodes=tuple(nodes))


def all_changed(state: State, count: int, **changes: str) -> State:
    """The state with so many other nodes."""
    for place in range(count):
        state = changed(state, place, **changes)
    return state


def of_the_run(state: State, rules: Rules) -> Iterator[State]:
    """What the run may do next."""
    heard = sum(node.record in ("written", "refused") for node in state.nodes)
    if state.run == "works":
        yield state._replace(run="lost")
        yield all_changed(state._replace(run="records"), rules.to, record="sent")
    if state.run == "lost" and rules.careless:
        yield all_changed(state._replace(run="lost, records"), rules.to, record="sent")
    if state.run == "records" and heard >= (rules.to if rules.prompt else MAJORITY):
        yield state._replace(run="acknowledged")


def of_a_node(state: State, place: int, rules: Rules) -> Iterator[State]:
    """What may happen at a node next."""
    node = state.nodes[place]
    if node.record == "sent":
        mine = node.value == RUN
        value, record = (DONE, "written") if mine else (node.value, "refused")
        yield changed(state, place, value=value, record=record)
    if node.value == RUN and state.run not in {"works", "records"}:
        yield changed(state, place, value=FREE)  # nobody renews it
    # Its restart guard is longer than any attempt: one that has begun gets no grant of it.
    if state.restarts and state.run == "acknowledged" and state.copy == "waits":
        yield changed(state, place, value=FREE)._replace(restarts=state.restarts - 1)
    if node.told == "sent":
        told = {FREE: "granted", DONE: "done"}.get(node.value, "held")
        value = COPY if told == "granted" else node.value
        yield changed(state, place, value=value, told=told)
        if state.losses:
            yield changed(state, place, value=value, told="lost")._replace(losses=state.losses - 1)


def of_the_copy(state: State, rules: Rules) -> Iterator[State]:
    """What the copy may do next."""
    told = [node.told for node in state.nodes]
    if state.copy == "waits":
        yield all_changed(state._replace(copy="asks"), SIZE, told="sent")
    elif state.copy == "asks":
        if told.count("done") >= rules.believed:
            yield state._replace(copy="ends")
        elif told.count("granted") >= MAJORITY and not (rules.thorough and "sent" in told):
            yield state._replace(copy="runs")
        elif "sent" not in told:  # refused: it rolls back, and comes again
            for place, node in enumerate(state.nodes):
                value = FREE if node.value == COPY else node.value
                state = changed(state, place, value=value, told="")
            yield state._replace(copy="waits")


def wrong(state: State) -> str:
    """Which promise is broken, or ""."""
    written = sum(node.record == "written" for node in state.nodes)
    if state.copy == "runs" and state.run == "acknowledged" and written >= MAJORITY:
        return "it runs again"
    if state.copy == "runs" and state.run in ("works", "records"):
        return "two at once"
    if state.copy == "ends" and state.run.startswith("lost"):
        return "the task is lost"
    return ""


def search(rules: Rules, *, restarts: int = 0, losses: int = 0) -> set[str]:
    """Which promises some order of events breaks."""
    start = State((Node(),) * SIZE, restarts=restarts, losses=losses)
    seen, todo, found = {start}, [start], set()
    while todo:
        state = todo.pop()
        broken = wrong(state)
        if broken:
            found.add(broken)
            continue
        after = [*of_the_run(state, rules), *of_the_copy(state, rules)]
        for place in range(SIZE):
            after += of_a_node(state, place, rules)
        for each in after:
            if each not in seen:
                seen.add(each)
                todo.append(each)
    assert len(seen) > 300  # the search goes somewhere
    return found


@pytest.mark.parametrize(
    ("rules", "restarts", "losses"),
    [
        (Rules(), 0, 0),
        (Rules(), 0, 1),  # a majority has the record: whatever majority grants, one refuses
        (Rules(), 1, 0),  # the node that kept its record is heard
        (Rules(prompt=True), 1, 1),
        (Rules(prompt=True), 2, 0),
    ],
)
def test_no_order_of_events_breaks_a_promise(rules, restarts, losses):
    """No copy runs beside the run or after its record, and none ends whose run has not finished."""
    assert search(rules, restarts=restarts, losses=losses) == set()


@pytest.mark.parametrize(
    ("rules", "restarts", "losses", "found"),
    [
        (Rules(believed=MAJORITY), 1, 0, "it runs again"),
        (Rules(thorough=False), 1, 0, "it runs again"),
        (Rules(to=MAJORITY, prompt=True), 2, 0, "it runs again"),
        (Rules(careless=True), 0, 0, "the task is lost"),
    ],
    ids=[
        "a majority is believed",
        "a majority is heard",
        "a majority records",
        "though lost",
    ],
)
def test_each_broken_rule_breaks_one(rules, restarts, losses, found):
    """A variant of the rules is found out, with as many restarts as our rules bear."""
    assert search(rules, restarts=restarts, losses=losses) == {found}


@pytest.mark.parametrize(
    ("rules", "restarts", "losses"),
    [(Rules(), 1, 1), (Rules(prompt=True), 2, 1), (Rules(prompt=True), 3, 0)],
    ids=["a node was late, one restarted", "two restarted, one is silent", "all restarted"],
)
def test_the_limit(rules, restarts, losses):
    """Where nodes lost their record and the others cannot be heard, the message runs again."""
    assert search(rules, restarts=restarts, losses=losses) == {"it runs again"}
