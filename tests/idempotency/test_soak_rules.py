"""The soak of idempotent endpoints in small, and that its rules can be broken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from dev.soak.idempotency import rules
from dev.soak.idempotency.clients import Reply
from dev.soak.idempotency.rules import History, Order, figures, judge


def answer(pk: int, replayed: str = "true", seen: float = 2.0) -> Reply:
    """An answer that tells of an order."""
    body = json.dumps({"id": pk, "token": f"t{pk}"}).encode()
    return Reply(201, body, replayed, seen)


GOOD = History(
    keys=["a", "b"],
    answers={"a": [answer(1, ""), answer(1, seen=3)], "b": [answer(2), answer(2)]},
    orders=[Order(1, "a", "t1"), Order(2, "b", "t2")],
    counts=Counter({"sent": 6, "broken": 1, "409": 1, "503": 1}),
    # A view that was killed, and its successor.
    lines=[{"what": "begin", "key": "a", "at": 0.5}, {"what": "begin", "key": "a", "at": 1.0}],
)


def answered(key: str, *answers: Reply) -> Callable[[History], History]:
    """The history where this is what the client got."""
    return lambda good: replace(good, answers={**good.answers, key: answers})


def counted(**what: int) -> Callable[[History], History]:
    """The history where this was counted as well."""
    return lambda good: replace(good, counts=good.counts + Counter(what))


BROKEN: dict[str, tuple[str, Callable[[History], History]]] = {
    "two orders": (
        rules.SEVERAL,
        lambda good: replace(good, orders=[*good.orders, Order(3, "a", "t3")]),
    ),
    "an order of nobody": (
        rules.SEVERAL,
        lambda good: replace(good, orders=[*good.orders, Order(3, "c", "t3")]),
    ),
    "no order": (rules.NONE, lambda good: replace(good, orders=good.orders[:1])),
    "no answer": (rules.SILENT, answered("a")),
    "given up": (rules.SILENT, lambda good: replace(good, without=frozenset("a"))),
    "another body": (
        rules.DIFFERENT,
        answered("a", answer(1), answer(1)._replace(body=b'{"token":"t1","id":1}')),
    ),
    "another status": (rules.DIFFERENT, answered("a", answer(1), answer(1)._replace(status=200))),
    "an order that was rolled back": (rules.UNTRUE, answered("a", answer(7))),
    "another's order": (rules.UNTRUE, answered("a", answer(2))),
    "no JSON": (rules.UNTRUE, answered("a", Reply(201, b"<html>", "true"))),
    "two first answers": (rules.ANEW, answered("a", answer(1, ""), answer(1, ""))),
    "a view behind the answer": (
        rules.AGAIN,
        lambda good: replace(good, lines=[{"what": "begin", "key": "a", "at": 2.1}]),
    ),
    "an error": (rules.STRANGE, counted(**{"500": 1})),
    "hasty": (rules.HASTY, counted(hasty=1)),
    "a lock": (rules.LOCKED, lambda good: replace(good, locks=["shop:a"])),
    "a worker": (rules.ALIVE, lambda good: replace(good, processes=[7])),
}


def test_nothing_is_wrong_where_all_is_well():
    """Broken connections, refusals and views that were killed break no promise."""
    assert judge(GOOD) == []
    assert figures(GOOD)["keys with more than one order"] == 0


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_can_be_broken(name):
    """By a history that is well but for that."""
    rule, doctor = BROKEN[name]
    assert rule in {each.rule for each in judge(doctor(GOOD))}


def test_every_rule_has_a_history_that_breaks_it():
    """No rule is there for show."""
    assert {rule for rule, _ in BROKEN.values()} == set(rules.RULES)
