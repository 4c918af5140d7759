"""Streams that real servers send, to clients that go away."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest
from django.test import override_settings

from django_redlock import redlock
from tests.support.waiting import eventually

from .shop.served import GUNICORN, THREADED, UVICORN, Shop, served


def begin(shop: Shop, address: str) -> socket.socket:
    """Ask for a stream, and read the beginning."""
    client = socket.create_connection(("127.0.0.1", shop.port), 60)
    client.sendall(f"POST {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nBasket: a\r\n\r\n".encode())
    assert b" 200 OK" in client.recv(1 << 12)
    return client


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "kind"),
    [(GUNICORN, "stream"), (THREADED, "stream"), (UVICORN, "astream")],
    ids=["gunicorn", "threads", "uvicorn"],
)
def test_a_client_that_leaves_a_stream_leaves_no_lock(
    server: tuple[str, ...], kind: str, patient_nodes, tmp_path: Path
):
    """While it reads, an equal request is refused; soon after it has gone, the name is free."""
    alias = patient_nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False)
    with served(server, tmp_path, alias) as shop, override_settings(REDLOCK={"default": alias}):
        for number in range(3):
            address = f"/{kind}/n{number}"
            with closing(begin(shop, address)):
                assert redlock(f"{kind}:n{number}").state().held
                assert shop.ask("POST", address, Basket="a")[0] == 409
            left = redlock(f"{kind}:n{number}")
            eventually(lambda left=left: not left.state().held, within=25)  # type: ignore[misc]
