"""``leader``: one of all campaigns leads, in threads and in tasks, and nobody believes a flag."""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from dev.soak.faults.leading import BROKEN
from django_redlock import conf, redlock
from django_redlock.leases.lease import Lease
from django_redlock.locks import leader as leader_module
from django_redlock.locks.leader import Leader
from django_redlock.testing import assert_free, assert_taken, stale, unavailable
from tests.simulation.mutants import Patch, with_edits
from tests.support.loops import soon
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nodes")
in_memory = pytest.mark.parametrize("nodes", ["memory"], indirect=True)
LONG = 60.0
Begin = Callable[..., AbstractContextManager[Leader]]


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


def in_a_thread(name: Any = "beat", **told: Any) -> Leader:
    """The block of a campaign in a thread."""
    return redlock(name).leader(**told)


@pytest.fixture(params=["threads", "tasks"])
def begin(request: pytest.FixtureRequest) -> Iterator[Begin]:
    """What begins a campaign and ends it with a block: in a thread, or in a task of a loop."""
    if request.param == "threads":
        yield in_a_thread
        return
    with loop_in_a_thread() as loop:

        @contextmanager
        def in_a_task(name: str = "beat", **told: Any) -> Iterator[Leader]:
            leader = redlock(name).leader(**told)
            entered = asyncio.run_coroutine_threadsafe(leader.__aenter__(), loop).result(LONG)
            try:
                yield entered
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


@in_memory
def test_braces_in_a_value_are_text(nodes):
    """A name that was filled has no field, whatever the value looks like."""
    with redlock.named("beat:{site}", site="{a}").leader() as leader:
        eventually(leader.leads)
        assert_taken("beat:{a}")


def test_after_a_loss_it_campaigns_again(begin):
    """It is told once, does not lead meanwhile, and its next lease has a higher fence."""
    told = Told()
    with begin(**told.both()):
        first = told.lease()
        stale(first)
        second = told.lease(2)
        assert second.fence > first.fence
        assert redlock.leads("beat")
    assert [call for call, *_ in told.said] == ["elected", "lost"] * 2
    assert told.said[1] == ("lost", False, False)


def test_it_does_not_lead_from_the_deadline_on(begin):
    """Until then it leads, though no majority replies; then not, though it has not heard of it.

    So it is after a pause of the process.
    """
    told = Told()
    with begin(**told.both()):
        lease = told.lease()
        with unavailable(), with_edits(Patch(Lease, "tell_lost", lambda _: lambda self: None)):
            led = redlock.leads("beat")
            lease.expire()
            leads = redlock.leads("beat")
        lease.tell_lost()
    assert (led, leads) == (True, False)


def test_a_leader_that_believes_a_flag_is_caught(begin):
    """Broken: it believes that it would have been told."""
    with with_edits(*BROKEN["flag"]), pytest.raises(AssertionError):
        test_it_does_not_lead_from_the_deadline_on(begin)


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


# -- the end of the block, and work that goes on --------------------------------------------------


class Step:
    """Work in the middle of a step when it is asked to stop: in a thread, or as a coroutine."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.lease: Any = None

    def _begin(self, lease: Lease) -> None:
        self.lease = lease
        self._said.append("begins")
        self.begun.set()

    def work(self, lease: Lease) -> None:
        """Step until it leads no more, and then to the end of the step."""
        self._begin(lease)
        redlock.leads("beat", pause=LONG)
        self._said.append("asked")
        self.go_on.wait(LONG)
        self._said.append(f"ends {lease.held}")

    async def awork(self, lease: Lease) -> None:
        """The same in a task, which is cancelled."""
        self._begin(lease)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self._said.append("asked")
            await asyncio.to_thread(self.go_on.wait, LONG)
            self._said.append(f"ends {lease.held}")
            raise


@contextmanager
def in_the_middle_of_a_step(begin: Begin, said: list[str]) -> Iterator[Step]:
    """The block ends meanwhile, in another thread; the campaign has asked its work to stop."""
    step, end = Step(said), threading.Event()

    def block() -> None:
        with begin(on_elected=step.work if begin is in_a_thread else step.awork):
            end.wait(LONG)
        said.append("left")

    thread = threading.Thread(target=block)
    thread.start()
    try:
        assert step.begun.wait(LONG)
        end.set()
        eventually(lambda: "asked" in said)
        yield step
    finally:
        step.go_on.set()
        thread.join(LONG)


def handed_over(begin: Begin, *, at_once: bool) -> list[str]:
    """What the works of two campaigns say; ``at_once``: the second one leads before the step ends.

    It waits in line, so it leads as soon as the name is free.
    """
    said: list[str] = []
    told = Told()
    with ExitStack() as second, in_the_middle_of_a_step(begin, said) as step:
        second.enter_context(redlock("beat").leader(on_elected=told.elected, on_lost=told.lost))
        if at_once:
            told.lease()
            said.append("the next leads")
        else:
            eventually(conf.backend("default").group.waiting)
            assert redlock("beat").state().held
            assert not told.said
        step.go_on.set()
        told.lease()
        eventually(lambda: "left" in said)
    return said


def test_the_name_is_free_when_the_work_has_returned(begin):
    """Asked to stop at the end of the block, it ends its step under the lease."""
    assert handed_over(begin, at_once=False) == ["begins", "asked", "ends True", "left"]
    assert_free("beat")


def test_a_block_that_releases_before_the_work_has_returned_is_caught(begin):
    """Broken: the next process leads in the middle of the step."""
    with with_edits(*BROKEN["early"]):
        said = handed_over(begin, at_once=True)
    assert said.index("the next leads") < said.index("ends False")


@pytest.mark.usefixtures("often")
def test_the_lock_is_renewed_while_the_end_of_the_block_waits(begin):
    """However long the last step takes."""
    with in_the_middle_of_a_step(begin, []) as step:
        deadline = step.lease.grant.deadline
        eventually(lambda: step.lease.grant.deadline > deadline)


def test_work_that_does_not_return_is_named(begin, caplog):
    """After ten seconds; the block ends no sooner for that."""
    said: list[str] = []
    with (
        with_edits(Patch(leader_module, "PATIENCE", lambda _: 0.01)),
        in_the_middle_of_a_step(begin, said),
    ):
        warned = eventually(lambda: [each.getMessage() for each in caplog.records])
        assert said == ["begins", "asked"]
        assert_taken("beat")
    assert said[2:] == ["ends True", "left"]
    assert re.match(r"leading 'beat' ended 0 seconds ago, .* waits for Step\.a?work to", warned[0])


def test_work_that_does_not_return_after_a_loss_is_named(begin, caplog):
    """Else a process would be in line no more, and say nothing."""
    told, go_on = Told(), threading.Event()

    def hangs(_: Lease) -> None:
        go_on.wait(LONG)

    with (
        with_edits(Patch(leader_module, "PATIENCE", lambda _: 0.01)),
        begin(on_elected=told.elected, on_lost=hangs),
    ):
        stale(told.lease())
        text = "waits for test_work_that_does_not_return_after_a_loss_is_named.<locals>.hangs"
        eventually(lambda: any(text in each.getMessage() for each in caplog.records))
        go_on.set()
        told.lease(2)


# -- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def restless() -> Iterator[None]:
    """No rest after an error."""
    with with_edits(Patch(leader_module, "LONGEST_REST", lambda _: 0.01)):
        yield


class Odd(BaseException):
    """As libraries have them for outcomes of tests, or to end a worker."""


@pytest.mark.usefixtures("restless")
def test_no_error_of_the_work_ends_the_campaign(begin, caplog):
    """What began in part is ended, the name is given back, and the campaign is in line again.

    So it is after a ``CancelledError`` of a task of its own; and after an exit, which a thread
    would ignore silently.
    """
    errors = [ZeroDivisionError, asyncio.CancelledError, Odd]
    errors += [SystemExit] * (begin is in_a_thread)
    told = Told()

    def fails_at_first(lease: Lease) -> None:
        told.elected(lease)
        if len(told.leases) <= len(errors):
            raise errors[len(told.leases) - 1]("by mistake")

    caplog.set_level(logging.ERROR, "django_redlock")
    with begin(on_elected=fails_at_first, on_lost=told.lost):
        told.lease(len(errors) + 1)
        eventually(lambda: redlock.leads("beat"))
    assert [call for call, *_ in told.said] == ["elected", "lost"] * (len(errors) + 1)
    assert told.said[1] == ("lost", True, False)  # it is released when that is ended
    assert [record.exc_info[0] for record in caplog.records] == errors


@pytest.mark.usefixtures("restless")
def test_work_that_returns_while_it_leads_ends_the_term(begin, caplog):
    """Else this process would lead, and nobody would work. It is logged, and in line again."""
    told = Told()
    with begin(on_elected=told.elected):
        assert told.lease(3).fence > told.lease(2).fence > told.lease().fence
        assert not told.lease().held
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    text = (
        "on_elected of 'beat' has returned while this process leads, and there is no on_lost: so "
        "nobody works, and another process may lead. Let it loop while redlock.leads()"
    )
    assert said[:2] == [text] * 2


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
    """``while redlock.leads(name)`` ends with the lease, and with the block; so does its pause.

    After a loss the campaign is in line again when the function has returned.
    """
    steps: queue.SimpleQueue[int] = queue.SimpleQueue()
    over: list[int] = []
    returns, leases = threading.Event(), Told()

    def work(lease: Lease) -> None:
        leases.elected(lease)
        steps.put(lease.fence)
        while redlock.leads("beat", pause=LONG):
            steps.put(0)
        over.append(lease.fence)
        returns.wait(LONG)

    with redlock("beat").leader(on_elected=work):
        first = steps.get(timeout=LONG)
        stale(leases.lease())
        eventually(lambda: over == [first])
        assert not redlock("beat").state().held
        assert len(leases.leases) == 1
        assert not redlock.leads("beat", pause=LONG)
        returns.set()
        leases.lease(2)
    assert len(over) == 2
    assert steps.qsize() == 1


def test_a_pause_passes(begin):
    """Then it still leads."""
    with begin():
        eventually(lambda: redlock.leads("beat"))
        assert redlock.leads("beat", pause=0.001)


def test_a_step_that_asks_its_lease_learns_of_the_loss(begin, caplog):
    """Its ``LeaseLost`` is the end of the term, and no failure."""
    told = Told()

    def work(lease: Lease) -> None:
        told.elected(lease)
        if len(told.leases) == 1:
            stale(lease)
        lease.ensure()

    with begin(on_elected=work, on_lost=told.lost):
        told.lease(2)
    assert not [each for each in caplog.records if each.levelno == logging.ERROR]


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


PROLOGUE = """
import logging, os, signal, sys, threading
from django.conf import settings
settings.configure(REDLOCK={"default": {"NODES": ["memory://a"], "TTL": 600, "MAX_TTL": 600}})
from django_redlock import redlock
"""


def said_by(program: str, *words: str) -> list[str]:
    """The lines that a program has printed at its end."""
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True)
    return done.stdout.splitlines()


PROGRAM = f"""{PROLOGUE}
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
@in_memory
@pytest.mark.parametrize("leave", [True, False])
def test_a_forked_child_leads_nothing_and_a_process_that_ends_waits_for_nothing(leave):
    """The campaign belongs to the process that began it, and holds up no exit."""
    expected = ["0 True []", *["False ['lost']"] * leave]
    assert said_by(PROGRAM, *["leave"] * leave) == expected


CTRL_C = f"""{PROLOGUE}
stepping, go_on = threading.Event(), threading.Event()

def work(lease):
    stepping.set()
    redlock.leads("beat", pause=float("inf"))
    threading.Event().wait(0.1)  # until the block waits, which makes no difference
    os.kill(os.getpid(), signal.SIGINT)
    go_on.wait(60)
    print("ends", lease.held)

try:
    with redlock("beat").leader(on_elected=work):
        stepping.wait(60)
except KeyboardInterrupt:
    print("interrupted", redlock("beat").state().held)
go_on.set()
with redlock("beat", wait=60):
    print("free")
"""


@pytest.mark.slow
@in_memory
def test_ctrl_c_leaves_the_wait_and_not_the_lock():
    """The work goes on to its end in the thread of the campaign, which then releases."""
    assert said_by(CTRL_C) == ["interrupted True", "ends True", "free"]


KILLED = f"""
from gevent import monkey
monkey.patch_all()
import gevent
{PROLOGUE}
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level="ERROR")
logging.Formatter.formatException = lambda *_: "Traceback"
greenlets = []

def work(lease):
    greenlets.append(gevent.getcurrent())
    while redlock.leads("beat", pause=1):
        pass

with redlock("beat").leader(on_elected=work, on_lost=lambda lease: print("lost", lease.held)):
    while not greenlets:
        gevent.sleep(0.01)
    greenlets[0].kill()
    with redlock("beat", wait=60):
        print("free")
print(len(greenlets))
"""


@pytest.mark.slow
@in_memory
def test_a_greenlet_that_is_killed_campaigns_no_more_and_says_so():
    """What it began is ended, and the name is free."""
    said = ["lost True", "ERROR no more campaign for 'beat': its greenlet was killed", "Traceback"]
    assert said_by(KILLED) == [*said, "free", "1"]


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

    async def main() -> None:
        async with asyncio.timeout(LONG), redlock("beat").leader(on_elected=work, on_lost=lost):
            await soon(lambda: leases)
            stale(leases[0])
            await soon(lambda: len(leases) == 2)
            assert redlock.leads("beat")
        assert not redlock.leads("beat")

    asyncio.run(main())
    assert said == ["elected", "cancelled", "lost"] * 2
    assert_free("beat")


def test_work_that_has_swallowed_the_loss_is_asked_again_at_the_end_of_the_block():
    """Else nobody would ask it any more, and the block would wait for ever."""
    swallowed: list[str] = []

    async def stubborn(lease: Lease) -> None:
        stale(lease)
        for _ in range(2):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                swallowed.append("once")
                if len(swallowed) == 2:
                    raise

    async def main() -> None:
        async with asyncio.timeout(LONG), redlock("beat").leader(on_elected=stubborn):
            await soon(lambda: swallowed)

    with with_edits(Patch(leader_module, "PATIENCE", lambda _: 0.01)):
        asyncio.run(main())
    assert len(swallowed) == 2


@pytest.mark.parametrize("lost_first", [True, False])
def test_nothing_cuts_an_on_lost(lost_first):
    """Neither the end of the block, nor a loss: half of a stop leaves the other half running."""
    said: list[str] = []
    leases: list[Lease] = []

    async def main() -> None:
        stopping, end = asyncio.Event(), asyncio.Event()

        async def stop(_: Lease) -> None:
            stopping.set()
            await end.wait()
            said.append("stopped")

        async def block() -> None:
            async with redlock("beat").leader(on_elected=leases.append, on_lost=stop):
                await soon(lambda: leases)
                if lost_first:
                    stale(leases[0])
                    await stopping.wait()
            said.append("left")

        async with asyncio.timeout(LONG):
            left = asyncio.create_task(block())
            await stopping.wait()
            if not lost_first:
                stale(leases[0])
            for _ in range(10):  # turns of the loop, in which the other comes
                await asyncio.sleep(0.001)
            end.set()
            await left

    asyncio.run(main())
    assert said == ["stopped", "left"]
    assert_free("beat")


@pytest.mark.parametrize("works", [True, False], ids=["works", "waits"])
def test_a_campaign_whose_task_is_cancelled_ends_and_says_so(caplog, works):
    """A block that is entered by hand, and never left: ``asyncio.run`` cancels all tasks and waits.

    What leads comes to its end first, and the name is free.
    """
    said: list[str] = []

    async def work(_: Lease) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            said.append("ends")

    async def lost(lease: Lease) -> None:
        await asyncio.sleep(0.001)
        said.append(f"lost {lease.held} {redlock.leads('beat')}")

    async def main() -> None:
        if not works:
            await redlock("beat").aacquire()
        await redlock("beat").leader(on_elected=work, on_lost=lost).__aenter__()
        group = conf.backend("default").group
        await soon(lambda: redlock.leads("beat") if works else group.waiting())

    asyncio.run(main())
    assert said == (["ends", "lost True False"] if works else [])
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert errors == ["no more campaign for 'beat': its task was cancelled"]
    if works:
        assert_free("beat")


def test_who_cancels_the_end_of_the_block_leaves_the_wait_alone():
    """The work goes on to its end, renewed, and then the name is free."""
    said: list[str] = []
    step = Step(said)

    async def main() -> None:
        leader = redlock("beat").leader(on_elected=step.awork)
        await leader.__aenter__()
        await asyncio.to_thread(step.begun.wait, LONG)
        end = asyncio.create_task(leader.__aexit__())
        await soon(lambda: "asked" in said)
        end.cancel()
        with pytest.raises(asyncio.CancelledError):
            await end
        assert (await redlock("beat").astate()).held
        with pytest.raises(RuntimeError, match="runs already"):
            await leader.__aenter__()
        step.go_on.set()
        await asyncio.to_thread(leader._ended.wait, LONG)

    asyncio.run(main())
    assert said == ["begins", "asked", "ends True"]
    assert_free("beat")


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
        with pytest.raises(SynchronousOnlyOperation):
            redlock.leads("beat", pause=1)

    asyncio.run(main())
    for pause in (-1, float("nan"), None, True):
        with pytest.raises((TypeError, ValueError), match="pause"):
            redlock.leads("beat", pause=pause)  # type: ignore[arg-type]
    assert_free("beat")
