"""The nodes' memory of our scripts: they are called by digest, and may be forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from django_redlock.nodes import scripts
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.loops import group_of, keys_on, template
from tests.support.waiting import eventually


@pytest.fixture
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with EmbeddedNodes(3) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


@pytest.fixture
def group(three, request: pytest.FixtureRequest) -> Iterator[NodeGroup]:
    """The same as a process knows them; no node has to be quick, unless a test says so."""
    with closing(group_of(three.urls, getattr(request, "param", 20))) as group:
        yield group


def forget_scripts(nodes: EmbeddedNodes) -> None:
    """What an operator can do."""
    for node in nodes:
        with closing(node.client()) as admin:
            assert admin.script_flush()


def calls(node: EmbeddedNode, *, anew: bool = True) -> dict[str, int]:
    """How often each command of scripts was called since that was last counted anew."""
    with closing(node.client()) as admin:
        told = admin.info("commandstats")
        if anew:
            admin.config_resetstat()
    named = {name.removeprefix("cmdstat_"): facts["calls"] for name, facts in told.items()}
    if "script" in named:  # Redis 6.2 counts all its subcommands as one
        named["script|load"] = named.pop("script")
    return {name: count for name, count in named.items() if name.startswith(("eval", "script"))}


def have_run(nodes: EmbeddedNodes, count: int) -> bool:
    """Whether each node has run so many scripts by digest; nobody waits for a late one."""
    return [calls(node, anew=False).get("evalsha") for node in nodes] == [count] * len(nodes)


def test_a_script_goes_over_the_wire_once_per_connection(three, group):
    """Locks are asked for and released by the digests of scripts that the connection loaded."""
    redlock = template(group)
    redlock("name").acquire().release()
    eventually(partial(have_run, three, 2))
    for node in three:
        first = calls(node)
        assert first == {"script|load": len(scripts.TEXT), "eval": 1, "evalsha": 2}
    for _ in range(10):
        redlock("name").acquire().release()
    eventually(partial(have_run, three, 20))
    assert [calls(node) for node in three] == [{"evalsha": 20}] * 3


def test_forgotten_scripts_cost_no_lock(three, group):
    """After SCRIPT FLUSH on all nodes a lease is renewed and released, and the next is had.

    A node that nobody waited for is asked again when its connection is next used.
    """
    redlock = template(group)

    def free_everywhere() -> bool:
        """Whether no node has a key, after a question that uses every connection."""
        redlock("other").acquire().release()
        return keys_on(three) == [[]] * 3

    for _ in range(3):
        lease = redlock("name").acquire()
        forget_scripts(three)
        lease.extend()
        lease.release()
        redlock("name").acquire().release()
        eventually(free_everywhere)
        forget_scripts(three)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
def test_a_grant_is_not_sent_again_when_its_asker_has_gone(three, group, asynchronous):
    """A node says late that it has forgotten the scripts: no key appears for who has gone."""
    redlock = template(group, ttl=60)
    redlock("warm").acquire().release()
    eventually(lambda: keys_on(three) == [[]] * 3)
    with closing(three[2].client()) as admin:
        admin.script_flush()
    three.pause(2)

    async def take_and_give_away() -> None:
        lease = await redlock("given").aacquire()
        lease.handle()  # nobody adopts it, and nobody releases it here
        three.resume(2)
        while True:
            async with redlock("other"):
                if three_have("redlock:lock:other"):
                    return

    def three_have(key: str) -> bool:
        return all(key in keys for keys in keys_on(three))

    if asynchronous:
        asyncio.run(take_and_give_away())
    else:
        lease = redlock("given").acquire()
        lease.handle()
        three.resume(2)

        def other() -> bool:
            with redlock("other"):
                return three_have("redlock:lock:other")

        eventually(other)
    assert ["redlock:lock:given" in keys for keys in keys_on(three)] == [True, True, False]
    for node in three:
        with closing(node.client()) as admin:
            admin.delete("redlock:lock:given")
