"""The examples of "Use locks in asyncio" run as they stand and do what the page says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import AsyncRequestFactory, override_settings

from django_redlock import redlock
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


def test_a_block_whose_lease_is_lost_is_cancelled(examples):
    """When a majority is away for a ttl, the work ends at its next ``await``."""

    async def main() -> None:
        async def fetch() -> None:
            group("default").down = {0, 1, 2}
            await asyncio.sleep(0.005)

        assert await examples["import_all"](fetch) == "another process has it now"

    short = settings.REDLOCK["default"] | {"TTL": 0.5}
    with override_settings(REDLOCK={"default": short}):
        in_a_loop(main)


def test_the_leader_works_until_the_block_ends(examples):
    """Its step is given the lease, and the name is free afterwards."""

    async def main() -> None:
        stepped = asyncio.Event()

        async def step(lease: Lease) -> None:
            assert redlock.leads("beat")
            lease.ensure()
            stepped.set()
            await asyncio.sleep(0.005)

        await examples["lead"](step, stepped.wait)
        assert await is_free("beat")

    in_a_loop(main)


def request() -> Any:
    """A request of a customer to the view of the page."""
    made: Any = AsyncRequestFactory().post("/")
    made.user = SimpleNamespace(pk=3)
    return made


def test_of_two_equal_requests_one_runs(examples):
    """The other one is answered 409."""
    examples["book"] = lambda seat: f"seat {seat} is yours"

    async def main() -> None:
        view = examples["book_seat"]
        answers = await asyncio.gather(view(request(), seat=7), view(request(), seat=7))
        assert sorted(each.status_code for each in answers) == [200, 409]

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
        answer = await examples["book_seat"](request(), seat=7)
        assert answer.content == b"seat 7 is yours"
        assert await is_free("seat:7")

    in_a_loop(main)
