"""A second attempt by the code that has the name already: LockTaken, and it says so."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_redlock import LockTaken, redlock
from django_redlock.testing import taken

HINT = "this process holds 'name' already"


pytestmark = pytest.mark.usefixtures("nodes")


def said(name: str | list[str] = "name", **options: Any) -> str:
    """What an attempt by blocking calls is told; it is the same error for programs."""
    with pytest.raises(LockTaken) as error:
        redlock(name, **options).acquire()
    assert error.value.code == "held"
    assert error.value.holder
    again = pickle.loads(pickle.dumps(error.value))  # noqa: S301 - our own
    assert (str(again), again.data) == (str(error.value), error.value.data)
    return str(error.value)


async def asaid(name: str | list[str] = "name") -> str:
    """The same in a task."""
    with pytest.raises(LockTaken) as error:
        await redlock(name).aacquire()
    return str(error.value)


def in_a_thread(ask: Callable[[], str]) -> str:
    """What another thread is told."""
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(ask()))
    thread.start()
    thread.join()
    return told[0]


def test_the_same_thread():
    """With what to write in its place; also after a wait, and from an inner block."""
    with redlock("name"), redlock("inner"):
        assert f"; {HINT}, and a lock is not re-entrant" in said()
        assert "assert_locked('name')" in said(wait=0.01)
        with pytest.raises(LockTaken) as error:
            redlock("name").acquire()
        assert error.value.data["reentered"] == "name"
    redlock("name").acquire().release()


def test_one_name_of_a_list():
    """The one that is held is named, in both directions."""
    with redlock("name"):
        assert HINT in said(["another", "name"])
    with redlock(["another", "name"]):
        assert HINT in said("name")
        assert HINT in said(["name", "third"])


def test_a_lease_of_another_is_not_ours():
    """Of another thread, of somebody else, and what this one has had or holds besides."""
    with redlock("name"):
        assert "re-entrant" not in in_a_thread(said)
    with taken("name"), redlock("other"):
        assert "re-entrant" not in said()
        assert "re-entrant" not in said(["name", "free"])
    lease = redlock("name").acquire()
    handle = lease.handle()
    adopted: list[Any] = []
    thread = threading.Thread(target=lambda: adopted.append(redlock.adopt(handle)))
    thread.start()
    thread.join()
    assert "re-entrant" not in said()
    adopted[0].release()


def test_the_same_task():
    """By ``async with``; so are a task and a thread that it has started."""

    async def body() -> tuple[str, str, str]:
        async with redlock("name"):
            started = asyncio.create_task(asaid())
            return await asaid(), await started, await sync_to_async(said)()

    own, of_a_child, in_a_thread_of_it = asyncio.run(body())
    assert HINT in own
    assert HINT in of_a_child
    assert HINT in in_a_thread_of_it


def test_a_task_beside_is_not_told():
    """One that was started before has no such lease."""

    async def body() -> str:
        held = asyncio.Event()

        async def beside() -> str:
            await held.wait()
            return await asaid()

        task = asyncio.create_task(beside())
        async with redlock("name"):
            held.set()
            return await task

    assert "re-entrant" not in asyncio.run(body())


def test_a_child_that_holds_another_lock():
    """It is told of its own lease and of its parent's."""

    async def child() -> tuple[str, str]:
        async with redlock("mine"):
            return await asaid("mine"), await asaid("name")

    async def body() -> tuple[str, str]:
        async with redlock("name"):
            return await asyncio.create_task(child())

    mine, parents = asyncio.run(body())
    assert "this process holds 'mine' already" in mine
    assert HINT in parents
