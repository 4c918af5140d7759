"""``leader``: one of all campaigns leads, in threads and in tasks, and nobody believes a flag."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.leases.lease import Lease
from django_redlock.locks import leader as leader_module
from django_redlock.locks.leader import Leader
from django_redlock.testing import EmbeddedNodes, assert_free, assert_taken, stale, unavailable
from tests.simulation.mutants import Patch, with_edits
from tests.simulation.mutants.edits import Edit
from tests.support.waiting import eventually

NUMBERS = itertools.count()
LONG = 60.0
Begin = Callable[..., AbstractContextManager[Leader]]


@pytest.fixture(autouse=True, params=["memory", "real"])
def nodes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Five nodes that hold nothing, in force as the default alias; no lease ends by the clock."""
    alias: dict[str, object] = {
        "NODES": [f"memory://leader-{next(NUMBERS)}" for _ in range(5)],
        "MAX_TTL": LONG,
        "TTL": LONG,
    }
    if request.param == "real":
        servers: EmbeddedNodes = request.getfixturevalue("patient_nodes")
        alias = servers.settings(MAX_TTL=LONG, NODE_TIMEOUT=5, RESTART_GUARD=False) | {"TTL": LONG}
    with override_settings(REDLOCK={"default": alias}):
        yield


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=["threads", "tasks"])
def begin(request: pytest.FixtureRequest) -> Iterator[Begin]:
    """What begins a campaign and ends it with a block: in a thread, or in a task of a loop."""
    if request.param == "threads":
        yield lambda name="beat", **told: redlock(name).leader(**told)
        return
    with loop_in_a_thread() as loop:

        @contextmanager
        def in_a_task(name: str = "beat", **told: Any) -> Iterator[Leader]:
            leader = redlock(name).leader(**told)
            asyncio.run_coroutine_threadsafe(leader.__aenter__(), loop).result(LONG)
            try:
                yield leader
            finally:
                asyncio.run_coroutine_threadsafe(leader.__aexit__(), loop).result(LONG)

        yield in_a_task


class Told:
    """What a campaign has said, in order: the callback, whether the lease was held, ``leads``."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.said: list[tuple[str, bool, bool]] = []

    def elected(self, lease: Lease) -> None:
        """Note it."""
        self.said.append(("elected", lease.held, redlock.leads(lease.names)))
        self.leases.append(lease)

    def lost(self, lease: Lease) -> None:
        """Note it."""
        self.said.append(("lost", lease.held, redlock.leads(lease.names)))

    def both(self) -> dict[str, Any]:
        """The keywords of ``leader``."""
        return {"on_elected": self.elected, "on_lost": self.lost}

    def lease(self, number: int = 1) -> Lease:
        """Wait for the lease of this election."""
        eventually(lambda: len(self.leases) >= number)
        return self.leases[number - 1]


# -- one campaign ---------------------------------------------------------------------------------


def test_what_the_election_began_is_ended_before_the_release(begin):
    """At the end of the block the process says that it leads no more, stops, and then releases."""
    told = Told()
    assert not redlock.leads("beat")
    with begin(**told.both()) as leader:
        told.lease()
        assert redlock.leads("beat")
        assert leader.leads()
        assert_taken("beat")
    assert told.said == [("elected", True, True), ("lost", True, False)]
    assert not redlock.leads("beat")
    assert_free("beat")


def test_a_campaign_needs_no_callbacks(begin):
    """Jobs ask ``leads``; of another name, alias, or list of names it knows nothing."""
    with begin(["beat", "tick"]):
        eventually(lambda: redlock.leads(["beat", "tick"]))
        assert not redlock.leads("beat")
    with begin():
        eventually(lambda: redlock.leads("beat"))
        assert not redlock.leads("other")
        assert not redlock.using("other").leads("beat")


def test_after_a_loss_it_campaigns_again(begin):
    """It is told once, does not lead meanwhile, and its next lease has a higher fence."""
    told = Told()
    with begin(**told.both()):
        first = told.lease()
        stale(first)
        second = told.lease(2)
        assert second.fence > first.fence
        assert redlock.leads("beat")
    calls = ["elected", "lost", "elected", "lost"]
    assert [call for call, *_ in told.said] == calls
    assert told.said[1] == ("lost", False, False)


def lost_while_stopping(begin: Begin) -> bool:
    """Whether a process says that it leads, once its lease is lost and it is still stopping."""
    told, stopping, go_on = Told(), threading.Event(), threading.Event()

    def slow(_: Lease) -> None:
        stopping.set()
        go_on.wait(LONG)

    with begin(on_elected=told.elected, on_lost=slow):
        stale(told.lease())
        assert stopping.wait(LONG)
        try:
            return redlock.leads("beat")
        finally:
            go_on.set()


def test_it_does_not_lead_while_it_stops(begin):
    """From the loss on, whatever else the campaign still does."""
    assert not lost_while_stopping(begin)


def noted(_: Any) -> Callable[[Leader], bool]:
    """Believes what the campaign has noted."""
    return lambda self: self._lease is not None


def test_a_leader_that_believes_a_flag_is_caught(begin):
    """The campaign learns of the loss later than the lease."""
    with with_edits(Patch(Leader, "leads", noted)), pytest.raises(AssertionError):
        lost_before_it_was_told(begin)


def lost_before_it_was_told(begin: Begin) -> None:
    """The deadline is over, and nobody has told the campaign yet."""
    told = Told()
    with begin(**told.both()):
        lease = told.lease()
        with with_edits(Patch(Lease, "tell_lost", lambda _: lambda self: None)):
            lease.expire()
            leads = redlock.leads("beat")
        lease.tell_lost()
    assert not leads


def test_it_does_not_lead_from_the_deadline_on(begin):
    """Also where the campaign has not heard of it, as after a pause of the process."""
    lost_before_it_was_told(begin)


def test_what_is_not_known_is_false(begin):
    """Where no majority replies, a leader leads until its deadline, and not a moment longer."""
    told = Told()
    with begin(**told.both()):
        lease = told.lease()
        with unavailable():
            assert redlock.leads("beat")
            lease.expire()
            assert not redlock.leads("beat")


# -- several campaigns ----------------------------------------------------------------------------


def test_of_two_campaigns_one_leads_and_the_other_follows_at_once(begin):
    """Long before a ttl is over, the end of the first block elects the second."""
    one, other = Told(), Told()
    with ExitStack() as second_block:
        with begin(**one.both()) as first:
            one.lease()
            second = second_block.enter_context(begin(**other.both()))
            with begin() as third:
                eventually(lambda: sum(conf.backend("default").group.waiting().values()) == 2)
                assert [each.leads() for each in (first, second, third)] == [True, False, False]
            assert redlock.leads("beat")
        other.lease()
        assert [each.leads() for each in (first, second, third)] == [False, True, False]
        assert redlock.leads("beat")
    assert one.said[-1] == ("lost", True, False)
    assert_free("beat")


def test_a_campaign_that_waits_ends_with_its_block(begin):
    """It leaves the line, takes nothing later, and nobody is told."""
    told = Told()
    with redlock("beat"):
        with begin(**told.both()):
            eventually(conf.backend("default").group.waiting)
        assert not conf.backend("default").group.waiting()
    assert_free("beat")
    assert not told.said


# -- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def restless() -> Iterator[None]:
    """No rest after an error."""
    with with_edits(Patch(leader_module, "LONGEST_REST", lambda _: 0.01)):
        yield


@pytest.mark.usefixtures("restless")
def test_who_cannot_begin_gives_the_name_back_and_tries_again(begin, caplog):
    """A leader that does nothing would be worse than none; what did not begin is not ended."""
    told = Told()

    def fails_twice(lease: Lease) -> None:
        told.elected(lease)
        if len(told.leases) < 3:
            raise ZeroDivisionError

    caplog.set_level(logging.ERROR, "django_redlock")
    with begin(on_elected=fails_twice, on_lost=told.lost):
        told.lease(3)
        eventually(lambda: redlock.leads("beat"))
    assert [call for call, *_ in told.said] == ["elected"] * 3 + ["lost"]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2


def leads_again_after_an_exit() -> bool:
    """``on_elected`` ends its thread by mistake, once."""
    told = Told()

    def exits(lease: Lease) -> None:
        told.elected(lease)
        if len(told.leases) == 1:
            sys.exit("by mistake")

    with redlock("beat").leader(on_elected=exits) as leader:
        told.lease()
        ended = leader._ended
        assert ended is not None
        eventually(lambda: len(told.leases) > 1 or not ended.empty())
        return len(told.leases) > 1


@pytest.mark.usefixtures("restless")
def test_an_exit_in_its_thread_ends_no_campaign():
    """A thread ignores it silently, and this process would lead no more."""
    assert leads_again_after_an_exit()


@pytest.mark.usefixtures("restless")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_campaign_that_an_exit_ends_is_caught():
    """Broken: as of any thread."""
    with with_edits(Edit(Leader, "_run", "(Exception, SystemExit)", "Exception")):
        assert not leads_again_after_an_exit()


def test_an_error_while_it_stops_is_logged(begin, caplog):
    """The campaign goes on, and the name is released."""
    told = Told()

    def fails(_: Lease) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR, "django_redlock")
    with begin(on_elected=told.elected, on_lost=fails):
        stale(told.lease())
        told.lease(2)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["on_lost of 'beat' failed"] * 2
    assert_free("beat")


def test_while_no_majority_can_be_asked_it_waits(begin):
    """And it leads as soon as the nodes are back."""
    told = Told()
    with ExitStack() as block:
        with unavailable():
            block.enter_context(begin(**told.both()))
            assert not redlock.leads("beat")
            assert not told.leases
        told.lease()


# -- in a thread ----------------------------------------------------------------------------------


def test_on_elected_may_do_the_work_while_it_leads():
    """``while redlock.leads(name)`` ends with the lease, and with the block."""
    steps: queue.SimpleQueue[int] = queue.SimpleQueue()
    over: list[int] = []

    leases = Told()

    def work(lease: Lease) -> None:
        leases.elected(lease)
        while redlock.leads("beat"):
            steps.put(lease.fence)
            threading.Event().wait(0.001)
        over.append(lease.fence)

    with redlock("beat").leader(on_elected=work):
        first = steps.get(timeout=LONG)
        stale(leases.lease())
        leases.lease(2)
        assert over == [first]
    assert len(over) == 2


def test_news_of_an_earlier_lease_deposes_nobody():
    """The watchdog may tell of a loss when the next term has begun."""
    told = Told()
    with redlock("beat").leader(**told.both()) as leader:
        first = told.lease()
        stale(first)
        told.lease(2)
        leader._news.put(first)
        eventually(leader._news.empty)
        assert redlock.leads("beat")
    assert len(told.leases) == 2


def test_a_thread_that_was_not_started_for_certain_campaigns_for_nobody(monkeypatch):
    """An interruption of the start leaves no leader behind, and the block can be entered again."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    leader = redlock("beat").leader()
    with monkeypatch.context() as patch:
        patch.setattr(leader_module, "start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            leader.__enter__()
    with leader:
        eventually(leader.leads)


PROGRAM = """
import os, sys, threading
from django.conf import settings
settings.configure(REDLOCK={"default": {"NODES": ["memory://a"]}})
from django_redlock import redlock

elected, log = threading.Event(), []
leader = redlock("beat").leader(
    on_elected=lambda lease: elected.set(), on_lost=lambda lease: log.append("lost")
)
leader.__enter__()
elected.wait(60)
child = os.fork()
if not child:
    inherited = redlock.leads("beat")
    leader.__exit__()
    with redlock("of the child").leader():
        while not redlock.leads("of the child"):
            pass
    os._exit(bool(inherited or log))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), redlock.leads("beat"), log)
if "leave" in sys.argv:
    leader.__exit__()
    print(redlock.leads("beat"), log)
"""


@pytest.mark.slow
@pytest.mark.parametrize("leave", [True, False])
def test_a_forked_child_leads_nothing_and_a_process_that_ends_waits_for_nothing(leave):
    """The campaign belongs to the process that began it, and holds up no exit."""
    words = [sys.executable, "-c", PROGRAM, *["leave"] * leave]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=LONG, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["0 True []", *["False ['lost']"] * leave]


# -- in a task ------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallows", [False, True])
def test_a_coroutine_function_is_cancelled_with_the_lease(swallows):
    """It may be the work itself: a loss and the end of the block cancel it, then comes on_lost."""
    said: list[str] = []
    leases: list[Lease] = []

    async def work(lease: Lease) -> None:
        leases.append(lease)
        said.append("elected")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            said.append("cancelled")
            if not swallows:
                raise

    async def lost(_: Lease) -> None:
        await asyncio.sleep(0)
        said.append("lost")

    async def until(number: int) -> None:
        while len(leases) < number:  # noqa: ASYNC110 - a helper of tests
            await asyncio.sleep(0.005)

    async def main() -> None:
        async with asyncio.timeout(LONG), redlock("beat").leader(on_elected=work, on_lost=lost):
            await until(1)
            stale(leases[0])
            await until(2)
            assert redlock.leads("beat")
        assert not redlock.leads("beat")

    asyncio.run(main())
    assert said == ["elected", "cancelled", "lost"] * 2
    assert_free("beat")


def stop_meets_the_end_of_the_block() -> list[str]:
    """The lease is lost; while ``on_lost`` stops what the election began, the block ends."""
    said: list[str] = []
    leases: list[Lease] = []

    async def main() -> None:
        stopping, end = asyncio.Event(), asyncio.Event()

        async def stop(_: Lease) -> None:
            stopping.set()
            await end.wait()
            said.append("stopped")

        async def leave() -> None:
            async with redlock("beat").leader(on_elected=leases.append, on_lost=stop):
                while not leases:  # noqa: ASYNC110 - a helper of tests
                    await asyncio.sleep(0.005)
                stale(leases[0])
                await stopping.wait()
            said.append("left")

        async with asyncio.timeout(LONG):
            left = asyncio.create_task(leave())
            await stopping.wait()
            for _ in range(10):  # turns of the loop, in which the block ends
                await asyncio.sleep(0)
            end.set()
            await left

    asyncio.run(main())
    assert_free("beat")
    return said


def test_an_on_lost_that_runs_is_not_cancelled_by_the_end_of_the_block():
    """Half of a stop leaves the other half running."""
    assert stop_meets_the_end_of_the_block() == ["stopped", "left"]


def test_a_block_that_cancels_its_on_lost_is_caught():
    """Broken: it cancels the campaign whatever that does."""
    with with_edits(Edit(Leader, "__aexit__", "if not self._stopping:", "if True:")):
        assert stop_meets_the_end_of_the_block() == ["left"]


# -- where it makes no sense ----------------------------------------------------------------------


def test_what_makes_no_sense_is_refused():
    """Before the campaign begins, not in the log of its thread."""

    async def of_a_task(_: Lease) -> None:
        """Nobody awaits it in a thread."""

    with pytest.raises(TypeError, match=r"on_lost already: give it to leader\(on_lost=...\)"):
        redlock("beat", on_lost="raise").leader()
    with pytest.raises(TypeError, match="on_elected must be something to call"):
        redlock("beat").leader(on_elected="start")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_lost is a coroutine function"):
        redlock("beat").leader(on_lost=of_a_task).__enter__()
    for lock in (redlock("beat", ttl=2 * LONG), redlock("beat:{pk}")):
        with pytest.raises(ValueError, match=r"MAX_TTL|pk"):
            lock.leader().__enter__()
    with redlock("beat").leader() as leader, pytest.raises(RuntimeError, match="runs already"):
        leader.__enter__()
    with pytest.raises(ValueError, match="name"):
        redlock.leads("")

    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            redlock("beat").leader().__enter__()

    asyncio.run(main())
    assert_free("beat")
