"""``unavailable``: no majority of an alias's nodes can be asked, by anybody in this process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, events, redlock
from django_redlock.core.protocol import JoinQueue, LeaveQueue, Waiter
from django_redlock.events import EventKind
from django_redlock.inspection import Health, survey
from django_redlock.testing import assert_free, taken, unavailable
from django_redlock.testing.outages import Outage, _outages
from tests.support.loops import open_files, threads
from tests.support.waiting import eventually

ATTEMPT = """
from django.conf import settings
settings.configure(REDLOCK={})
from django_redlock import redlock
redlock("report:7").acquire().release()
print("acquired")
"""


def failed(name: str = "report:7", alias: str = "default") -> NodesUnavailable:
    """Why an attempt fails, which waits for no node: it would wait for ever."""
    with pytest.raises(NodesUnavailable) as caught:
        redlock.using(alias)(name).acquire()
    return caught.value


async def afailed(name: str = "report:7") -> NodesUnavailable:
    """The same of a task."""
    with pytest.raises(NodesUnavailable) as caught:
        await redlock(name).aacquire()
    return caught.value


@contextmanager
def told(*kinds: EventKind) -> Iterator[list[EventKind]]:
    """The kinds of events that are told."""
    heard: list[EventKind] = []
    listen = lambda event: heard.append(event.kind)  # noqa: E731
    events.subscribe(listen, kinds)
    try:
        yield heard
    finally:
        events.unsubscribe(listen, kinds)


def test_attempts_fail_at_once_in_every_thread(aliases):
    """The error says of each node that it is down; after the block the name can be taken."""
    with ThreadPoolExecutor(1) as others:
        redlock("report:7").acquire().release()
        with unavailable():
            assert {vote.code for vote in failed().votes} == {"down"}
            assert others.submit(failed).result().votes
        with redlock("report:7"):
            pass


def test_attempts_fail_at_once_in_every_task(aliases):
    """In the loop of the block, in another loop, and in a thread; also by a plain ``with``."""

    async def main() -> None:
        await (await redlock("report:7").aacquire()).arelease()
        async with unavailable():
            assert {vote.code for vote in (await afailed()).votes} == {"down"}
            await asyncio.to_thread(failed)
            await asyncio.to_thread(lambda: asyncio.run(afailed()))
        with unavailable():
            await afailed()
        async with redlock("report:7"):
            pass

    asyncio.run(main())


@pytest.mark.slow
def test_other_processes_notice_nothing(patient_nodes):
    """The servers go on: another process takes and frees the name meanwhile."""
    script = ATTEMPT.replace("REDLOCK={}", f"REDLOCK={settings.REDLOCK!r}")
    with unavailable():
        failed()
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
    assert done.stdout == "acquired\n"


def test_an_attempt_that_waits_gets_the_lock_afterwards(aliases):
    """It tries again, as in an outage of real nodes."""
    with ThreadPoolExecutor(1) as others:
        with unavailable(), told(EventKind.UNAVAILABLE):
            waiter = others.submit(redlock("report:7").acquire, 60)
            failed()
            assert not waiter.done()
        waiter.result(120).release()


def test_renewals_fail_and_go_on(aliases, often):
    """It is told once that a lease is not renewed, and that it is again."""
    with told(EventKind.UNKNOWN, EventKind.EXTENDED) as heard, redlock("report:7") as lease:
        with unavailable():
            eventually(lambda: EventKind.UNKNOWN in heard)
            lease.ensure()
        heard.clear()
        eventually(lambda: EventKind.EXTENDED in heard)


@pytest.mark.slow
def test_a_lease_whose_time_is_over_in_an_outage_is_lost(aliases):
    """No renewal prolongs it: the holder is told at its deadline."""
    lost: list[Any] = []
    lease = redlock("report:7", ttl=2, wait=60, on_lost=lost.append).acquire()
    with unavailable():
        eventually(lambda: lost == [lease])
        with pytest.raises(LeaseLost):
            lease.ensure()


def test_what_is_released_in_an_outage_is_free_afterwards(aliases):
    """The release raises nothing, and is carried out at the end of the block."""
    lease = redlock("report:7").acquire()
    with unavailable():
        lease.release()
        assert lease.ended
    assert_free("report:7")
    redlock("report:7").acquire().release()


def test_what_a_task_releases_in_an_outage_is_free_afterwards(aliases):
    """The same of a task, by ``async with`` and by ``with``."""

    async def main() -> None:
        lease = await redlock("report:7").aacquire()
        async with unavailable():
            await lease.arelease()
        lease = await redlock("report:7").aacquire()
        with unavailable():
            await lease.arelease()
        await (await redlock("report:7").aacquire()).arelease()

    asyncio.run(main())


def test_a_waiter_leaves_its_queue_in_an_outage(memory):
    """Else those of its process that wait after the outage would stand behind it."""
    group, waiter = conf.backend("default").group, Waiter("queue")
    with unavailable():
        assert group.queue(JoinQueue(waiter, 0.0)) is True
        assert sum(group.waiting().values()) == 1
        group.queue(LeaveQueue(waiter))
        assert sum(group.waiting().values()) == 0


def test_a_status_page_says_so(aliases):
    """A survey finds no majority during the block, and all well before and after."""
    redlock("report:7").acquire().release()

    def health() -> Health:
        voting = [state.voting for state in conf.backend("default").group.states()]
        found = survey(conf.backend("default"))
        assert found.voting == sum(voting)
        return found.health

    assert health() is Health.OK
    with unavailable():
        assert health() is Health.NO_MAJORITY
    assert health() is Health.OK


def test_nested_and_overlapping_blocks(aliases):
    """The outage ends with the last of its blocks, in whatever order they end."""
    first, second = unavailable(), unavailable()
    with unavailable():
        with unavailable():
            failed()
        failed()
    redlock("report:7").acquire().release()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    failed()
    second.__exit__(None, None, None)
    redlock("report:7").acquire().release()


def test_a_function_by_a_stack_and_by_a_test_case(aliases):
    """It decorates functions and coroutine functions, and may be entered by others."""

    class Tests(TestCase):
        def test(self):
            self.enterContext(unavailable())
            failed()

    assert unavailable()(failed)().votes
    assert asyncio.run(unavailable()(afailed)()).votes
    with ExitStack() as stack:
        stack.enter_context(unavailable())
        failed()
    result = Tests("test").run()
    assert result is not None
    assert result.wasSuccessful(), result.errors
    redlock("report:7").acquire().release()


def _state(group: Any) -> list[Any]:
    """What must be the same afterwards: connections that are open, lent or not, and methods."""
    connections = [
        {each for each in node._opened_here if not each.fault}
        for node in group.nodes
        if hasattr(node, "_opened_here")
    ]
    return [connections, dict(vars(group))]


def test_connections_are_as_before(aliases):
    """No connection is closed or opened, and the methods are the same."""
    redlock("report:7").acquire().release()
    group: Any = conf.backend("default").group
    # A majority suffices for a lock; others may be connected later.
    eventually(lambda: not any(getattr(node, "_attempts", ()) for node in group.nodes))
    before = _state(group)
    with unavailable():
        failed()
        with pytest.raises(NodesUnavailable), taken("a"):
            pass
    assert _state(group) == before
    redlock("report:7").acquire().release()
    assert _outages == {}


@pytest.mark.slow
@pytest.mark.alone
def test_there_are_no_more_descriptors_and_threads(aliases):
    """An outage costs the process none."""
    redlock("report:7").acquire().release()
    before = open_files(), threads()
    with unavailable():
        failed()
        with pytest.raises(NodesUnavailable), taken("a"):
            pass
    eventually(lambda: open_files() <= before[0] and threads() <= before[1])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_block_ends_the_outage(aliases, error):
    """However the block ends."""
    with pytest.raises(error), unavailable():
        raise error
    redlock("report:7").acquire().release()


def test_bad_arguments():
    """A clear error names the argument."""
    with pytest.raises(TypeError, match="alias"):
        unavailable(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"its parentheses: @unavailable\(\)"):
        unavailable(test_bad_arguments)  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="no alias 'none'"), unavailable("none"):
        pass


def forgets(outage: Outage) -> list[Any]:
    """End, and carry nothing out."""
    end(outage)
    return []


end = Outage.end
BROKEN: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
    "forgets what was released": (
        {"end": forgets},
        test_what_is_released_in_an_outage_is_free_afterwards,
    ),
    "forgets what a task released": (
        {"end": forgets},
        test_what_a_task_releases_in_an_outage_is_free_afterwards,
    ),
    "never ends": ({"end": lambda outage: []}, test_connections_are_as_before),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_variant_is_noticed(memory, name):
    """The tests above can fail; on nodes in memory, which have no methods of their own."""
    changed, check = BROKEN[name]
    wrong = (AssertionError, LockTaken, NodesUnavailable, pytest.fail.Exception)
    try:
        with patch.multiple(Outage, **changed), pytest.raises(wrong):
            check("memory")
    finally:
        for outage in tuple(_outages.values()):
            outage.blocks = 1
            outage.end()
