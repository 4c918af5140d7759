"""Clients that go away while an async view takes, holds or gives back its lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, override_settings

from django_redlock import conf, redlock
from django_redlock.testing import EmbeddedNodes
from django_redlock.views.decorator import single_flight
from tests.support.loops import connect, keys_on, soon
from tests.support.proxy import Proxy

from .shop.served import UVICORN, Shop, served

TTL = 600.0  # seconds for which a key stays that nobody takes back
SOON = 60.0  # seconds in which a key is taken back, on a busy machine too


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with EmbeddedNodes(3) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


@contextmanager
def far_away(nodes: EmbeddedNodes, delay: float) -> Iterator[tuple[dict[str, object], list[Proxy]]]:
    """The alias of nodes whose answers are late by so many seconds, and what makes them late."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        alias = nodes.settings(
            NODES=[proxy.url for proxy in proxies],
            TTL=TTL,
            MAX_TTL=TTL,
            RESTART_GUARD=False,
            NODE_TIMEOUT=10,
        )
        for proxy in proxies:
            proxy.delay = delay
        yield alias, proxies


@pytest.fixture
def proxies(servers: EmbeddedNodes) -> Iterator[list[Proxy]]:
    """What stands before the nodes, which are in force as the default alias, 30 ms away."""
    with far_away(servers, 0.03) as (alias, made), override_settings(REDLOCK={"default": alias}):
        yield made
        conf.forget()


def on_all(nodes: EmbeddedNodes) -> bool:
    """Whether the lock of the view is on every node."""
    return keys_on(nodes) == [["redlock:lock:order"]] * 3


async def warm() -> None:
    """Open the loop's connections."""
    group: Any = conf.backend("default").group
    await connect(redlock, group)


async def nothing_is_locked(nodes: EmbeddedNodes) -> None:
    """Wait until no node has a key."""
    await soon(lambda: not any(keys_on(nodes)), within=SOON)


async def leaves(task: asyncio.Task[HttpResponse], pauses: list[float]) -> None:
    """Cancel a request so many times, with these pauses after it."""
    for pause in pauses:
        task.cancel()
        await asyncio.sleep(pause)


@pytest.mark.parametrize(
    ("pauses", "is_asked"),
    [
        *(([pause] * times, False) for pause, times in [(0.0, 1), (0.0, 3), (0.01, 3), (0.045, 3)]),
        *(([0.0] * times, True) for times in (1, 3)),
    ],
    ids=str,
)
def test_the_release_is_shielded(servers, proxies, pauses, is_asked):
    """Cancelled again before, while and after the release is sent: it arrives.

    So does what gives back a lock that is granted after the client has left.
    """

    @single_flight("order")
    async def view(request):
        assert not is_asked
        await asyncio.Event().wait()

    async def main() -> None:
        await warm()
        for proxy in proxies if is_asked else ():
            proxy.delay = 60
        task = asyncio.ensure_future(view(AsyncRequestFactory().post("/")))
        await soon(lambda: on_all(servers))  # granted; perhaps the answers are on their way
        assert not task.done()
        await leaves(task, pauses)
        for proxy in proxies:
            proxy.delay = 0.03
        await nothing_is_locked(servers)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# -- a real server ----------------------------------------------------------------------------


async def visit(shop: Shop, name: str, stay: float) -> int:
    """Ask for something that takes long, and leave after so many seconds; the status, or 0."""
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    writer.write(
        f"POST /linger/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nBasket: {name}\r\n"
        "Content-Length: 0\r\n\r\n".encode()
    )
    try:
        async with asyncio.timeout(stay):
            line = await reader.readline()
            return int(line.split()[1])
    except TimeoutError:
        return 0
    finally:
        writer.close()


def entries(home: Path) -> int:
    """How many requests have got the lock so far."""
    return len(list(home.glob("entered-*")))


async def gets_in(shop: Shop, name: str, home: Path) -> None:
    """Ask for it, and leave when the view has begun."""
    before = entries(home)
    visiting = asyncio.ensure_future(visit(shop, name, 30))
    await soon(lambda: entries(home) > before, what=f"{name} entered")
    visiting.cancel()
    with suppress(asyncio.CancelledError):
        await visiting


@pytest.mark.slow
def test_a_client_that_disconnects_from_a_real_server_leaves_nothing(servers, tmp_path):
    """It leaves uvicorn while it holds the lock: nothing stays, and the next one gets in."""

    async def visitors(shop: Shop) -> None:
        for _ in range(2):
            await gets_in(shop, "n0", tmp_path)
            await nothing_is_locked(servers)

    with far_away(servers, 0.01) as (alias, _), served(UVICORN, tmp_path, alias) as shop:
        asyncio.run(visitors(shop))
    assert entries(tmp_path) == 2
