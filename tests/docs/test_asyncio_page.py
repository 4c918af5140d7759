"""The examples of "Use locks in asyncio" run as they stand and do what the page says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings

from django_redlock import LeaseLost, LockTaken, redlock
from django_redlock.leases.lease import Lease
from tests.docs.pages import ROOT, blocks
from tests.support.looked_at import group

PAGE = ROOT / "docs/how-to/asyncio.md"
DEADLINE = 20.0
Examples = dict[str, Any]


@pytest.fixture
def examples() -> Iterator[Examples]:
    """What the blocks of the page define, over five nodes in memory."""
    names: Examples = {}
    for block in blocks(PAGE):
        exec(block.text, names)  # noqa: S102 - our own page
    nodes = [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": nodes}}):
        yield names


def in_a_loop(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine to its end, within the deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE):
            await main()

    asyncio.run(bounded())


async def is_free(name: str) -> bool:
    """Whether a name can be had at once."""
    lease = await redlock(name).atry_acquire()
    if lease is not None:
        await lease.arelease()
    return lease is not None


async def nothing(*_: object) -> None:
    """Work that is done at once."""


def test_one_task_at_a_time(examples):
    """The block, the decorator and `atry_acquire` hold the name, and a refusal is told as said."""

    async def main() -> None:
        fences: list[int] = []

        async def send(fence: int) -> None:
            assert not await is_free("newsletter")
            fences.append(fence)

        await asyncio.gather(*(examples["send_newsletter"](send) for _ in range(3)))
        assert fences == sorted(set(fences))
        assert len(fences) == 3
        assert await examples["clean_up"](nothing) == "done"
        assert await is_free("cleanup")
        async with redlock("cleanup"), redlock("report:2026"):
            assert await examples["clean_up"](nothing) == "another process cleans up"
            assert await examples["build"](2027) == "the report of 2027"
            with pytest.raises(LockTaken):
                await examples["build"](2026)

    in_a_loop(main)


def test_work_that_is_handed_on_knows_the_lease(examples):
    """Tasks and threads that a block starts are under its lock; elsewhere they are refused."""

    async def main() -> None:
        parts, fence = await examples["import_parts"]()
        assert parts == 2
        assert fence > 0
        with pytest.raises(LeaseLost):
            await examples["fetch"]("a")
        assert await is_free("import")

    in_a_loop(main)


def test_a_timeout_around_everything(examples):
    """TimeoutError, while waiting for the name and while working; afterwards the name is free."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await examples["within"](0.05, asyncio.Event().wait)
        assert await is_free("import")
        async with redlock("import"):
            with pytest.raises(TimeoutError):
                await examples["within"](0.05, nothing)
        assert await is_free("import")

    in_a_loop(main)


def test_a_leader_that_lost_its_lease_steps_down(examples):
    """When a majority is away for a ttl, `on_lost` reaches the loop and the block ends."""
    ended = []

    async def main() -> None:
        async def step(lease: Lease) -> None:
            group("default").down = {0, 1, 2}
            await asyncio.sleep(0.005)
            ended.append(lease)

        await examples["lead"](step)
        assert ended[-1].lost

    short = settings.REDLOCK["default"] | {"TTL": 0.5}
    with override_settings(REDLOCK={"default": short}):
        in_a_loop(main)


@pytest.mark.django_db(transaction=True)
def test_a_transaction_inside_the_lock(examples):
    """The transaction is over when its function returns, and the name is held until then."""
    book = examples["book"]

    def watched(seat: int) -> str:
        said = str(book(seat))
        assert not connection.in_atomic_block
        assert redlock(f"seat:{seat}").try_acquire() is None
        connection.close()  # this thread's own
        return said

    async def main() -> None:
        examples["book"] = watched
        assert await examples["book_seat"](None, 7) == "seat 7 is yours"
        assert await is_free("seat:7")

    in_a_loop(main)
