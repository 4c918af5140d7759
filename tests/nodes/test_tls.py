"""Nodes behind TLS, which several threads ask at once."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from redis.connection import SSLConnection

from django_redlock.nodes.address import Address, TLSConnection, from_url
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import faults_noted, keys_on, template, unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LEASES: Final = 8  # of each of …
THREADS: Final = 10
PATIENCE: Final = 30.0


@contextmanager
def behind_tls(
    count: int, tls: tuple[ssl.SSLContext, Path]
) -> Iterator[tuple[EmbeddedNodes, list[Proxy], list[Address]]]:
    """So many nodes, the proxies that speak TLS for them, and their addresses."""
    context, crt = tls
    options = {"ssl_ca_certs": str(crt)}
    with ExitStack() as stack:
        nodes = stack.enter_context(unguarded(count))
        proxies = [stack.enter_context(Proxy(node.port, context)) for node in nodes]
        urls = [f"rediss://127.0.0.1:{each.port}/0" for each in proxies]
        yield nodes, proxies, [from_url(url, options=options) for url in urls]


@pytest.mark.parametrize("option", ["ssl_validate_ocsp", "ssl_validate_ocsp_stapled"])
def test_a_certificate_that_may_be_revoked_is_looked_up_by_redis_py(option, monkeypatch):
    """With either option; a context of ours would look nothing up, and say nothing."""
    wrapped: list[object] = []
    monkeypatch.setattr(
        SSLConnection, "_wrap_socket_with_ssl", lambda _, sock: wrapped.append(sock)
    )
    connection: Any = TLSConnection(ssl_ca_certs=None)
    setattr(connection, option, True)
    connection._wrap_socket_with_ssl("socket")
    assert wrapped == ["socket"]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
def test_threads_ask_over_tls_while_a_node_is_late(tls):
    """No two threads use one TLS connection at once: OpenSSL would take it for closed."""
    with behind_tls(3, tls) as (nodes, proxies, addresses):
        group = NodeGroup(addresses, timeout=PATIENCE, guard=0, prefix="redlock:")
        redlock = template(group, ttl=60)
        with redlock("warm"):
            pass
        eventually(lambda: all(state.voting for state in group.states()))

        def take(thread: int) -> None:
            for number in range(LEASES):
                redlock(f"name-{thread}-{number}").acquire().release()

        proxies[2].delay = 0.002  # so that a release meets a grant without an answer
        with faults_noted(group) as faults, ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(take, range(THREADS)))
        proxies[2].delay = 0.0
        assert faults == []
        eventually(lambda: keys_on(nodes) == [[]] * 3)
        group.close()
