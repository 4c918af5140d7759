"""The bytes of a request are those that redis-py would send."""

from __future__ import annotations

import enum
from itertools import product

import pytest
from redis.connection import Connection

from django_redlock.core import acquire, hold
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request
from django_redlock.nodes import scripts
from django_redlock.nodes.connection import pack


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


def requests(prefix: str, names: list[str], label: str, old: str) -> list[Request]:
    """A grant and a release of these names, as the algorithm asks for them."""
    policy = Policy(size=5, prefix=prefix)
    target = policy.target(names)
    steps = acquire.attempt(
        policy, target, label=label, ttl=30.25, old=old, wakeup="f" * 32, patient=True
    )
    grant = next(steps)
    assert isinstance(grant, Request)
    return [grant, hold.undo(policy, target, grant.nonce, policy.everyone, reserve=50)]


@pytest.mark.parametrize("old", ["", "0" * 32])
def test_the_bytes_are_those_of_redis_py(old):
    """Of names and labels in any writing system, of any length, one or many."""
    plain = Connection()
    for case in product(PREFIXES, [[name] for name in NAMES] + list(LISTS), LABELS):
        for ask in requests(*case, old):
            last = [""] if ask.command == "grant" else []  # where the node's epoch goes
            parts = [*ask.keys, ask.nonce, *ask.wire()[1], *last]
            told = plain.pack_command(
                "EVALSHA", scripts.DIGEST[ask.command], len(ask.keys), *map(str.encode, parts)
            )
            assert pack(ask, 0) == b"".join(told)
