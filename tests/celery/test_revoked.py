"""Messages that are revoked, expire or wait for their time, in each mode: their keys are free then.

In the tests that hold the key, a message comes back later with its mark, and ends on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from celery.exceptions import TaskRevokedError

from django_redlock import redlock
from django_redlock.leases.lease import Lease
from tests.support.waiting import eventually

from . import marked, project
from .site import (
    GET,
    Site,
    if_sent,
    new_key,
    runs,
    unmarked,
)

pytestmark = pytest.mark.slow


class Mode(NamedTuple):
    """A mode, and what is locked in it.

    Attributes:
        told: a task whose body ends when a test says so.
        waiting: one that comes back while its key is held, and its further arguments.
        name: of the lock.
    """

    told: Any
    waiting: Any
    arguments: tuple[Any, ...]
    name: str


MODES = {
    "none": Mode(project.long, project.patient, (0,), "work:{}"),
    "until_started": Mode(marked.anew, marked.soon, (), "marked:{}"),
    "until_finished": Mode(marked.once, marked.quick, (), "marked:{}"),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name == "until_finished" else pytest.mark.nightly)
        for name in MODES
    ]
)
def mode(request: Any) -> Mode:
    """Each of the modes."""
    return MODES[request.param]


def is_free(mode: Mode, key: str) -> None:
    """Wait until the lock of a key is free."""
    redlock(mode.name.format(key), wait=GET).acquire().release()


def test_a_run_that_is_terminated_frees_its_key(site: Site, mode: Mode):
    """The child is dead, and a ttl later at most the next message for the key runs."""
    key, queue = new_key(), new_key()
    first = mode.told.apply_async((key,), queue=queue)
    with site.worker(1, queue):
        site.begun(key)
        first.revoke(terminate=True)
        with pytest.raises(TaskRevokedError):
            first.get(timeout=GET)
        again = eventually(lambda: sent_again(mode.told, key, queue), within=GET, every=0.1)
        site.begun(key, times=2)
        site.end_run(key)
        assert again.get(timeout=GET) == "done"
        assert runs(site, key) == 2
    unmarked(site, key)
    is_free(mode, key)


def sent_again(task: Any, key: str, queue: str) -> Any:
    """The result of a message that was sent, where a lock that is left may keep it from being."""
    if task is project.long:  # it is skipped by a key that is held, and has no mark
        redlock(f"work:{key}", wait=GET).acquire().release()
        return task.apply_async((key,), queue=queue)
    return if_sent(task, key, queue)


@contextmanager
def come_back(site: Site, mode: Mode, key: str, **options: Any) -> Iterator[tuple[Any, Lease]]:
    """Send a message, hold its key, and let a worker send the message again for later."""
    queue = new_key()
    result = mode.waiting.apply_async((key, *mode.arguments), queue=queue, **options)
    lease = redlock(mode.name.format(key)).acquire()
    with site.worker(1, queue):
        eventually(lambda: result.state == "RETRY", within=GET, every=0.02)
        yield result, lease


BEFORE_IT_EXPIRES = 20  # seconds for a worker to start, and to put the message off


@pytest.mark.parametrize(
    "lifetime", ["revoked", pytest.param("expired", marks=pytest.mark.nightly)]
)
def test_a_message_ends_on_its_way_back(site: Site, mode: Mode, lifetime: str):
    """It does not run, its mark is gone, and the next message for the key runs."""
    key = new_key()
    expires = {"expires": BEFORE_IT_EXPIRES} if lifetime == "expired" else {}
    with come_back(site, mode, key, **expires) as (first, lease):
        if lifetime == "revoked":
            first.revoke()
        with pytest.raises(TaskRevokedError):
            first.get(timeout=GET)
        lease.release()
        unmarked(site, key)
    assert runs(site, key) == 0
    next_one_runs(site, mode, key)


@pytest.mark.parametrize("lifetime", ["revoked", "expired"])
def test_a_message_ends_before_its_time(site: Site, mode: Mode, lifetime: str):
    """What waits for its ETA in a worker holds no lock, and leaves no mark when it ends there."""
    key = new_key()
    expires = {"expires": 0.5} if lifetime == "expired" else {}
    first = mode.waiting.apply_async((key, *mode.arguments), countdown=6, **expires)
    is_free(mode, key)
    if lifetime == "revoked":
        first.revoke()
    with pytest.raises(TaskRevokedError):
        first.get(timeout=GET)
    unmarked(site, key)
    assert runs(site, key) == 0
    next_one_runs(site, mode, key)


def next_one_runs(site: Site, mode: Mode, key: str) -> None:
    """Send one message more, which runs."""
    again = mode.waiting.apply_async((key, *mode.arguments))
    assert not getattr(again, "duplicate", False)
    assert again.get(timeout=GET) == "done"
    assert runs(site, key) == 1
    unmarked(site, key)
    is_free(mode, key)


@pytest.mark.parametrize("option", [pytest.param("countdown", marks=pytest.mark.nightly), "eta"])
def test_a_message_with_an_eta_runs_once_at_its_time(site: Site, mode: Mode, option: str):
    """Not before; and it holds no lock until then."""
    key = new_key()
    due = datetime.now(UTC) + timedelta(seconds=1)
    when: dict[str, Any] = {"countdown": 1} if option == "countdown" else {"eta": due}
    first = mode.waiting.apply_async((key, *mode.arguments), **when)
    is_free(mode, key)
    assert first.get(timeout=GET) == "done"
    assert datetime.now(UTC) >= due
    assert runs(site, key) == 1
    unmarked(site, key)
    is_free(mode, key)
