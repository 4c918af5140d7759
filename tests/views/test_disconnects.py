"""Clients that leave in the middle of a stream, of each kind, under each real server."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from django.test import override_settings

from django_redlock import redlock
from tests.support.waiting import eventually

from .shop.served import GUNICORN, THREADED, UVICORN, WORKERS, Shop, served

TTL = 5.0  # seconds, for which a busy machine keeps nobody from renewing
# Django reads a stream of the other kind to its end before it sends any of it.
KINDS = pytest.mark.parametrize("kind", ["drip", "adrip"], ids=["iterator", "async-iterator"])
SERVERS = pytest.mark.parametrize(
    "server", [GUNICORN, THREADED, UVICORN], ids=["gunicorn", "threads", "uvicorn"]
)

pytestmark = pytest.mark.slow


def processes(home: Path, name: str = "*") -> set[str]:
    """The processes that have begun to stream under these names."""
    return {path.name.split("-")[2] for path in home.glob(f"entered-{name}-*")}


def begin(shop: Shop, home: Path, address: str, name: str) -> socket.socket:
    """Ask for a stream, and wait until the server reads it."""
    client = socket.create_connection(("127.0.0.1", shop.port), 60)
    head = f"POST /{address}/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nBasket: a\r\n"
    client.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
    eventually(lambda: processes(home, name), within=30, what=f"{name} is read")
    return client


@KINDS
@SERVERS
def test_clients_that_leave_streams_leave_no_locks(server, kind, patient_nodes, tmp_path):
    """As many as the server takes at once: each name is free, and the same processes go on."""
    alias = patient_nodes.settings(NODE_TIMEOUT=1, TTL=TTL, MAX_TTL=60, RESTART_GUARD=False)
    with served(server, tmp_path, alias) as shop, override_settings(REDLOCK={"default": alias}):
        names = [f"n{number}" for number in range(WORKERS)]
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(closing(begin(shop, tmp_path, kind, name)))
                assert redlock(f"{kind}:{name}").state().held
        before = processes(tmp_path)
        for name in names:
            (tmp_path / f"leave-{name}").touch()
        for name in names:
            lock = redlock(f"{kind}:{name}")
            eventually(lambda lock=lock: not lock.state().held, within=25)  # type: ignore[misc]
        for name in names:
            assert shop.ask("POST", f"/{kind}/{name}", Basket="a")[0] == 200
        assert shop.answers()
        assert processes(tmp_path) == before


@KINDS
@SERVERS
def test_a_stream_longer_than_the_ttl_is_locked(server, kind, patient_nodes, tmp_path):
    """Renewal goes on while the response is read, also where its view ran in another loop."""
    alias = patient_nodes.settings(NODE_TIMEOUT=1, TTL=TTL, MAX_TTL=60, RESTART_GUARD=False)
    with (
        served(server, tmp_path, alias) as shop,
        override_settings(REDLOCK={"default": alias}),
        closing(begin(shop, tmp_path, kind, "long")),
    ):
        began = time.monotonic()
        while time.monotonic() - began < 1.5 * TTL:
            assert redlock(f"{kind}:long").state().held
            time.sleep(0.05)
        (tmp_path / "leave-long").touch()
        eventually(lambda: not redlock(f"{kind}:long").state().held, within=25)
