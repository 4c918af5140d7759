"""``taken``: somebody else holds a name, for everybody who asks the nodes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest import TestCase

import pytest
from django.conf import settings
from django.db import transaction

from django_redlock import LeaseLost, LockTaken, assert_locked, current_lease, events, redlock
from django_redlock.locks import lock
from django_redlock.testing import assert_free, assert_taken, locks, taken
from tests.simulation.mutants.edits import Edit, with_edits
from tests.support.loops import soon
from tests.support.waiting import eventually, waiters

ATTEMPT = """
from django.conf import settings
settings.configure(REDLOCK={})
from django_redlock import LockTaken, redlock
try:
    redlock("report:7").acquire().release()
except LockTaken as error:
    print(error.holder)
"""


def refused(name: str = "report:7", alias: str = "default") -> str | None:
    """Whom an attempt finds."""
    with pytest.raises(LockTaken) as caught:
        redlock.using(alias)(name).acquire()
    return caught.value.holder


async def arefused(name: str = "report:7") -> str | None:
    """The same of a task."""
    with pytest.raises(LockTaken) as caught:
        await redlock(name).aacquire()
    return caught.value.holder


def test_every_thread_is_refused_until_the_block_ends(aliases):
    """In the thread of the block and in another one; the error names the holder."""
    with ThreadPoolExecutor(1) as others:
        with taken("report:7") as theirs:
            assert refused() == "somebody else"
            assert others.submit(refused).result() == "somebody else"
        with redlock("report:7") as lease:
            assert lease.fence > theirs.fence


def test_every_task_is_refused_until_the_block_ends(aliases):
    """In the task of the block, in another one, and in a thread."""

    async def main() -> None:
        async with taken("report:7", holder="worker-3"):
            assert await arefused() == "worker-3"
            assert await asyncio.create_task(arefused()) == "worker-3"
            assert await asyncio.to_thread(refused) == "worker-3"
        async with redlock("report:7"):
            pass

    asyncio.run(main())


@pytest.mark.slow
def test_another_process_is_refused(patient_nodes):
    """On real nodes the name is taken for every process."""
    script = ATTEMPT.replace("REDLOCK={}", f"REDLOCK={settings.REDLOCK!r}")
    with taken("report:7"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
    assert done.stdout == "somebody else\n"


def test_a_waiter_has_the_name_when_the_block_ends(aliases):
    """It is woken; it does not find out when the lease would have run out."""
    with ThreadPoolExecutor(1) as others:
        with taken("report:7") as theirs:
            waiter = others.submit(redlock("report:7").acquire, 60)
            eventually(lambda: waiters(theirs))
            assert not waiter.done()
        lease = waiter.result(10)
        assert lease.fence > theirs.fence
        lease.release()


def test_a_waiting_task_has_the_name_when_the_block_ends(aliases):
    """It is woken, too."""

    async def main() -> None:
        async with taken("report:7") as theirs:
            waiter = asyncio.create_task(redlock("report:7").aacquire(60))
            await soon(lambda: waiters(theirs))
        await (await asyncio.wait_for(waiter, 10)).arelease()

    asyncio.run(main())


def test_the_running_code_does_not_hold_what_is_taken(aliases):
    """Code that is called without its lock is found out, though somebody has the lock."""
    with redlock("mine") as mine, taken("report:7"):
        assert current_lease() is mine
        with pytest.raises(LeaseLost):
            assert_locked("report:7")


def test_nothing_is_told_of_what_is_taken(aliases):
    """Only of the attempt that it refuses: no listener hears of another process's lock."""
    told: list[events.Event] = []
    events.subscribe(told.append)
    try:
        with taken("report:7") as theirs:
            theirs.extend()
            refused()
            with pytest.raises(LockTaken), taken("report:7"):
                pass
    finally:
        events.unsubscribe(told.append)
    assert [event.kind for event in told] == [events.EventKind.REFUSED]


def test_what_is_taken_is_renewed(aliases, often):
    """A test may take longer than the ttl."""
    with taken("report:7") as theirs:
        before = theirs.grant.deadline
        eventually(lambda: theirs.grant.deadline > before)


def test_several_names_and_an_alias(aliases):
    """All of them are taken, of this alias and of no other."""
    with taken("a", "b", alias="other"):
        refused("a", "other")
        refused("b", "other")
        assert_taken("a", "b", alias="other")
        assert_free("a", "b")
    assert_free("a", "b", alias="other")


def test_what_is_taken_cannot_be_taken_again(aliases):
    """A test whose name is taken already hears by whom, and takes none of the names."""
    with redlock("b"), pytest.raises(LockTaken), taken("a", "b"):
        pass
    assert_free("a", "b")


def test_a_function_in_which_it_is_taken(aliases):
    """It decorates functions and coroutine functions."""
    assert taken("report:7")(refused)() == "somebody else"
    assert asyncio.run(taken("report:7")(arefused)()) == "somebody else"
    assert_free("report:7")


def test_by_a_stack_and_by_a_test_case(aliases):
    """``ExitStack`` and ``enterContext`` ask the class for what ends the block."""

    class Tests(TestCase):
        def test(self):
            self.enterContext(taken("report:7"))
            refused()

    with ExitStack() as stack:
        stack.enter_context(taken("other"))
        refused("other")
    result = Tests("test").run()
    assert result is not None
    assert result.wasSuccessful(), result.errors
    assert_free("report:7", "other")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_block_leaves_nothing_taken(aliases, error):
    """The name is free when the block has ended, however it ended."""
    with pytest.raises(error), taken("report:7"):
        raise error
    assert_free("report:7")


def test_a_cancelled_task_leaves_nothing_taken(aliases):
    """The same of a task in the middle of its block."""

    async def main() -> None:
        async def body() -> None:
            async with taken("report:7"):
                entered.set()
                await asyncio.sleep(60)

        entered = asyncio.Event()
        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await (await redlock("report:7").aacquire(10)).arelease()

    asyncio.run(main())


@pytest.mark.django_db
def test_a_transaction_does_not_matter():
    """The lock is not the code's: it may be taken and freed inside a transaction, unwarned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with transaction.atomic(), taken("report:7"):
            assert_taken("report:7")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((), {}, TypeError, "needs the name"),
        (("a",), {"holder": ""}, ValueError, "1 to 200 bytes"),
        (("a",), {"holder": "x" * 201}, ValueError, "1 to 200 bytes"),
        (("a",), {"holder": "a\nb"}, ValueError, "printable"),
        (("a",), {"holder": 7}, TypeError, "must be text, not int"),
        (("a",), {"alias": None}, TypeError, "alias"),
        (("",), {}, ValueError, "name"),
    ],
)
def test_bad_arguments(arguments, options, error, text):
    """A clear error names the argument."""
    with pytest.raises(error, match=text):
        taken(*arguments, **options)


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        pytest.param(
            Edit(locks, "_foreign", "leaks.note(lease)", "lease.release()"),
            test_every_thread_is_refused_until_the_block_ends,
            id="only pretends to hold the name",
        ),
        pytest.param(
            Edit(lock, "make_lease", "options.foreign(lease)", "context.push(lease)"),
            test_the_running_code_does_not_hold_what_is_taken,
            id="gives the lease to the running code",
        ),
        pytest.param(
            Edit(locks, "_foreign", "lease.told = True", "pass"),
            test_nothing_is_told_of_what_is_taken,
            id="tells of the lease",
        ),
    ],
)
def test_a_broken_variant_is_noticed(aliases, edit, check):
    """The tests above can fail."""
    with with_edits(edit), pytest.raises((AssertionError, pytest.fail.Exception)):
        check(aliases)
