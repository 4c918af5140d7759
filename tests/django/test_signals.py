"""The Django signals: what receivers get, in threads and in tasks, and that they break nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_redlock import LeaseLost, LockTaken, events, redlock
from django_redlock.events import EventKind
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import Watchdog
from django_redlock.locks.lock import Lock
from django_redlock.signals import (
    lease_extended,
    lease_lost,
    lock_acquired,
    lock_refused,
    lock_released,
)
from tests.support.listening import memory, nobody
from tests.support.loops import soon
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


def threads_of_two_losses(free: threading.Event) -> set[threading.Thread]:
    """Lose two leases in an event loop, whose receivers wait; the threads, the loop's included."""
    called: list[threading.Thread] = []

    def receive(**_: object) -> None:
        called.append(threading.current_thread())
        free.wait(120)

    async def work() -> None:
        leases = [await redlock(f"name {i}", ttl=0.3, renew=False).aacquire() for i in range(2)]
        await soon(lambda: len(called) == 2)
        assert all(lease.lost for lease in leases)
        free.set()

    with connected(lease_lost, receive):
        asyncio.run(work())
    return {threading.current_thread(), *called}


def test_a_loss_in_a_loop_is_sent_in_a_thread_of_its_own():
    """A receiver that takes long keeps neither the loop, nor another loss, from going on."""
    assert len(threads_of_two_losses(threading.Event())) == 3


def test_a_loop_that_calls_receivers_itself_is_noticed(monkeypatch):
    """Broken: whoever finds the losses tells them; here the receivers do not wait."""

    def tell(_: Watchdog, lost: list[Lease]) -> None:
        for lease in lost:
            lease.tell_lost()

    monkeypatch.setattr(Watchdog, "tell", tell)
    free = threading.Event()
    free.set()
    assert len(threads_of_two_losses(free)) < 3


def test_a_coroutine_function_is_no_receiver(nobody):
    """It would be called where no event loop runs; it is refused, and nobody listens."""

    async def receive(**_: object) -> None: ...

    with pytest.raises(TypeError, match=r"must be a plain function.*call_soon_threadsafe"):
        lease_lost.connect(receive)
    assert not events.wanted(EventKind.LOST)


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

    def another(**_: object) -> None:
        pass

    assert not any(map(events.wanted, EventKind))
    with connected(lock_refused, receive, sender=Lock):
        with connected(lock_refused, another):
            assert {kind for kind in EventKind if events.wanted(kind)} == {
                EventKind.REFUSED,
                EventKind.UNAVAILABLE,
            }
        assert events.wanted(EventKind.REFUSED)
    assert not any(map(events.wanted, EventKind))
