"""What finds the locks that a test leaves behind: the watch, the fixture, and the mixin."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

import pytest

from django_redlock import redlock
from django_redlock.locks.lock import block_exit
from django_redlock.testing import (
    LeavesNoLocks,
    assert_free,
    assert_taken,
    leaks,
    stale,
    taken,
    unavailable,
)
from django_redlock.testing.leaks import Watch

KEPT: list[Any] = []  # what keeps leases alive


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Nothing is kept longer than a test."""
    yield
    KEPT.clear()


def found(act: Callable[[], object]) -> str:
    """What a test that does this is told at its end; "" if all is well."""
    with Watch() as watch:
        act()
        try:
            watch.check()
        except AssertionError as error:
            return str(error)
    return ""


# -- what leaves something behind -------------------------------------------------------------


def acquires() -> None:
    """Acquire, and release never."""
    KEPT.append(redlock("report:7").acquire())


def acquires_in_a_thread() -> None:
    """The same in a thread that has ended."""
    thread = threading.Thread(target=acquires, name="worker")
    thread.start()
    thread.join()


def acquires_in_a_task() -> None:
    """The same in a loop that is closed."""

    async def main() -> None:
        KEPT.append(await redlock("report:7").aacquire())

    asyncio.run(main())


def forgets() -> None:
    """Acquire, and forget the lease."""
    redlock("report:7").acquire()


def forgets_in_a_task() -> None:
    """The same in a loop that is closed."""

    async def main() -> None:
        await redlock("report:7").aacquire()

    asyncio.run(main())


def gives_away() -> None:
    """Write a handle that nobody adopts."""
    redlock("report:7").acquire().handle()


def takes() -> None:
    """Let somebody have it for ever."""
    KEPT.append(taken("report:7").acquire())


def enters_by_hand() -> None:
    """Enter a block, and never leave it."""
    lock = redlock("report:7")
    lock.__enter__()
    KEPT.append(lock)


def forgets_a_block() -> None:
    """Enter by hand, and forget lock and lease."""
    cycle: list[Any] = [redlock("report:7")]
    cycle[0].__enter__()
    cycle.append(cycle)


def is_interrupted() -> None:
    """Leave a block by an exception that arrives before the first statement of its end."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    tear = patch.object(block_exit, "_leave", interrupted)
    with tear, suppress(KeyboardInterrupt), redlock("report:7"):
        pass


LEFT = {
    acquires: "held by .*, not released; acquired at .*test_leaks.py:.* in acquires",
    acquires_in_a_thread: "held by .*, not released; acquired by worker at .* in acquires",
    acquires_in_a_task: "held by .*, not released; acquired at .* in acquires_in_a_task",
    forgets: "held by .*, forgotten without a release; acquired at .* in forgets",
    forgets_in_a_task: "forgotten without a release; acquired at .* in forgets_in_a_task",
    gives_away: "given away and not adopted; acquired at .* in gives_away",
    takes: "held by somebody else, not released; acquired at .* in takes",
    forgets_a_block: "forgotten without a release; acquired at .* in forgets_a_block",
    is_interrupted: "its block interrupted before the end; acquired at .* in is_interrupted",
    enters_by_hand: "not released; acquired at .* in enters_by_hand",
}


@pytest.mark.slow
@pytest.mark.parametrize("act", LEFT, ids=lambda act: act.__name__)
def test_a_lock_that_is_left_behind_is_found_and_freed(aliases, act):
    """The error names lock, holder and place; the next test can take the name."""
    text = found(act)
    assert text.startswith("this test left a lock behind:\n  'report:7' of 'default'"), text
    assert re.search(LEFT[act], text), text
    assert_free("report:7")


@pytest.mark.parametrize("act", [acquires, is_interrupted], ids=lambda act: act.__name__)
def test_a_block_that_was_interrupted_is_told_apart(memory, act):
    """Where the code is in order, the error does not ask for a release that is there."""
    assert re.search(LEFT[act], found(act))


# -- what leaves nothing ----------------------------------------------------------------------


def uses_a_block() -> None:
    """Enter and leave, extend, and be refused."""
    with redlock("report:7") as lease:
        lease.extend()
        assert redlock("report:7").try_acquire() is None


def uses_a_block_in_a_task() -> None:
    """The same in a task."""

    async def main() -> None:
        async with redlock("report:7") as lease:
            await lease.aextend()
        await (await redlock("report:7").aacquire()).arelease()

    asyncio.run(main())


def adopts() -> None:
    """Adopt what was given away."""
    redlock.adopt(redlock("report:7").acquire().handle()).release()


def is_lost() -> None:
    """Lose it; nobody releases what is lost."""
    KEPT.append(redlock("report:7").acquire())
    stale(KEPT[-1])


def drops_a_generator() -> None:
    """Suspend a generator in a block, and forget it: it is closed when garbage is collected."""

    def work(_: object) -> Iterator[None]:
        with redlock("report:7"):
            yield

    cycle: list[Any] = []
    cycle.append(work(cycle))
    next(cycle[0])


def releases_in_an_outage() -> None:
    """Release when no node can be asked."""
    lease = redlock("report:7").acquire()
    with unavailable():
        lease.release()


def is_taken() -> None:
    """Let somebody have it for a while, and be unable to ask for a while."""
    with taken("report:7"):
        pass


@pytest.mark.parametrize(
    "act",
    [
        uses_a_block,
        uses_a_block_in_a_task,
        adopts,
        is_lost,
        drops_a_generator,
        releases_in_an_outage,
        is_taken,
    ],
    ids=lambda act: act.__name__,
)
def test_what_leaves_nothing_behind_is_well(aliases, act):
    """Nothing is made up."""
    gc.disable()
    try:
        assert found(act) == ""
    finally:
        gc.enable()


@pytest.mark.slow
def test_what_others_hold_is_theirs(aliases):
    """What was acquired before the test is neither told nor freed."""
    with redlock("before") as lease:
        assert found(uses_a_block) == ""
        assert "'before'" not in found(acquires)
        lease.extend()
        assert_taken("before")


def test_names_that_are_kept_are_free_for_the_next_test(memory):
    """On nodes in memory: ``min_hold`` is not told, and over when the test is."""

    def act() -> None:
        with redlock("report:7", min_hold=20):
            pass
        assert_taken("report:7")

    assert found(act) == ""
    assert_free("report:7")


@pytest.mark.parametrize(
    ("place", "broken", "act"),
    [
        ("leaks._free", lambda acquired, given: "", forgets),
        ("Watch.add", lambda watch, lease: None, acquires),
        ("leaks.note", lambda lease: None, takes),
        ("leaks.gc", Mock(), drops_a_generator),
    ],
)
def test_a_broken_variant_is_noticed(memory, monkeypatch, place, broken, act):
    """The tests above can fail: nothing is freed, noted, told of or collected."""
    owner, name = place.split(".")
    monkeypatch.setattr({"leaks": leaks, "Watch": Watch}[owner], name, broken)
    check = (
        test_a_lock_that_is_left_behind_is_found_and_freed
        if act in LEFT
        else test_what_leaves_nothing_behind_is_well
    )
    with pytest.raises(AssertionError):
        check("memory", act)


# -- as users have it -------------------------------------------------------------------------

SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_redlock"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""

PYTEST = """
import pytest
from django_redlock import redlock

kept = []


@pytest.fixture
def held():
    with redlock("fixture"):
        yield


def test_leaves_one():
    kept.append(redlock("report:7").acquire())


def test_can_take_it():
    with redlock("report:7"):
        pass


def test_has_it_in_a_fixture(held):
    assert redlock("fixture").try_acquire() is None


def test_leaves_one_on_real_nodes(redlock_nodes):
    kept.append(redlock("report:8").acquire())
"""

INI = """
[pytest]
usefixtures = redlock_leaves_nothing
addopts = -p no:cacheprovider -p no:randomly
"""

DJANGO = """
import unittest
from unittest import IsolatedAsyncioTestCase

from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django_redlock import redlock
from django_redlock.testing import LeavesNoLocks

kept = []


class Leaves:
    def tearDown(self):
        super().tearDown()
        if "tear_down" in self.id():
            kept[-1].release()

    def test_1_leaves_one(self):
        kept.append(redlock(f"report:{type(self).__name__}").acquire())

    def test_2_can_take_it(self):
        with redlock(f"report:{type(self).__name__}"):
            pass

    def test_3_tear_down_releases(self):
        kept.append(redlock("report:7").acquire())

    def test_4_cleanup_releases(self):
        lease = redlock("report:7").acquire()
        self.addCleanup(lease.release)

    async def test_5_leaves_one_in_a_task(self):
        kept.append(await redlock("report:7").aacquire())

    async def test_6_releases_in_a_task(self):
        async with redlock("report:7"):
            pass

    @unittest.skip("as tests are")
    def test_7_is_skipped(self):
        pass


class Simple(LeavesNoLocks, Leaves, SimpleTestCase):
    pass


class InATransaction(LeavesNoLocks, Leaves, TestCase):
    pass


class Transactions(LeavesNoLocks, Leaves, TransactionTestCase):
    pass


class Tasks(LeavesNoLocks, Leaves, IsolatedAsyncioTestCase):
    pass
"""


def run(home: Path, *words: str) -> str:
    """What a program prints that ran in a project of its own."""
    (home / "mysettings.py").write_text(SETTINGS)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment = {**kept, "DJANGO_SETTINGS_MODULE": "mysettings", "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_fixture_in_a_project(tmp_path):
    """Named in pytest's configuration it is of every test; a leak is an error of the test's end."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_it.py").write_text(PYTEST)
    said = run(tmp_path, "pytest")
    assert "4 passed, 2 errors" in said, said
    assert re.search(r"'report:7' of 'default', held by .* at .*test_it.py:15 in", said), said
    assert re.search(r"'report:8' of 'default', held by .* in test_leaves_one_on_real", said), said
    errors = said.partition("short test summary")[0]
    assert errors.count("this test left a lock behind") == 2, said  # each once
    assert "During handling" not in errors


def test_the_mixin_is_written_first():
    """``TestCase.run`` calls no other, so a mixin behind it would check nothing."""
    with pytest.raises(TypeError, match=r"class Late\(LeavesNoLocks, TestCase\)"):
        type("Late", (TestCase, LeavesNoLocks), {})
    type("Early", (type("Base", (LeavesNoLocks,), {}), TestCase), {})


@pytest.mark.slow
def test_the_mixin_in_a_project(tmp_path):
    """By Django's runner, for each kind of test case: a test that leaves a lock behind fails."""
    (tmp_path / "test_it.py").write_text(DJANGO)
    said = run(tmp_path, "django", "test", "--verbosity", "2")
    failures = set(re.findall(r"^FAIL: (\w+) \(test_it\.(\w+)", said, re.MULTILINE))
    kinds = ("Simple", "InATransaction", "Transactions", "Tasks")
    left = ("test_1_leaves_one", "test_5_leaves_one_in_a_task")
    assert failures == {(test, kind) for kind in kinds for test in left}, said
    assert "Ran 28 tests" in said, said
    assert "FAILED (failures=8, skipped=4)" in said, said
    assert re.search(
        r"this test left a lock behind:\n  'report:Simple' of .* at .*test_it.py", said
    )


def test_a_slot_that_is_left_behind_is_named_as_people_see_it():
    """By its name and its number."""
    text = found(lambda: KEPT.append(redlock("openai", limit=1).acquire()))
    assert "'openai' (slot 0) of 'default', held by " in text
    assert "\x1f" not in text
    assert_free("openai", limit=1)
