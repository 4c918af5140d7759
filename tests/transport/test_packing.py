"""The bytes of a request: the same by whichever way they are made."""

from __future__ import annotations

import enum
from itertools import product

import pytest

from django_redlock.core import acquire, hold
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command, Request
from django_redlock.transport import pending
from django_redlock.transport.pending import QUICK, pack_any
from tests.simulation.mutants.edits import Edit, with_edits


class Label(enum.StrEnum):
    """A label whose text in an f-string is not what it holds."""

    HOST = "host:1"

    def __str__(self) -> str:
        return "another text"

    def __format__(self, _: str) -> str:
        return "another text"


NAMES = ("a", "invoice:1", "x" * 512, "é" * 256, "日本", "🔒", "a b\u2028", '"$5\\r\\n"', "{b}")
LABELS = ("", "host:1", "hôte:1", "l" * 200, Label.HOST)
PREFIXES = ("redlock:", "", "préfixe:")
LISTS = (["a", "b"], ["é", "b", "c"], [f"name{i}" for i in range(128)])


def requests(prefix: str, names: list[str], label: str, *, old: str = "") -> list[Request]:
    """A grant and a release of these names, as the algorithm asks for them."""
    policy = Policy(size=5, prefix=prefix)
    target = policy.target(names)
    wakeup = "f" * 32 if old else ""
    steps = acquire.attempt(
        policy, target, label=label, ttl=30.25, old=old, wakeup=wakeup, patient=bool(old)
    )
    grant = next(steps)
    assert isinstance(grant, Request)
    undo = hold.hand_over(policy, target, grant.nonce, policy.everyone())
    rolled_back = hold.undo(policy, target, grant.nonce, policy.everyone(), wake=())
    return [grant, undo, rolled_back]


def different() -> list[Request]:
    """The requests whose bytes differ by the way they are made."""
    cases = [*product(PREFIXES, [[name] for name in NAMES] + list(LISTS), LABELS)]
    asked = [ask for case in cases for ask in requests(*case)]
    asked += [ask for name in NAMES for ask in requests("p:", [name], "l", old="0" * 32)]
    assert {ask.command for ask in asked} == {Command.GRANT, Command.RELEASE}
    return [ask for ask in asked if pending.pack(ask, 0) != pack_any(ask, 0)]


def test_the_quick_way_makes_the_same_bytes():
    """Of names and labels in any writing system, of any length, one or many."""
    assert different() == []


def test_an_uncontended_lock_goes_the_quick_way():
    """A grant and a release of one name have one: else the check above proves nothing."""
    quick = {(each.command, len(each.keys), len(each.args)) for each in requests("p:", ["a"], "l")}
    assert quick == set(QUICK)


@pytest.mark.parametrize(
    "edit",
    [
        Edit(pending, "pack", "text.isascii()", "True"),
        Edit(pending, "_grant", "str.__str__(ask.args[3])", "str(ask.args[3])"),
        Edit(pending, "_items", "${len(text)}", "$4"),
    ],
    ids=lambda edit: edit.new,
)
def test_other_bytes_are_noticed(edit, monkeypatch):
    """The check above can fail."""
    with with_edits(edit):
        monkeypatch.setitem(QUICK, (Command.GRANT, 4, 9), pending._grant)
        assert different() != []
