"""Real workers, and messages that come twice, by the hundred, or of two schedulers."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from django_redlock.errors import DuplicateTask, LeaseLost, LockTaken, NodesUnavailable
from tests.celery import marked, project, varied
from tests.celery.site import (
    GET,
    Site,
    end,
    intervals,
    minority_marked,
    new_key,
    overlaps,
    runs,
    unmarked,
    wait_until_taken_for_lost,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def test_a_redelivered_message_runs_without_its_mark(site):
    """Killed in the middle, with acks_late: the mark is gone, and stops nothing."""
    key, queue = new_key(), new_key()
    result = marked.late.apply_async((key,), queue=queue)
    with site.worker(1, queue, lost_after=project.SOON) as worker:
        site.begun(key)
        end(worker, signal.SIGKILL)
    wait_until_taken_for_lost(site, result.id)
    with site.worker(1, queue, lost_after=project.SOON):
        site.begun(key, times=2)
        assert marked.late.apply_async((key,), queue=queue).id == result.id
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
    unmarked(site, key)


def test_many_messages_run_after_the_last_was_asked_for(site):
    """300 messages for 5 keys: after the last of each key was asked for, a run has begun.

    With until_started that is what it is for: whatever changed before ``delay`` is seen by a run.
    """
    keys = [new_key() for _ in range(5)]
    asked: dict[str, float] = {}
    results = []
    for number in range(300):
        key = keys[number % 5]
        asked[key] = time.monotonic()
        results.append(marked.anew.delay(key))
        site.end_run(key)
    sent_ = [each for each in results if not each.duplicate]
    assert {each.id for each in results} == {each.id for each in sent_}
    assert [each.get(timeout=2 * GET) for each in sent_] == ["done"] * len(sent_)
    for key in keys:
        begun = [note["at"] for note in site.notes("begin", key)]
        assert max(begun) > asked[key]
        assert overlaps(intervals(site, [key])[key]) == 0
        minority_marked(site, key)


def test_a_key_of_all_arguments_is_that_of_the_call(site):
    """Positional or by name, with the default or without: one message. Another type: another."""
    note, queue = new_key(), new_key()
    send = varied.keyless.apply_async
    same = [
        send((1, note), queue=queue),
        send((1,), {"note": note}, queue=queue),
        send((), {"note": note, "value": 1}, queue=queue),
    ]
    default = [send((2,), queue=queue), send((2, "plain"), queue=queue)]
    others = [send((value, note), queue=queue) for value in ("1", 1.0, True, None, [1])]
    assert [each.duplicate for each in same] == [False, True, True]
    assert [each.duplicate for each in default] == [False, True]
    assert [each.duplicate for each in others] == [False] * 5
    with site.worker(2, queue):
        assert {each.get(timeout=GET) for each in same + default + others} == {"done"}
    assert runs(site, note) == 6


def test_an_error_of_the_package_fails_its_task_and_nothing_else(site):
    """It crosses from the child to the worker and to the results, and the child works on."""
    queue, children = new_key(), set()
    with site.worker(1, queue) as worker:
        for error in (LockTaken, NodesUnavailable, LeaseLost, DuplicateTask):
            key = new_key()
            result = varied.raising.apply_async((key, error.__name__), queue=queue)
            with pytest.raises(error):
                result.get(timeout=GET)
            assert marked.quick.apply_async((key,), queue=queue).get(timeout=GET) == "done"
            children |= {note["pid"] for note in site.notes("begin", key)}
        assert (len(children), worker.poll()) == (1, None)


@contextmanager
def beat(site: Site, queue: str, folder: Path, every: float) -> Iterator[None]:
    """A process of celery beat, which sends its messages after so many seconds of its clock."""
    command = "celery -A tests.celery.varied beat --max-interval 1 --pidfile="
    command += f" -s {folder / new_key()} -l INFO"
    told = {"TEST_BROKER": site.url, "TEST_BEAT": queue, "TEST_BEAT_EVERY": str(every)}
    with (folder / f"{new_key()}.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            env=site.env | told,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield
    finally:
        end(process)


def test_two_beats_start_a_task_with_min_hold_once(site, tmp_path):
    """Of two schedulers whose clocks differ, the second finds the key taken for a while.

    The same task without ``min_hold`` has ended by then, and runs again at once.
    """
    queue, soon = new_key(), varied.AT_LEAST / 2
    with ExitStack() as stack:
        stack.enter_context(site.worker(4, queue))
        for every in (2.0, 2.5):  # so the one is sometimes a little ahead of the other
            stack.enter_context(beat(site, queue, tmp_path, every))

        def gaps(name: str) -> list[float]:
            begun = sorted(note["at"] for note in site.notes("begin", f"{name}:{queue}"))
            return [later - earlier for earlier, later in itertools.pairwise(begun)]

        eventually(lambda: gaps("unrested") and min(gaps("unrested")) < soon, within=2 * GET)
        eventually(lambda: gaps("rested"), within=GET)
        assert min(gaps("rested")) > soon
    logs = "".join(path.read_text() for path in site.logs.iterdir())
    assert any("varied.rested" in each and "skipped" in each for each in logs.splitlines())
