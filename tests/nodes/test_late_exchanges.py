"""What is noted of requests to which not all nodes have replied: where an undo goes, and a heal."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from django_redlock.core.commands import Heal
from django_redlock.core.protocol import Answer, Request, Vote
from django_redlock.core.quorum import all_heard
from django_redlock.core.reasons import ReasonCode
from django_redlock.interruption import gone
from django_redlock.nodes import exchange as exchange_module
from django_redlock.nodes.connection import SentAgain
from django_redlock.nodes.exchange import Exchange, LateExchanges
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from tests.support.links import LONG, NONCE, TARGET, connected, grant, release, threads_of
from tests.support.loops import group_of
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LAST = frozenset({2})


def heal() -> Request:
    """A heal of that lease on the last node."""
    return Heal(NONCE, all_heard, TARGET, fence=10**15, ttl=30_000, label="label", to=LAST)


async def in_a_loop(group: NodeGroup) -> list[Vote]:
    """The votes on that heal, of a task."""
    return await group.aask(heal())


def healed(three: Any, ending: str, *, by: str = "thread") -> list[str]:
    """What two heals, one after the other, are told of a node that has not replied to the grant.

    Args:
        ending: whether it ``replies``, its connection is ``closed``, or ``neither``.
        by: what heals: a ``thread``, whose link is another one, or a ``task``.
    """
    for node in three:
        node.client().flushdb()
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        link = connected(group)
        proxy.holding = 1
        group.ask(grant())
        eventually(lambda: proxy.held == 1)
        connected(group, more=True)
        if ending == "replies":
            proxy.let_go()
            eventually(lambda: three[2].client().exists(*TARGET.keys))
            eventually(lambda: link._poll.poll(0))
            three[2].client().delete(*TARGET.keys)
        elif ending == "closed":
            link.drop(2).close(CLOSED)
        told = []
        for _ in range(2):
            vote = (group.ask(heal()) if by == "thread" else asyncio.run(in_a_loop(group)))[2]
            told.append(vote.code if vote.answer is not Answer.YES else "healed")
        proxy.let_go()
        group.ask(replace(release(), decided=all_heard))
        group.close()
    return told


UNANSWERED = str(ReasonCode.GRANT_UNANSWERED)


@pytest.mark.parametrize("by", ["thread", "task"])
@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("replies", ["healed", "healed"]),
        ("closed", [UNANSWERED, "healed"]),
        ("neither", [UNANSWERED, UNANSWERED]),
    ],
)
def test_a_heal_goes_to_no_node_that_may_still_grant(three, ending, told, by):
    """Else one handle could be adopted twice. Where the connection has ended it waits once.

    What a node has replied is read for it, though nobody has used that connection since.
    """
    assert healed(three, ending, by=by) == told


def late(number: int, late: LateExchanges, *places: int) -> Exchange:
    """A round to which these nodes have not replied."""
    found = Exchange((), grant(f"{number:032x}"), LONG, late=late)
    found.missing = dict.fromkeys(places, gone)
    late.add(found)
    return found


def test_what_is_noted_has_a_bound(monkeypatch):
    """What all nodes have replied to goes first, and then the oldest."""
    monkeypatch.setattr(exchange_module, "FEW_LATE", 4)
    monkeypatch.setattr(exchange_module, "MOST_LATE", 6)
    noted = LateExchanges()
    rounds = [late(number, noted, 1) for number in range(4)]
    rounds[2].strike(1)
    late(4, noted, 1)
    assert [int(nonce, 16) for nonce in noted] == [0, 1, 3, 4]
    for number in range(5, 10):
        late(number, noted, 1)
    assert [int(nonce, 16) for nonce in noted][-6:] == [4, 5, 6, 7, 8, 9]
    assert len(noted) <= 8


def test_what_is_noted_keeps_no_connection_open(three):
    """A loop that is closed without shutting down leaves its grants, and no socket."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        link = connected(group)
        proxy.holding = 1
        group.ask(grant())
        (noted,) = threads_of(group).late[NONCE]
        group.nodes[2]._last = None
        connection = weakref.ref(link.drop(2))
        gc.collect()
        assert connection() is None
        assert [*noted.missing] == [2]
        group.ask(replace(release(), to=frozenset({0, 1}), decided=all_heard))
        proxy.let_go()
        group.close()
    three[2].client().flushdb()


def test_a_reply_to_what_was_sent_again_is_noted():
    """Also where nobody waits for it any more."""
    noted = LateExchanges()
    first = late(1, noted, 2)
    first.over = True
    again = SentAgain(SentAgain(first, b"", 0.0), b"", 0.0, mute=True)
    again.hear(2, Vote("node", Answer.YES))
    assert not first.missing


def test_an_undo_forgets_what_was_noted(three):
    """The table has what is held, and no more."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        connected(group)
        proxy.holding = 1
        group.ask(grant())
        assert threads_of(group).late.has(NONCE, 2)
        group.ask(release())
        assert not threads_of(group).late
        proxy.let_go()
        group.close()
