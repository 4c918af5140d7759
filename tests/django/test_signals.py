"""The Django signals: what receivers get, in threads and in tasks, and that they break nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_redlock import LeaseLost, LockTaken, events, redlock
from django_redlock.events import EventKind
from django_redlock.locks.lock import Lock
from django_redlock.signals import (
    lease_extended,
    lease_lost,
    lock_acquired,
    lock_refused,
    lock_released,
)
from tests.support.listening import memory, nobody
from tests.support.waiting import eventually

__all__ = ["memory", "nobody"]

SIGNALS = {
    "acquired": lock_acquired,
    "refused": lock_refused,
    "released": lock_released,
    "extended": lease_extended,
    "lost": lease_lost,
}
ARGUMENTS = {"alias", "name", "template", "fence", "seconds", "lease", "error"}


@contextlib.contextmanager
def connected(signal: Signal, receiver: Callable[..., Any], **how: Any) -> Iterator[None]:
    """A receiver for a while."""
    signal.connect(receiver, **how)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=how.get("sender"))


@pytest.fixture
def received() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What a receiver of each signal gets, with the signal's name."""
    got: list[tuple[str, dict[str, Any]]] = []
    with contextlib.ExitStack() as stack:
        keep = []
        for called, signal in SIGNALS.items():

            def receive(*, called: str = called, **told: Any) -> None:
                got.append((called, told))

            keep.append(receive)
            stack.enter_context(connected(signal, receive))
        yield got


def test_a_thread_sends_each_signal_with_its_arguments(received):
    """Acquired, extended, refused and released come in order, from the class Lock."""
    with redlock.named("{word}", word="name") as lease:
        lease.extend()
        assert redlock("name").try_acquire() is None
    assert [called for called, _ in received] == ["acquired", "extended", "refused", "released"]
    for called, told in received:
        assert told.pop("signal") is SIGNALS[called]
        assert told.pop("sender") is Lock
        assert set(told) == ARGUMENTS
        assert (told["alias"], told["name"]) == ("default", "name")
        assert told["template"] == ("" if called == "refused" else "{word}")
        assert 0 < told["seconds"] < 10
        if called == "refused":
            assert (told["lease"], told["fence"]) == (None, None)
            assert isinstance(told["error"], LockTaken)
        else:
            assert (told["lease"], told["fence"]) == (lease, lease.fence)
            assert told["error"] is None


def test_a_task_sends_each_signal(received):
    """Receivers that are plain functions are called by the task itself, in order."""

    async def work() -> None:
        async with redlock("name") as lease:
            await lease.aextend()
            assert await redlock("name").atry_acquire() is None
            assert [called for called, _ in received] == ["acquired", "extended", "refused"]

    asyncio.run(work())
    assert [called for called, _ in received][3:] == ["released"]


@pytest.mark.slow
def test_a_loss_is_sent_at_the_deadline(received):
    """The signal lease_lost comes at the local deadline, without on_lost and without renewal."""
    lease = redlock("name", ttl=1, renew=False).acquire()
    eventually(lambda: [called for called, _ in received] == ["acquired", "lost"])
    told = received[1][1]
    assert (told["lease"], told["fence"], told["name"]) == (lease, lease.fence, "name")
    assert isinstance(told["error"], LeaseLost)
    lease.release()
    assert len(received) == 2


# -- async receivers ------------------------------------------------------------------------------


def test_an_async_receiver_gets_what_a_thread_does():
    """In a thread an async receiver has been awaited when the call returns."""
    got = []

    async def receive(*, name: str, **_: object) -> None:
        await asyncio.sleep(0)
        got.append(name)

    with connected(lock_acquired, receive):
        with redlock("name"):
            assert got == ["name"]
        assert lock_acquired.has_listeners(Lock)
    assert not lock_acquired.has_listeners(Lock)


def test_an_async_receiver_gets_what_a_task_does(caplog):
    """In a task an async receiver runs soon, in a task of its own, and the lock waits for none."""
    got = []

    async def work() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def receive(*, name: str, **_: object) -> None:
            begun.set()
            await go_on.wait()
            got.append(name)

        with connected(lock_acquired, receive):
            lease = await redlock("name").aacquire()
            await begun.wait()
            await lease.arelease()
            assert got == []
            go_on.set()
            while not got:  # noqa: ASYNC110 - the deadline is pytest's
                await asyncio.sleep(0)

    asyncio.run(work())
    assert got == ["name"]
    assert "failed" not in caplog.text


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_an_error_of_a_receiver_is_harmless(signal, memory, caplog):
    """What a receiver raises is logged by Django; locks are had, refused, released and lost."""

    def fail(**_: object) -> None:
        raise KeyError("receiver")

    with connected(signal, fail), caplog.at_level(logging.ERROR):
        with redlock("name") as lease:
            lease.extend()
            assert redlock("name").try_acquire() is None
        lost = redlock("name", renew=False).acquire()
        for node in memory.nodes:
            node.keys.clear()
        lost.release()
        assert lost.lost
        with redlock("name"):
            pass
    assert "KeyError: 'receiver'" in caplog.text


def test_an_interrupted_receiver_leaves_nothing(memory):
    """Ctrl-C in a receiver of lock_acquired goes on, and the name is free."""

    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    with connected(lock_acquired, interrupt), pytest.raises(KeyboardInterrupt):
        redlock("name").acquire()
    assert all(not node.keys for node in memory.nodes)


# -- without receivers ----------------------------------------------------------------------------


def test_signals_listen_while_they_have_receivers(nobody):
    """A signal without a receiver listens to nothing, before and after it had one."""

    def receive(**_: object) -> None:
        pass

    async def areceive(**_: object) -> None:
        pass

    assert not any(map(events.wanted, EventKind))
    with connected(lock_refused, receive, sender=Lock):
        with connected(lock_refused, areceive):
            assert {kind for kind in EventKind if events.wanted(kind)} == {
                EventKind.REFUSED,
                EventKind.UNAVAILABLE,
            }
        assert events.wanted(EventKind.REFUSED)
    assert not any(map(events.wanted, EventKind))
